"""What `loadgen gil` prints in the end, of one process or of several: a document, or warnings below a table."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from analysis.gil.exact import ExactGil
from analysis.gil.holds import LongHolds, holds_document
from analysis.gil.looks import GilTally
from contracts.clock import NS_PER_S
from contracts.doubts import SAMPLES_MISSED_LIMIT, Doubt
from loadgen.cli.screen import visible

FORMAT = 1
DURATION_S = 5.0
REFRESH_NS = NS_PER_S
INTERRUPTED = 130
LIVE: Mapping[str, Any] = {"auto_refresh": False, "transient": True, "vertical_overflow": "crop"}
FEW_LOOKS = 100
TOP_HOLDS = 5


def doubts_of(pid: int, tally: GilTally, missed: int, ended: str | None) -> list[Doubt]:
    """Say what is wrong with a process's shares; `ended` is why its looks ended early, if they did."""
    doubts = []
    due = tally.looks + missed
    if missed > SAMPLES_MISSED_LIMIT * due:
        doubts.append(Doubt("samples_missed", f"{missed} of {due} looks were missed"))
    if ended is not None:
        doubts.append(Doubt("observer_failed", f"process {pid}: {ended}"))
    if tally.looks < FEW_LOOKS and not ended:
        doubts.append(Doubt("window_short", f"only {tally.looks} looks"))
    return doubts


def document(
    pid: int,
    seconds: float,
    tally: GilTally | ExactGil,
    looks: int | None,
    missed: int,
    doubts: list[Doubt],
    holds: LongHolds | None = None,
) -> dict[str, Any]:
    """Give the one JSON document of a process (format 1)."""
    return {
        "format": FORMAT,
        "pid": pid,
        "duration_s": seconds,
        "samples": looks,
        "missed": missed,
        "switches_per_s": tally.switches_per_s,
        "gil_held_fraction": tally.held_fraction,
        "threads": [
            {
                "tid": thread.tid,
                "name": thread.name,
                "gil_wait_fraction": thread.wait,
                "gil_wait_error": thread.error,
                "gil_held_fraction": thread.held,
                "blame": [asdict(blame) for blame in thread.blame],
            }
            for thread in tally.threads()
        ],
        "long_holds": holds_document(holds),
        "warnings": told(doubts),
    }


def told(doubts: list[Doubt]) -> list[dict[str, str]]:
    return [{"code": doubt.code, "detail": doubt.detail, "remedy": doubt.remedy} for doubt in doubts]


def print_json(found: Mapping[str, Any]) -> None:
    json.dump(found, sys.stdout, indent=1)
    print()


def print_doubts(console: Console, doubts: list[Doubt]) -> None:
    for doubt in doubts:
        text = f"warning {doubt.code}: {doubt.detail}. {doubt.remedy}"
        console.print(visible(text), markup=False, highlight=False, soft_wrap=True)


def print_holds(console: Console, holds: LongHolds | None) -> None:
    """Say how often one thread kept the GIL for longer than the switch interval, and where for longest."""
    if holds is None or not holds.count:
        return
    head = f"held for longer than the switch interval ({holds.interval_ms:g} ms): {holds.count} times seen, "
    head += f"at least {holds.share:.1%} of the time, with another thread waiting in {holds.waited or 0.0:.0%} of it"
    lines = [head]
    for one in holds.groups[:TOP_HOLDS]:
        where = "" if one.function is None else f": {one.function}"
        lines.append(f"  {one.count:4} {one.name}{where}, longest {one.longest_ms:.1f} ms")
    for line in lines:
        console.print(visible(line), markup=False, highlight=False, soft_wrap=True)
