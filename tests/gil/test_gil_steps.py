"""Shares, blame and the join with steps, on rows and steps whose answer is known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.gil.holds import HoldTally, study_holds
from analysis.gil.looks import NOBODY, GilTally, load_gil, loop_looks, study_gil
from analysis.gil.step_parts import mean_parts, step_parts
from analysis.gil.steps import waits_per_step
from analysis.window import Window
from contracts.arrow import write_rows
from contracts.records import GIL, GilRow

MS = 1_000_000
LOOP, HELPER, IDLE = 11, 12, 13


def row(t_ms: float, **fields: object) -> GilRow:
    plain = GilRow(
        t_ns=round(t_ms * MS), locked=False, holder=None, holder_sleeps=False, function=None, waiting=[], runnable=[],
        running=[], cold=[], cold_weight=16, clocked=[], cpu_clock_ns=[], queue_clock_ns=[], switches=0, missed=0,
        cpu_ns=0, appeared=[], names=[], gone=[],
    )  # fmt: skip
    return replace(plain, **fields)


def looks() -> list[GilRow]:
    """Steps of 10 ms, a look a ms: the loop waits in the first 3 ms of each, for the helper in `pack` then `send`."""
    rows = []
    for t in range(2000):
        phase = t % 10
        if phase < 3:
            held = {"locked": True, "holder": HELPER, "function": "pack" if phase < 2 else "send", "waiting": [LOOP]}
        else:
            held = {"locked": True, "holder": LOOP, "function": "step"}
        rows.append(row(t + 0.5, switches=t // 5, **held))
    rows[0] = replace(rows[0], appeared=[LOOP, HELPER, IDLE], names=["executor_loop", "rpc_3", "idle"])
    return rows


def steps() -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    return np.arange(1, 200, dtype=np.int64) * 10 * MS, np.full(199, 10.0)


def test_shares_are_those_of_the_looks() -> None:
    tally = GilTally()
    for one in looks():
        tally.add(one)
    threads = {thread.name: thread for thread in tally.threads()}
    assert threads["executor_loop"].wait == pytest.approx(0.3)
    assert threads["executor_loop"].held == pytest.approx(0.7)
    assert threads["rpc_3"].held == pytest.approx(0.3)
    assert threads["idle"].wait == 0
    assert tally.held_fraction == 1
    assert tally.switches_per_s == pytest.approx(200, rel=0.01)
    assert [(part.name, part.function) for part in threads["executor_loop"].blame] == [
        ("rpc_3", "pack"),
        ("rpc_3", "send"),
    ]
    assert [part.fraction for part in threads["executor_loop"].blame] == pytest.approx([2 / 3, 1 / 3])


def test_a_rare_look_weighs_what_it_stands_for() -> None:
    tally = GilTally()
    for t in range(1600):
        found = {"waiting": [IDLE], "cold": [IDLE]} if t % 160 == 0 else {}
        tally.add(row(t, **found))
    tally.name(row(0, appeared=[IDLE], names=["idle"]))
    assert tally.threads()[0].wait == pytest.approx(0.1)


def test_exact_clocks_correct_what_looks_missed() -> None:
    """The looks saw the thread asleep on the GIL 40% of the time; the kernel says that it slept for half of it."""
    tally = GilTally()
    tally.name(row(0, appeared=[LOOP], names=["busy"]))
    for t in range(1001):
        found: dict[str, object] = {"waiting": [LOOP]} if t % 10 < 4 else {"locked": True, "holder": LOOP}
        if t % 500 == 0:
            found |= {"clocked": [LOOP], "cpu_clock_ns": [t * MS // 2], "queue_clock_ns": [0]}
        tally.add(row(t, **found))
    assert tally.threads()[0].wait == pytest.approx(0.5, abs=0.002)


def test_a_free_gil_is_nobodys_blame() -> None:
    tally = GilTally()
    tally.add(row(0, runnable=[LOOP], appeared=[LOOP], names=["loop"]))
    assert [part.name for part in tally.threads()[0].blame] == [NOBODY]


def test_the_wait_of_a_step_is_that_of_its_looks() -> None:
    study = study_gil(looks(), None, *steps())
    assert study is not None
    found = study.executor_steps
    assert found is not None
    assert found.steps == 198  # the first begins before the first look
    assert found.share == pytest.approx(0.3, abs=0.001)
    assert found.mean_ms == pytest.approx(3.0, abs=0.01)
    assert found.p50_ms == pytest.approx(3.0, abs=0.15)
    assert found.gap_ms == pytest.approx(1.0)
    assert study.wait_fraction["executor_loop"] == pytest.approx(0.3)
    assert study.blame["executor_loop"][0].name == "rpc_*"


def test_steps_with_and_without_arrivals_are_told_apart() -> None:
    t_ns = np.arange(0, 4000, dtype=np.int64) * MS // 2
    step = t_ns // (10 * MS)
    wants = (step % 2 == 1) & (t_ns % (10 * MS) < 4 * MS)
    ends, lengths = steps()
    arrivals = (np.arange(199) % 2).astype(np.float64)
    found = waits_per_step(t_ns, wants, ends, lengths, arrivals)
    assert found is not None
    assert found.with_arrivals_ms == pytest.approx(4.0, abs=0.3)
    assert found.without_arrivals_ms == pytest.approx(0.0, abs=0.3)


def test_steps_across_a_gap_without_looks_are_left_out() -> None:
    t_ns = np.concatenate([np.arange(0, 500), np.arange(1500, 2000)]).astype(np.int64) * MS
    found = waits_per_step(t_ns, np.ones(1000, dtype=np.bool_), *steps())
    assert found is not None
    assert found.steps < 100
    assert found.share == 1


def test_a_log_in_whole_seconds_gives_no_wait_per_step() -> None:
    ends = (np.arange(1, 200, dtype=np.int64) // 100) * 1000 * MS
    t_ns = np.arange(2000, dtype=np.int64) * MS
    assert waits_per_step(t_ns, np.ones(2000, dtype=np.bool_), ends, np.full(199, 10.0)) is None


def test_looks_outside_the_window_count_for_names_alone(tmp_path: Path) -> None:
    path = tmp_path / "gil.arrow"
    write_rows(path, GIL, looks())
    study = study_gil(load_gil(path), Window(1000 * MS, 2000 * MS), *steps())
    assert study is not None
    assert study.looks == 1000
    assert "executor_loop" in study.wait_fraction


def test_no_looks_give_no_study(tmp_path: Path) -> None:
    assert load_gil(tmp_path / "gil.arrow") == []
    assert study_gil([], None, *steps()) is None


def held(t_ms: float, tid: int | None, switches: int, function: str = "f", **more: object) -> GilRow:
    return row(t_ms, locked=tid is not None, holder=tid, function=function, switches=switches, **more)


def held_long() -> list[GilRow]:
    """The loop from 10 to 30 ms, the helper waiting; a hand-over; the loop once more, from 35 to 41 ms; then nobody."""
    return [
        held(0, HELPER, 1, appeared=[LOOP, HELPER], names=["executor_loop", "asyncio_0"]),
        held(10, LOOP, 2, "encode", waiting=[HELPER]),
        held(20, LOOP, 2, "encode", waiting=[HELPER]),
        held(30, LOOP, 2, "send", runnable=[HELPER]),
        held(35, LOOP, 4, "send"),
        held(41, LOOP, 4, "send"),
        held(50, None, 4),
        held(60, LOOP, 4, "send"),
    ]


def test_a_long_hold_is_as_long_as_its_looks_prove_and_no_longer_than_those_around_allow() -> None:
    found = study_holds(held_long(), None, str, None)
    assert found is not None
    assert (found.count, found.longest_ms, found.interval_ms) == (2, 20.0, 5.0)
    encode, send = found.groups
    assert (encode.name, encode.function, encode.count) == ("executor_loop", "encode", 1)
    assert (encode.longest_ms, encode.longest_most_ms, encode.waited) == (20.0, 35.0, 1.0)
    assert (send.function, send.longest_ms, send.longest_most_ms, send.waited) == ("send", 6.0, 20.0, 0.0)
    assert found.share == pytest.approx(26 / 60)
    assert found.waited == pytest.approx(3 / 5)


def test_the_switch_interval_is_the_processes_where_a_look_tells_it_else_the_servers() -> None:
    told = study_holds(held_long(), None, str, 15.0)
    assert told is not None
    assert (told.count, told.interval_ms, told.interval_from) == (1, 15.0, "the server")
    read = study_holds([replace(one, interval_us=25_000) for one in held_long()], None, str, 5.0)
    assert read is not None
    assert (read.count, read.longest_ms, read.interval_from) == (0, 0.0, "the process")


def test_looks_too_far_apart_and_hand_overs_in_between_make_no_hold() -> None:
    assert not study_holds([held(0, LOOP, 1), held(101, LOOP, 1)], None, str, None).groups  # type: ignore[union-attr]
    assert not study_holds([held(0, LOOP, 1), held(50, LOOP, 3)], None, str, None).groups  # type: ignore[union-attr]
    assert study_holds([held(0, LOOP, 1)], None, str, None) is None


def test_a_tally_that_goes_on_tells_what_it_has_seen() -> None:
    tally = HoldTally()
    for one in held_long()[:3]:
        tally.add(one)
    assert [hold.least_ms for hold in tally.holds()] == [10.0]
    tally.add(held_long()[3])
    assert [hold.least_ms for hold in tally.holds()] == [20.0]


def test_a_step_is_divided_into_host_wait_device_and_rest() -> None:
    """Steps of 10 ms, a look a ms: 3 wait, 2 hold, 1 runs without, 4 blocked elsewhere, of which the device takes 3."""
    states = ["waiting"] * 3 + ["holds"] * 2 + ["running"] + ["blocked"] * 4
    rows = []
    for place in range(200):
        state = states[place % 10]
        fields: dict[str, object] = {"locked": True, "holder": LOOP if state == "holds" else HELPER}
        if state in ("waiting", "running"):
            fields[state] = [LOOP]
        rows.append(row(place + 0.5, **fields))
    rows[0] = replace(rows[0], appeared=[LOOP, HELPER], names=["executor_loop", "helper"])
    ends = np.arange(10, 200, 10, dtype=np.int64) * MS
    lengths, device = np.full(len(ends), 10.0), np.full(len(ends), 3.0)
    unknown = np.full(len(ends), np.nan)
    loop = loop_looks(rows, None)
    parts = step_parts(loop, ends, lengths, device, unknown)
    assert parts is not None
    assert (parts.host_ms, parts.gil_wait_ms, parts.device_ms, parts.other_ms) == pytest.approx((3, 3, 3, 1))
    assert (parts.native_ms, parts.step_ms) == pytest.approx((1, 10))
    blind = step_parts(loop, ends, lengths, unknown, unknown)
    assert blind is not None
    assert (blind.device_ms, blind.other_ms) == (None, pytest.approx(4))
    own = step_parts(None, ends, lengths, device, np.full(len(ends), 2.5))
    assert own is not None
    assert (own.host_ms, own.gil_wait_ms, own.other_ms) == (None, 2.5, 7.5)
    assert step_parts(None, ends, lengths, device, unknown) is None
    both = mean_parts([parts, blind])
    assert both is not None
    assert (both.device_ms, both.other_ms, both.steps) == (None, pytest.approx(4), 2 * parts.steps)
