"""`loadgen gil PID --children`: the GILs of a process and of all that it started, a table each, and their totals."""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from analysis.gil.holds import HoldTally, LongHolds
from analysis.gil.looks import GilTally
from contracts.clock import NS_PER_S, now_ns
from contracts.doubts import Doubt
from contracts.records import GilRow
from harness.observers.gil.family import GilFamily, Member
from harness.observers.gil.roles import RoleChoice
from loadgen.cli.gil_output import (
    DURATION_S,
    FORMAT,
    INTERRUPTED,
    LIVE,
    REFRESH_NS,
    document,
    doubts_of,
    print_doubts,
    print_holds,
    print_json,
    told,
)
from loadgen.cli.gil_table import Part, RecentGil, fitted_family, print_whole
from loadgen.cli.screen import visible

MANY_SKIPPED = 10
_EDGE_S = 0.5


@dataclass(slots=True)
class _Watched:
    """What the looks at one process come to: over all the time, and over the last seconds."""

    member: Member
    tally: GilTally = field(default_factory=GilTally)
    holds: HoldTally = field(default_factory=HoldTally)
    recent: RecentGil = field(default_factory=RecentGil)

    def add(self, row: GilRow) -> None:
        self.tally.add(row)
        self.holds.add(row)

    def long_holds(self) -> LongHolds | None:
        return self.holds.ranked({thread.tid: thread.name for thread in self.tally.threads()})


class _Outcome:
    """The observation of a family, as it is told in the end."""

    def __init__(self, family: GilFamily, watched: dict[int, _Watched], began_ns: int) -> None:
        self._family = family
        self._watched = [watched.get(member.number) or _Watched(member) for member in family.members]
        self._began_ns = began_ns
        self.seconds = (now_ns() - began_ns) / NS_PER_S

    def from_s(self, member: Member) -> float:
        """Say when a process was there first, in seconds from the beginning."""
        return max(member.began_ns - self._began_ns, 0) / NS_PER_S

    def until_s(self, member: Member) -> float:
        return self.seconds if member.ended_ns is None else (member.ended_ns - self._began_ns) / NS_PER_S

    def when(self, member: Member) -> str:
        text = f"{self.until_s(member) - self.from_s(member):.1f} s"
        if self.from_s(member) > _EDGE_S:
            text += f" from {self.from_s(member):.1f} s on"
        if member.ended is not None:
            text += f" until {member.ended.removeprefix('it ')} at {self.until_s(member):.1f} s"
        return text

    def doubts(self, one: _Watched) -> list[Doubt]:
        """Say what is wrong with a process's shares; that it ended meanwhile is not."""
        return doubts_of(one.member.process.pid, one.tally, one.member.sampler.missed, None)

    def totals(self) -> dict[str, Any]:
        """Add the processes up; each weighs by the part of the time that it was watched for."""
        held = waits = switches = 0.0
        for one in self._watched:
            share = (self.until_s(one.member) - self.from_s(one.member)) / self.seconds if self.seconds else 0.0
            held += share * one.tally.held_fraction
            switches += share * one.tally.switches_per_s
            waits += share * sum(thread.wait for thread in one.tally.threads())
        return {
            "processes": len(self._watched),
            "threads": sum(len(one.tally.threads()) for one in self._watched),
            "samples": sum(one.tally.looks for one in self._watched),
            "missed": sum(one.member.sampler.missed for one in self._watched),
            "switches_per_s": switches,
            "gils_held": held,
            "threads_waiting": waits,
        }

    def print_tables(self, console: Console) -> None:
        for one in self._watched:
            label = f"{one.member.role.name} (process {one.member.process.pid})"
            print_whole(console, label, one.tally, self.when(one.member))
            print_holds(console, one.long_holds())
            print_doubts(console, self.doubts(one))
            console.print()
        totals = self.totals()
        console.print(
            f"{totals['processes']} processes, {totals['threads']} threads, {self.seconds:.1f} s: on the average "
            f"{totals['gils_held']:.2f} GILs were held and {totals['threads_waiting']:.2f} threads waited for one, "
            f"{totals['switches_per_s']:,.0f} switches/s; {totals['samples']} looks, {totals['missed']} missed",
            highlight=False, soft_wrap=not console.is_terminal,
        )  # fmt: skip
        skipped = list(self._family.skipped.values())
        for one_skipped in skipped[:MANY_SKIPPED]:
            text = f"skipped {one_skipped.role.name} ({one_skipped.process.pid}): {one_skipped.reason}"
            console.print(visible(text), highlight=False, markup=False, soft_wrap=True)
        if len(skipped) > MANY_SKIPPED:
            console.print(f"and {len(skipped) - MANY_SKIPPED} more skipped: --json names them", highlight=False)

    def as_json(self, root: int) -> dict[str, Any]:
        """Give the one JSON document: a single process's, in `processes`, with what it is and when it was there."""
        processes = []
        for one in self._watched:
            member = one.member
            seconds = self.until_s(member) - self.from_s(member)
            pid, missed = member.process.pid, member.sampler.missed
            found = document(pid, seconds, one.tally, one.tally.looks, missed, self.doubts(one), one.long_holds())
            del found["format"]
            processes.append(
                {
                    "role": member.role.name,
                    "parent": member.process.parent,
                    "command": member.process.title,
                    "from_s": self.from_s(member),
                    "ended": member.ended,
                    **found,
                }
            )
        return {
            "format": FORMAT,
            "pid": root,
            "duration_s": self.seconds,
            "processes": processes,
            "skipped": [
                {
                    "pid": one.process.pid,
                    "parent": one.process.parent,
                    "role": one.role.name,
                    "command": one.process.title,
                    "reason": one.reason,
                }
                for one in self._family.skipped.values()
            ],
            "totals": self.totals(),
            "warnings": [
                {"pid": one.member.process.pid, **doubt} for one in self._watched for doubt in told(self.doubts(one))
            ],
        }


