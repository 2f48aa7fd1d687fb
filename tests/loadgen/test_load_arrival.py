"""Open-loop schedules with known answers, and users who keep to them."""

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from load_support import Load, server, spec

from contracts.errors import UsageError
from contracts.load import WorkloadSpec
from loadgen import kinds
from loadgen.crew import Habits
from loadgen.workload.arrival import Schedule
from loadgen.workload.synthetic import Workload

MS = 1_000_000
SHORT = WorkloadSpec(isl=20, osl=4, seed=3)


def times(schedule: Schedule, count: int) -> list[int]:
    return [schedule.next_ns() for _ in range(count)]


def variation(due: list[int]) -> float:
    gaps = np.diff(due)
    return float(gaps.std() / gaps.mean())


def test_a_constant_schedule_is_due_every_so_often_from_the_beginning_or_a_phase_later() -> None:
    assert times(Schedule("constant", 100), 4) == [0, 10 * MS, 20 * MS, 30 * MS]
    assert times(Schedule("constant", 100, phase=0.25), 3) == [2_500_000, 12_500_000, 22_500_000]


@pytest.mark.parametrize(("kind", "burstiness"), [("poisson", 1.0), ("gamma", 0.25), ("gamma", 4.0)])
def test_a_random_schedule_keeps_its_rate_and_varies_as_its_shape_says(kind: str, burstiness: float) -> None:
    due = times(Schedule(kind, 1000, burstiness, seed=5), 40_000)
    assert due == sorted(due)
    assert due[-1] / 1e9 == pytest.approx(40, rel=0.05)
    assert variation(due) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_equal_seeds_give_equal_schedules_and_other_seeds_others() -> None:
    one, same, other = (times(Schedule("poisson", 10, seed=seed), 9) for seed in (1, 1, 2))
    assert one == same != other


def test_what_is_due_before_an_instant_is_skipped_and_counted() -> None:
    schedule = Schedule("constant", 1000)
    times(schedule, 10)
    assert schedule.skip_to(25 * MS) == 15


@pytest.mark.parametrize(
    ("kind", "rate", "burstiness"), [("closed", 1, 1), ("often", 1, 1), ("poisson", 0, 1), ("gamma", 1, 0)]
)
def test_a_schedule_that_cannot_be_is_a_usage_error(kind: str, rate: float, burstiness: float) -> None:
    with pytest.raises(UsageError):
        Schedule(kind, rate, burstiness)


def test_thinking_is_constant_or_exponential_and_belongs_to_the_request() -> None:
    workload = Workload(SHORT)
    draws = [workload.draw(user, n) for user, n in itertools.product(range(100), range(50))]
    assert {Habits(think_s=0.5).pause_s(workload, draw) for draw in draws} == {0.5}
    pauses = [Habits(think_s=0.5, exponential=True).pause_s(workload, draw) for draw in draws]
    assert np.mean(pauses) == pytest.approx(0.5, rel=0.1)
    assert np.std(pauses) == pytest.approx(0.5, rel=0.1)
    assert pauses == [Habits(think_s=0.5, exponential=True).pause_s(workload, draw) for draw in draws]


def test_the_wanted_fraction_of_requests_is_to_be_cut_and_always_the_same_ones() -> None:
    workload = Workload(SHORT)
    draws = [workload.draw(user, n) for user, n in itertools.product(range(100), range(50))]
    cuts = [Habits(abort_fraction=0.2, abort_after=3).cut_after(workload, draw) for draw in draws]
    assert set(cuts) == {None, 3}
    assert cuts.count(3) / len(cuts) == pytest.approx(0.2, rel=0.1)
    assert {Habits().cut_after(workload, draw) for draw in draws} == {None}


@pytest.mark.parametrize("drive", ["http", "rpc"])
def test_an_open_loop_sends_what_its_schedule_says_and_notes_when_it_was_due(tmp_path: Path, drive: str) -> None:
    script = ("fake_http.py",) if drive == "http" else ("fake_direct.py", tmp_path / "socket", "paced")
    with server(*script) as line:
        target = f"http://127.0.0.1:{line}" if drive == "http" else line
        if drive == "rpc":
            target = str(tmp_path / "socket")
        open_spec = spec(
            tmp_path, users=32, workload=SHORT, drive=drive, target=target, arrival="constant", rate_rps=100.0
        )
        with Load(open_spec) as load:
            done = load.run_for(1.0)
            assert load.end() == (0, "")
            rows = sorted(load.rows(), key=lambda row: row["scheduled_ns"])
    due = [row["scheduled_ns"] for row in rows]
    assert {b - a for a, b in itertools.pairwise(due)} == {10 * MS}
    assert all(row["sent_ns"] >= row["scheduled_ns"] for row in rows)
    assert (done["completed"], done["failed"]) == (len(rows), 0)
    assert done["unsent"] <= 1  # what fell due in the very moment of the stop


