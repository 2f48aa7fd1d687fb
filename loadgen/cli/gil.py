"""`loadgen gil PID`: who holds the GIL of a running Python process, who waits for it, and for whom."""

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from analysis.gil import GilTally, ThreadShare
from analysis.gil_exact import ExactGil, account
from analysis.holds import HoldTally, LongHolds, holds_document
from contracts.clock import NS_PER_S, now_ns
from contracts.doubts import Doubt
from contracts.errors import UsageError
from contracts.records import GilRow
from harness.observers.gil.exact import trace_gil
from harness.observers.gil.sampler import RATE_HZ, GilSampler
from loadgen.cli import parsing

FORMAT = 1
DURATION_S = 5.0
REFRESH_NS = NS_PER_S
LIVE_SPAN_NS = 10 * NS_PER_S
MUCH_MISSED = 0.2
FEW_LOOKS = 100
TOP_BLAME = 3
TOP_HOLDS = 5
TOP_THREADS = 25
INTERRUPTED = 130


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "gil",
        help="show who waits for the GIL of a running process, and for whom",
        description="Watch the GIL of a running CPython 3.11 to 3.14 process from outside, without stopping it: "
        "each thread's share of time waiting for the GIL and holding it, and who made whom wait.",
        epilog="example: loadgen gil 4242 --duration 10 --json",
    )
    parser.add_argument("pid", metavar="PID", help="the process to watch; any CPython process will do")
    parser.add_argument(
        "--duration", type=parsing.positive, metavar="S",
        help=f"seconds to watch (default: until Ctrl-C on a terminal, else {DURATION_S:g})",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument(
        "--exact", action="store_true",
        help="trace every hand-over by uprobes instead of sampling: root, perf and a Python with symbols; slows the "
        "process, and says nothing of functions",
    )  # fmt: skip
    parser.add_argument(
        "--rate", type=parsing.positive, default=RATE_HZ, metavar="HZ",
        help="looks a second on the average; gaps are random (default: %(default)g)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        pid = int(options.pid)
    except ValueError as error:
        raise UsageError(f"{options.pid!r} is not a process id") from error
    if pid < 1:
        raise UsageError(f"{pid} is not a process id")
    if options.rate > 2000:
        raise UsageError(f"--rate {options.rate:g}: at most 2000 looks a second")
    if options.exact:
        return _exact(options, pid)
    live = sys.stdout.isatty() and not options.json
    duration_s = options.duration or (None if live else DURATION_S)
    tally, holds = GilTally(), HoldTally()
    stopped = False
    with GilSampler(pid, rate_hz=options.rate) as sampler:
        sampler.settle_names()
        began_ns = now_ns()
        try:
            rows = sampler.rows(duration_s)
            for row in _shown(rows, pid, tally) if live else rows:
                tally.add(row)
                holds.add(row)
        except KeyboardInterrupt:
            stopped = options.duration is not None or not live
        seconds = (now_ns() - began_ns) / NS_PER_S
        doubts = _doubts(tally, sampler)
    found = holds.ranked({thread.tid: thread.name for thread in tally.threads()})
    if options.json:
        json.dump(_document(pid, seconds, tally, tally.looks, sampler.missed, doubts, found), sys.stdout, indent=1)
        print()
    else:
        console = Console(file=sys.stdout)
        console.print(_table(pid, tally, f"{seconds:.1f} s"))
        for line in _hold_lines(found):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        for doubt in doubts:
            console.print(f"warning {doubt.code}: {doubt.detail}. {doubt.remedy}", markup=False, soft_wrap=True)
    return INTERRUPTED if stopped else 0


def _exact(options: argparse.Namespace, pid: int) -> int:
    """Trace for the duration, then print what the sampler's table and document say, exactly."""
    with GilSampler(pid) as sampler:  # for the names, and the refusals of what is no CPython with a GIL
        first = sampler.look()
        names = {} if first is None else dict(zip(first.appeared, first.names, strict=True))
        names |= sampler.settle_names()
        trace = trace_gil(pid, options.duration or DURATION_S)
    found = account(trace.window, trace.takes, trace.holds, names)
    if not found.threads():
        raise UsageError(f"process {pid} never took its GIL in {found.span_s:.1f} s: is it idle?")
    if options.json:
        json.dump(_document(pid, found.span_s, found, None, 0, []), sys.stdout, indent=1)
        print()
    else:
        Console(file=sys.stdout).print(_table(pid, found, f"{found.span_s:.1f} s, traced exactly"))
    return 0


def _shown(rows: Iterator[GilRow], pid: int, whole: GilTally) -> Iterator[GilRow]:
    """Pass rows on, and show the last seconds of them in a table that is drawn anew every second."""
    recent: deque[GilRow] = deque()
    named: list[GilRow] = []
    due_ns = now_ns() + REFRESH_NS
    with Live(_table(pid, whole, "starting"), auto_refresh=False, transient=True) as live:
        for row in rows:
            yield row
            recent.append(row)
            if row.appeared:
                named.append(row)
            if row.t_ns < due_ns:
                continue
            while recent[0].t_ns < row.t_ns - LIVE_SPAN_NS:
                recent.popleft()
            tally = GilTally()
            for one in named:
                tally.name(one)
            for one in recent:
                tally.add(one)
            live.update(_table(pid, tally, f"the last {tally.span_s:.0f} s, Ctrl-C ends"), refresh=True)
            due_ns = now_ns() + REFRESH_NS


def _doubts(tally: GilTally, sampler: GilSampler) -> list[Doubt]:
    doubts = []
    due = tally.looks + sampler.missed
    if sampler.missed > MUCH_MISSED * due:
        doubts.append(Doubt("samples_missed", f"{sampler.missed} of {due} looks were missed"))
    if sampler.ended is not None:
        doubts.append(Doubt("observer_failed", f"process {sampler.layout.pid}: {sampler.ended}"))
    if tally.looks < FEW_LOOKS and not sampler.ended:
        doubts.append(Doubt("window_short", f"only {tally.looks} looks"))
    return doubts


def _hold_lines(holds: LongHolds | None) -> list[str]:
    """Say how often one thread kept the GIL for longer than the switch interval, and where for longest."""
    if holds is None or not holds.count:
        return []
    head = f"held for longer than the switch interval ({holds.interval_ms:g} ms): {holds.count} times seen, "
    head += f"at least {holds.share:.1%} of the time, with another thread waiting in {holds.waited or 0.0:.0%} of it"
    return [head] + [
        f"  {one.count:4} {one.name}{'' if one.function is None else f': {one.function}'}, longest "
        f"{one.longest_ms:.1f} ms"
        for one in holds.groups[:TOP_HOLDS]
    ]


def _document(
    pid: int,
    seconds: float,
    tally: GilTally | ExactGil,
    looks: int | None,
    missed: int,
    doubts: list[Doubt],
    holds: LongHolds | None = None,
) -> dict[str, Any]:
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
        "warnings": [{"code": doubt.code, "detail": doubt.detail, "remedy": doubt.remedy} for doubt in doubts],
    }


def _table(pid: int, tally: GilTally | ExactGil, when: str) -> Table:
    table = Table(
        title=escape(
            f"GIL of process {pid}, {when}: held {tally.held_fraction:.0%} of the time, "
            f"{tally.switches_per_s:,.0f} switches/s{f', {tally.looks} looks' if isinstance(tally, GilTally) else ''}"
        ),
        title_justify="left",
        box=None,
        header_style="bold",
    )
    table.add_column("thread", no_wrap=True)
    table.add_column("tid", justify="right")
    table.add_column("waits", justify="right")
    table.add_column("holds", justify="right")
    table.add_column("runs without", justify="right")
    table.add_column("waited for")
    threads = tally.threads()
    busy = [thread for thread in threads if thread.wait or thread.held or thread.running][:TOP_THREADS]
    for thread in busy:
        blame = "\n".join(
            escape(f"{part.fraction:4.0%} {part.name}{'' if part.function is None else f': {part.function}'}")
            for part in thread.blame[:TOP_BLAME]
        )
        table.add_row(
            escape(thread.name), str(thread.tid), _wait(thread), f"{thread.held:.1%}", f"{thread.running:.1%}",
            blame,
        )  # fmt: skip
    if len(busy) < len(threads):
        table.add_row(f"and {len(threads) - len(busy)} more", "", "", "", "", "", style="dim")
    return table


def _wait(thread: ThreadShare) -> str:
    """Write a wait share with its 95 % interval."""
    return f"{thread.wait:.1%}" + (f" ±{100 * thread.error:.1f}" if thread.error else "")