def watch_family(pid: int, options: argparse.Namespace) -> int:
    """Watch a process and its descendants as the options say; print tables or a document."""
    live = sys.stdout.isatty() and not options.json
    console = Console(file=sys.stdout)
    duration_s = options.duration or (None if live else DURATION_S)
    watched: dict[int, _Watched] = {}
    stopped = False
    with GilFamily(pid, RoleChoice(options.role), rate_hz=options.rate) as family:
        family.settle_names()
        began_ns = now_ns()
        try:
            looks = family.looks(duration_s)
            for member, row in _shown(looks, family, watched, console) if live else looks:
                watched.setdefault(member.number, _Watched(member)).add(row)
        except KeyboardInterrupt:
            stopped = options.duration is not None or not live
        outcome = _Outcome(family, watched, began_ns)
    if options.json:
        print_json(outcome.as_json(pid))
    else:
        outcome.print_tables(console)
    return INTERRUPTED if stopped else 0


def _shown(
    looks: Iterator[tuple[Member, GilRow]], family: GilFamily, watched: dict[int, _Watched], console: Console
) -> Iterator[tuple[Member, GilRow]]:
    """Pass looks on, and show the last seconds of them, drawn anew every second."""
    due_ns = now_ns() + REFRESH_NS
    with Live(Text("starting"), console=console, **LIVE) as live:
        for member, row in looks:
            yield member, row
            watched[member.number].recent.add(row)
            if row.t_ns >= due_ns:
                live.update(_view(family, watched, console.size), refresh=True)
                due_ns = now_ns() + REFRESH_NS


def _view(family: GilFamily, watched: dict[int, _Watched], size: tuple[int, int]) -> Group:
    present = [one for one in watched.values() if one.member.ended is None]
    parts = [Part(one.member.role.name, one.member.process.pid, one.recent.shown) for one in present]
    span_s = max((part.tally.span_s for part in parts), default=0.0)
    title = f"GILs of {len(parts)} processes, the last {span_s:.0f} s, Ctrl-C ends"
    held = sum(part.tally.held_fraction for part in parts)
    ended = len(family.members) - len(present)
    below = f"{held:.2f} GILs held on the average; {ended} processes ended, {len(family.skipped)} skipped"
    table = fitted_family(parts, size)
    return Group(Text(title), table, Text(below, style="dim", no_wrap=True, overflow="ellipsis"))