def test_too_few_users_send_late_and_keep_the_time_when_it_was_due(tmp_path: Path) -> None:
    with server("fake_http.py") as port:
        open_spec = spec(
            tmp_path, users=2, workload=SHORT, target=f"http://127.0.0.1:{port}", arrival="constant", rate_rps=1000.0
        )
        with Load(open_spec) as load:
            done = load.run_for(0.5)
            rows = sorted(load.rows(), key=lambda row: row["scheduled_ns"])
    due = [row["scheduled_ns"] for row in rows]
    assert due == list(range(due[0], due[0] + len(due) * MS, MS))  # none left out
    assert rows[-1]["sent_ns"] - rows[-1]["scheduled_ns"] > 10 * MS
    assert done["unsent"] > len(rows)


def test_a_schedule_goes_on_while_the_server_fails(tmp_path: Path) -> None:
    with server("fake_http.py") as port:
        open_spec = spec(
            tmp_path, users=4, model="status_503", target=f"http://127.0.0.1:{port}", arrival="poisson", rate_rps=200.0
        )
        with Load(open_spec) as load:
            done = load.run_for(0.5)
    assert done["failed"] > 50


@pytest.mark.parametrize("drive", ["http", "rpc"])
def test_an_abort_mix_cuts_its_share_and_calls_none_of_it_a_failure(tmp_path: Path, drive: str) -> None:
    script = ("fake_http.py",) if drive == "http" else ("fake_direct.py", tmp_path / "socket", "paced")
    with server(*script) as line:
        target = f"http://127.0.0.1:{line}" if drive == "http" else str(tmp_path / "socket")
        mixed = spec(
            tmp_path, users=16, workload=WorkloadSpec(isl=20, osl=8, seed=3), drive=drive, target=target,
            abort_fraction=0.3, abort_after_tokens=3,
        )  # fmt: skip
        with Load(mixed) as load:
            done = load.run_for(1.0)
            assert load.end() == (0, "")
            rows = load.rows()
    cut = [row for row in rows if row["error_kind"] == kinds.ABORTED]
    assert {row["error_kind"] for row in rows} == {None, kinds.ABORTED}
    assert {len(row["chunk_ns"]) for row in cut} == {3}
    assert (done["aborted"], done["failed"]) == (len(cut), 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"arrival": "poisson"},
        {"arrival": "sometimes", "rate_rps": 1.0},
        {"abort_fraction": 1.5},
        {"think": "deep"},
        {"headers": {"Host": "x"}},
        {"extra_body": {"prompt": "x"}},
    ],
)
def test_a_load_that_makes_no_sense_is_an_error_event(tmp_path: Path, changes: dict[str, Any]) -> None:
    with Load(spec(tmp_path, target="http://127.0.0.1:9", **changes)) as load:
        assert load.next_event().event == "error"
        assert load.end()[0] == 2


def test_what_falls_due_while_the_server_stands_still_waits_for_it_and_says_so(tmp_path: Path) -> None:
    with server("fake_http.py") as port:
        (process,) = [child for child in psutil.Process().children() if "fake_http.py" in " ".join(child.cmdline())]
        open_spec = spec(
            tmp_path, users=64, workload=SHORT, target=f"http://127.0.0.1:{port}", arrival="constant", rate_rps=100.0
        )
        with Load(open_spec) as load:
            load.start()
            time.sleep(0.2)
            process.suspend()
            while process.status() != psutil.STATUS_STOPPED:
                time.sleep(0.001)
            stopped_ns = time.monotonic_ns()
            time.sleep(0.4)
            resumed_ns = time.monotonic_ns()
            process.resume()
            load.tell("stop")
            load.until("done")
            rows = load.rows()
    caught = [row for row in rows if stopped_ns < row["scheduled_ns"] < resumed_ns - 50 * MS]
    assert len(caught) > 30
    assert all(row["sent_ns"] < resumed_ns < row["chunk_ns"][0] for row in caught)
