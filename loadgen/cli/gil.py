"""`loadgen gil PID`: who holds the GIL of a running Python process, who waits for it, and for whom."""

import argparse
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live

from analysis.gil.exact import account
from analysis.gil.holds import HoldTally
from analysis.gil.looks import GilTally
from contracts.clock import NS_PER_S, now_ns
from contracts.errors import UsageError
from contracts.records import GilRow
from harness.observers.gil.exact import trace_gil
from harness.observers.gil.sampler import RATE_HZ, GilSampler
from loadgen.cli import parsing
from loadgen.cli.gil_family import watch_family
from loadgen.cli.gil_output import (
    DURATION_S,
    INTERRUPTED,
    LIVE,
    REFRESH_NS,
    document,
    doubts_of,
    print_doubts,
    print_holds,
    print_json,
)
from loadgen.cli.gil_table import RecentGil, fitted_table, print_whole


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "gil",
        description="Watch the GIL of a running CPython 3.11 to 3.15 process from outside, without stopping it: "
        "each thread's share of time waiting for the GIL and holding it, and who made whom wait.",
        epilog="example: loadgen gil 4242 --duration 10 --json; loadgen gil 4242 --children --role rank0 --role proxy",
    )
    parser.add_argument("pid", metavar="PID", help="the process to watch; any CPython process will do")
    parser.add_argument(
        "--duration", type=parsing.positive, metavar="S",
        help=f"seconds to watch (default: until Ctrl-C on a terminal, else {DURATION_S:g})",
    )  # fmt: skip
    parser.add_argument(
        "--children", action="store_true", help="watch what the process has started as well, and starts meanwhile"
    )
    parser.add_argument(
        "--role", action="append", default=[], metavar="NAME",
        help="of the process and all that it started, watch those with this role: a name or a regular expression "
        "(rank0, postproc, EngineCore, 'Worker_TP[01]', scheduler, ...). May be repeated",
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
    if options.exact and (options.children or options.role):
        raise UsageError("--exact traces one process: give its pid, without --children and --role")
    if options.exact:
        return _exact(options, pid)
    if options.children or options.role:
        return watch_family(pid, options)
    live = sys.stdout.isatty() and not options.json
    console = Console(file=sys.stdout)
    duration_s = options.duration or (None if live else DURATION_S)
    tally, holds = GilTally(), HoldTally()
    stopped = False
    with GilSampler(pid, rate_hz=options.rate) as sampler:
        sampler.settle_names()
        began_ns = now_ns()
        try:
            rows = sampler.rows(duration_s)
            for row in _shown(rows, pid, console) if live else rows:
                tally.add(row)
                holds.add(row)
        except KeyboardInterrupt:
            stopped = options.duration is not None or not live
        seconds = (now_ns() - began_ns) / NS_PER_S
        doubts = doubts_of(pid, tally, sampler.missed, sampler.ended)
    found = holds.ranked({thread.tid: thread.name for thread in tally.threads()})
    if options.json:
        print_json(document(pid, seconds, tally, tally.looks, sampler.missed, doubts, found))
    else:
        print_whole(console, f"process {pid}", tally, f"{seconds:.1f} s")
        print_holds(console, found)
        print_doubts(console, doubts)
    return INTERRUPTED if stopped else 0


def _exact(options: argparse.Namespace, pid: int) -> int:
    """Trace for the duration, then print what the sampler's table and document say, exactly."""
    with GilSampler(pid) as sampler:  # for the names, and the refusals of what is no CPython with a GIL
        first = sampler.look()
        names = {} if first is None else dict(zip(first.appeared, first.names, strict=True))
        names |= sampler.settle_names()
        trace = trace_gil(pid, options.duration or DURATION_S)
    found = account(trace.window, trace.waits, trace.holds, names)
    if not found.threads():
        raise UsageError(f"process {pid} never took its GIL in {found.span_s:.1f} s: is it idle?")
    if options.json:
        print_json(document(pid, found.span_s, found, None, 0, []))
    else:
        console = Console(file=sys.stdout)
        print_whole(console, f"process {pid}", found, f"{found.span_s:.1f} s, traced exactly")
    return 0


def _shown(rows: Iterator[GilRow], pid: int, console: Console) -> Iterator[GilRow]:
    """Pass rows on, and show the last seconds of them in a table that is drawn anew every second."""
    recent = RecentGil()
    due_ns = now_ns() + REFRESH_NS
    label = f"process {pid}"
    with Live(fitted_table(label, recent.shown, "starting", console.size), console=console, **LIVE) as live:
        for row in rows:
            yield row
            recent.add(row)
            if row.t_ns >= due_ns:
                when = f"the last {recent.shown.span_s:.0f} s, Ctrl-C ends"
                live.update(fitted_table(label, recent.shown, when, console.size), refresh=True)
                due_ns = now_ns() + REFRESH_NS
