"""What a sweep shows while it runs: on a terminal and in a pipe, from the harness' events."""

import io

import pytest
from rich.console import Console

from contracts.doubts import Doubt
from contracts.folder import CellInfo
from harness.events import CellEnded, CellStarted, Doubted, GilMoved, LoadMoved, StageReached
from harness.loadcrew import LoadTally, Recent
from harness.observers.gil.pulse import GilPulse, PulseThread
from harness.plan import Cell
from loadgen.cli import progress as shown
from loadgen.cli.live import RecentWaits, TimeLeft, about, rates, weighted_percentile
from loadgen.cli.progress import SweepProgress

S = 1_000_000_000
CELLS = [Cell(n, 1, {"TLLM_RPC_SUBMIT_BATCH_MAX": str(n)}, 400 if n % 2 else 2048) for n in range(1, 5)]
TALLY = LoadTally(
    users=400, in_flight=398, completed=1234, failed=0, recent=Recent(182.0, 900, [(n, 1.0) for n in range(1, 101)])
)


def pulse(t_s: int, *threads: PulseThread, looks: int = 200) -> GilPulse:
    return GilPulse(t_s * S, looks, threads)


def info(state: str = "done", error: str | None = None) -> CellInfo:
    cell = CELLS[0]
    return CellInfo(
        id=cell.id, slug=cell.slug, index=1, block=1, knobs=dict(cell.knobs), concurrency=400, state=state, error=error
    )


def progress(out: io.StringIO, *, terminal: bool = False, size: tuple[int, int] = (80, 24)) -> SweepProgress:
    console = Console(file=out, force_terminal=terminal, width=size[0], height=size[1], color_system=None)
    return SweepProgress(console, CELLS, len(CELLS))


def play(listener: SweepProgress) -> None:
    """Take the first cell into its window."""
    listener(CellStarted(CELLS[0], 1, 4))
    listener(StageReached(CELLS[0], "steady", 20.0))
    listener(GilMoved(CELLS[0], pulse(1, PulseThread(11, "executor_loop", 62, 100), PulseThread(12, "rpc_3", 3, 60))))
    listener(LoadMoved(CELLS[0], TALLY))


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (50, 12)])
def test_the_live_view_has_everything_and_fits_the_terminal(size: tuple[int, int]) -> None:
    out = io.StringIO()
    listener = progress(out, terminal=True, size=size)
    play(listener)
    out.truncate(0)
    Console(file=out, width=size[0], height=size[1]).print(listener)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= size[0]
    assert len(lines) == 6
    text = "\n".join(lines)
    assert "cell 1 of 4, c400 TLLM_RPC_SUBMIT_BATCH_MAX=1" in text
    assert "0/4" in text
    if size[0] >= 80:
        assert "400 users, 398 in flight, 1,234 done" in text
        assert "182 req/s, TTFT p50 50 p99 99 ms (900 requests)" in text
        assert "executor_loop waits for the GIL 31%, holds it 50%" in text


def test_in_a_pipe_there_is_a_line_now_and_then_and_one_a_finished_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(shown.time, "monotonic", lambda: now)
    out = io.StringIO()
    with progress(out) as listener:
        play(listener)
        for _ in range(40):
            now += 0.25
            listener(LoadMoved(CELLS[0], TALLY))
        listener(CellEnded(CELLS[0], info()))
    lines = out.getvalue().splitlines()
    assert len(lines) == 4, "at once, after 5 s, after 10 s, and the end"
    assert "steady 10 of 20 s; 400 users" in lines[2]
    assert "executor_loop waits for the GIL 31%" in lines[2]
    assert lines[3].startswith("cell 1 of 4, c400 TLLM_RPC_SUBMIT_BATCH_MAX=1 block 1: done after 10 s, 1,234 requests")
    assert lines[3].endswith("about 30 s left")
    assert "\x1b" not in out.getvalue()


def test_what_a_server_sends_does_not_steer_the_terminal() -> None:
    out = io.StringIO()
    with progress(out) as listener:
        listener(CellStarted(CELLS[0], 1, 4))
        listener(CellEnded(CELLS[0], info("failed", "all failed: \x1b[2J\x1b]0;owned\x07[bold]\nlast line\x9b1m")))
    assert "\x1b" not in out.getvalue()
    assert r"all failed: \x1b[2J\x1b]0;owned\x07[bold]" in out.getvalue()
    assert r"    last line\x9b1m" in out.getvalue()


def test_a_warning_comes_at_once_once_and_its_remedy_with_the_first_of_its_kind() -> None:
    out = io.StringIO()
    with progress(out) as listener:
        for detail in ("3 requests", "3 requests", "7 requests"):
            listener(Doubted(Doubt("drain_timeout", detail)))
    lines = out.getvalue().splitlines()
    assert [line.split(".")[0] for line in lines] == [
        "warning drain_timeout: 3 requests",
        "warning drain_timeout: 7 requests",
    ]
    assert "Lengthen" in lines[0]
    assert "Lengthen" not in lines[1]


def test_the_time_left_is_that_of_finished_cells_of_the_same_concurrency() -> None:
    left = TimeLeft(CELLS)
    assert left.seconds() is None
    left.ended(CELLS[0], 20.0)
    assert left.seconds() == 60.0  # nothing is known of c2048 yet
    left.ended(CELLS[1], 40.0)
    assert left.seconds() == 60.0
    assert left.seconds(CELLS[2], elapsed_s=15.0) == 45.0
    assert left.seconds(CELLS[2], elapsed_s=50.0) == 40.0, "a cell that takes longer than thought is not negative"
    left.ended(CELLS[2], None)
    left.ended(CELLS[3], None)
    assert left.seconds() is None


def test_a_resumed_sweep_knows_from_its_finished_cells() -> None:
    assert TimeLeft(CELLS[2:], [(400, 20.0), (400, 22.0), (2048, 50.0)]).seconds() == 71.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.4, "about 5 s left"), (62, "about 60 s left"), (200, "about 3 min left"),
     (7200, "about 2 h 00 min left")],
)  # fmt: skip
def test_the_time_left_is_told_roughly(seconds: float | None, text: str) -> None:
    assert about(seconds) == text


def test_a_percentile_counts_weights() -> None:
    assert weighted_percentile([(10.0, 1.0), (20.0, 1.0), (30.0, 98.0)], 0.02) == 20.0
    assert weighted_percentile([(30.0, 98.0), (10.0, 1.0), (20.0, 1.0)], 0.5) == 30.0
    assert weighted_percentile([(5.0, 2.0)], 0.99) == 5.0
    assert rates(LoadTally()) == ""


def test_the_waits_are_those_of_the_last_seconds() -> None:
    waits = RecentWaits()
    assert str(waits) == ""
    for t in range(20):
        waits.add(pulse(t, PulseThread(11, "executor_loop", 200 if t < 15 else 20, 100)))
    assert str(waits) == "executor_loop waits for the GIL 10%, holds it 50%"


def test_without_an_executor_loop_the_thread_that_waits_most_is_named() -> None:
    waits = RecentWaits()
    waits.add(pulse(1, PulseThread(1, "python", 10, 150), PulseThread(2, "python", 80, 20)))
    assert str(waits) == "python waits for the GIL 40%, holds it 10%"
    waits.clear()
    waits.add(pulse(1))
    assert str(waits) == "nobody waits for the GIL"
