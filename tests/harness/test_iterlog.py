from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.arrow import read_table
from contracts.clock import NS_PER_S, ClockPair
from contracts.records import GC, STEPS
from harness.observers.iterlog import IterationTail, StepPlacer, parse_line, parse_pause
from harness.reference.engine.collector import _PauseLog

CLOCK = ClockPair(monotonic_ns=0, realtime_ns=0)
NEW = (
    "[07/22/2026-00:00:00] [TRT-LLM] [I] [_torch][RANK 0] iter = 12, global_rank = 3, rank = 3, "
    "num_scheduled_requests = 360, kv_cache_util = 0.125, currank_total_requests = 37/2048, host_step_time = 104.5ms, "
    "prev_device_step_time = 98.25ms, timestamp = 2026-07-22 00:00:01, states = {'num_ctx_requests': 1, "
    "'num_ctx_tokens': 40, 'num_generation_tokens': 359, 'cached_kv_tokens': 0}"
)
OLD = (
    "[TRT-LLM] [I] iter = 12, global_rank = 0, rank = 0, currank_total_requests = 37/2048, host_step_time = 104.5ms, "
    "prev_device_step_time = N/A, timestamp = 2026-07-22 00:00:01, num_scheduled_requests: 360, "
    "states = {'num_ctx_requests': 1, 'num_ctx_tokens': 40, 'num_generation_tokens': 359}"
)


def test_the_newer_format_is_read() -> None:
    row = parse_line(NEW, CLOCK)
    assert row is not None
    assert (row.iteration, row.rank, row.host_step_ms, row.prev_device_step_ms) == (12, 3, 104.5, 98.25)
    assert (row.scheduled_requests, row.kv_cache_util) == (360, 0.125)
    assert (row.fetched_requests, row.fetched_requests_total) == (37, 2048)
    assert (row.ctx_requests, row.ctx_tokens, row.generation_tokens) == (1, 40, 359)
    assert (row.new_requests, row.rpc_messages, row.rpc_requests) == (None, None, None)
    assert row.t_ns == int(datetime(2026, 7, 22, 0, 0, 1).timestamp()) * 10**9  # noqa: DTZ001 - the log is local


def test_the_older_format_is_read() -> None:
    row = parse_line(OLD, CLOCK)
    assert row is not None
    assert (row.scheduled_requests, row.prev_device_step_ms, row.kv_cache_util) == (360, None, None)


def test_the_keys_that_the_reference_stack_adds_are_read() -> None:
    row = parse_line(NEW + ", new_requests = 3, rpc_messages = 2, rpc_requests = 33", CLOCK)
    assert row is not None
    assert (row.new_requests, row.rpc_messages, row.rpc_requests) == (3, 2, 33)


def test_microseconds_of_the_timestamp_are_kept() -> None:
    row = parse_line(NEW.replace("00:00:01,", "00:00:01.250001,"), CLOCK)
    assert row is not None
    assert row.t_ns % 10**9 == 250_001_000


@pytest.mark.parametrize("cut", range(0, len(NEW) - 1, 7))
def test_a_line_cut_short_is_no_row_or_the_row_without_what_was_cut(cut: int) -> None:
    row = parse_line(NEW[:cut], CLOCK)
    assert row is None or row.iteration in (1, 12)


@pytest.mark.parametrize("line", ["", "hello", "iter = x, rank = y", "GET /health 200", "iter = 5"])
def test_other_lines_are_no_rows(line: str) -> None:
    assert parse_line(line, CLOCK) is None


def test_a_growing_log_is_followed_line_by_line(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    tail = IterationTail(log, tmp_path / "steps.arrow", tmp_path / "gc.arrow", every_s=60)
    tail.catch_up()
    with open(log, "w") as file:
        file.write("starting\n" + NEW + "\n" + NEW[:50])
        file.flush()
        tail.catch_up()
        assert tail.rows == 1
        file.write(NEW[50:] + "\n")
    tail.start()
    tail.stop()
    assert read_table(tmp_path / "steps.arrow", STEPS).num_rows == 2


@given(st.lists(st.tuples(st.floats(0.1, 400), st.floats(0, 300)), min_size=2, max_size=200), st.floats(0, 999))
def test_rows_with_timestamps_in_seconds_are_placed_within_them_by_their_steps(
    turns: list[tuple[float, float]], begin_ms: float
) -> None:
    """Never late; and, from the second second on and where nothing was idle, early by at most a step."""
    known = parse_line(NEW, CLOCK)
    assert known is not None
    placer = StepPlacer()
    true_ms, seconds, placed_ns = begin_ms, set(), 0
    for step_ms, idle_ms in turns:
        true_ms += idle_ms + step_ms
        stamp_ns = int(true_ms // 1000) * NS_PER_S
        row = placer.place(replace(known, t_ns=stamp_ns, host_step_ms=step_ms))
        seconds.add(stamp_ns)
        assert stamp_ns <= row.t_ns < stamp_ns + NS_PER_S
        assert row.t_ns >= placed_ns
        placed_ns = row.t_ns
        assert row.t_ns <= true_ms * 1e6 + 1e3
    if len(seconds) > 1 and not any(idle_ms for _, idle_ms in turns):
        assert true_ms * 1e6 - row.t_ns <= max(step_ms for step_ms, _ in turns) * 1e6 + 1e3


def test_a_tail_places_the_originals_lines_and_leaves_times_with_microseconds_alone(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    exact = NEW.replace("00:00:01,", "00:00:09.250001,")
    log.write_text(f"{NEW}\n{NEW}\n{NEW}\n{exact}\n")
    tail = IterationTail(log, tmp_path / "steps.arrow", tmp_path / "gc.arrow")
    tail.stop()
    times = read_table(tmp_path / "steps.arrow", STEPS).column("t_ns").to_pylist()
    assert [later - times[0] for later in times[1:3]] == [104_500_000, 209_000_000]
    assert times[3] - times[0] == 8_250_001_000


def test_a_pause_that_the_reference_stack_logs_is_read_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter((7.25, 7.2625))
    monkeypatch.setattr("time.monotonic", lambda: next(moments))
    pauses = _PauseLog()
    pauses("start", {"generation": 2})
    pauses("stop", {"generation": 2, "collected": 7, "uncollectable": 0})
    monkeypatch.undo()
    line = capsys.readouterr().out
    log = tmp_path / "server.log"
    log.write_text(f"{NEW}\n{line}{line[:-4]}")
    tail = IterationTail(log, tmp_path / "steps.arrow", tmp_path / "gc.arrow")
    tail.stop()
    (row,) = read_table(tmp_path / "gc.arrow", GC).to_pylist()
    assert row == {"t_ns": 7_250_000_000, "pause_ns": 12_500_000, "generation": 2, "collected": 7}
    assert parse_pause(line[:-4]) is None  # a time cut short is no time
    assert read_table(tmp_path / "steps.arrow", STEPS).num_rows == 1
