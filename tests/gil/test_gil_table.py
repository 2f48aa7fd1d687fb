"""Tables of the GIL: they fit the terminal they are drawn on, tell the last seconds, and obey no foreign character."""

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from analysis.gil.looks import GilTally
from contracts.records import GilRow
from loadgen.cli.gil_table import SPAN_NS, Part, RecentGil, fitted_family, fitted_table, print_whole
from loadgen.cli.screen import visible

MS = 1_000_000
SIZES = [(80, 24), (200, 50), (60, 10)]


def row(t_ms: float, **fields: object) -> GilRow:
    plain = GilRow(
        t_ns=round(t_ms * MS), locked=True, holder=1, holder_sleeps=False, function="spin (a/rather/long/path.py)",
        waiting=[], runnable=[], running=[], cold=[], cold_weight=16, clocked=[], cpu_clock_ns=[], queue_clock_ns=[],
        switches=0, missed=0, cpu_ns=0, appeared=[], names=[], gone=[],
    )  # fmt: skip
    return replace(plain, **fields)


def crowd(threads: int) -> GilTally:
    tally = GilTally()
    tids = list(range(1, threads + 1))
    tally.add(row(0, appeared=tids, names=[f"a_worker_with_a_rather_long_name_{tid}" for tid in tids]))
    for t in range(1, 200):
        tally.add(row(t, waiting=[tid for tid in tids[1:] if t % tid < 3]))
    return tally


def drawn(what: RenderableType, size: tuple[int, int]) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=size[0], height=size[1])
    console.print(what)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("size", SIZES)
def test_a_hundred_threads_fit_the_terminal(size: tuple[int, int]) -> None:
    lines = drawn(fitted_table("process 4242", crowd(100), "the last 10 s, Ctrl-C ends", size), size)
    assert len(lines) < size[1]
    assert max(map(len, lines)) <= size[0]
    text = "\n".join(lines)
    assert "ng_name_2 " in text, "names are cut in their middle: the number at the end tells threads apart"
    assert "99.5%" in text
    assert lines[-1].startswith("and ")


@pytest.mark.parametrize("size", SIZES)
def test_many_processes_fit_the_terminal(size: tuple[int, int]) -> None:
    parts = [Part(f"Worker_TP{n}", 1000 + n, crowd(30)) for n in range(20)]
    lines = drawn(fitted_family(parts, size), size)
    assert len(lines) < size[1] - 2
    assert max(map(len, lines)) <= size[0]
    assert "Worker_TP0" in "\n".join(lines)


def test_what_waited_is_told_with_whom_it_waited_for() -> None:
    out = io.StringIO()
    print_whole(Console(file=out, width=160), "process 4242", crowd(3), "1 s")
    assert "a_worker_with_a_rather_long_name_1: spin (a/rather/long/path.py)" in out.getvalue()
    assert "held 100% of the time" in out.getvalue()


def test_the_recent_looks_are_those_of_the_last_seconds() -> None:
    recent = RecentGil()
    recent.add(row(0, appeared=[1, 2], names=["holder", "waiter"], waiting=[2]))
    for t in range(10, 30_000, 10):
        recent.add(row(t, waiting=[2] if t < 15_000 else []))
    shares = {thread.name: thread for thread in recent.shown.threads()}
    assert shares["waiter"].wait == 0
    assert shares["holder"].held == 1
    assert SPAN_NS / 1e9 <= recent.shown.span_s <= 2 * SPAN_NS / 1e9


def test_a_thread_that_ended_leaves_the_recent_looks() -> None:
    recent = RecentGil()
    recent.add(row(0, appeared=[1, 2], names=["holder", "short"]))
    for t in range(10, 30_000, 10):
        recent.add(row(t, gone=[2] if t == 100 else []))
    assert [thread.name for thread in recent.shown.threads()] == ["holder"]


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert visible("plain text, ü €") == "plain text, ü €"
    assert visible("\x1b[2Jred\x07\n\u202eabc\x9b1m") == r"\x1b[2Jred\x07\n\u202eabc\x9b1m"
    assert visible("one\ntwo\x1b", keep="\n") == "one\ntwo\\x1b"


def test_names_of_threads_are_written_out() -> None:
    tally = GilTally()
    tally.add(row(0, appeared=[1], names=["\x1b]0;owned\x07[red]"]))
    text = "\n".join(drawn(fitted_table("process 1", tally, "now", (80, 24)), (80, 24)))
    assert "\x1b" not in text
    assert r"\x1b]0;owned\x07[red]" in text
