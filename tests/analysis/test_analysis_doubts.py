"""Each warning appears when its cause is planted, and none appears in a sweep without a fault."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import Recipe, write_sweep

from analysis.gil.looks import load_gil
from analysis.study import study_sweep
from contracts.arrow import write_rows
from contracts.clock import NS_PER_S
from contracts.folder import Phases, SweepFolder
from contracts.records import GIL


def codes(path: Path) -> set[str]:
    return {doubt.code for doubt in study_sweep(path).doubts}


def one(path: Path, recipe: Recipe, concurrency: int = 8) -> Path:
    return write_sweep(path, [("1", concurrency, 0, recipe)])


def change(path: Path, **changes: Any) -> None:
    folder = SweepFolder(path).cell_folders()[0]
    folder.write(replace(folder.read(), **changes))


@pytest.mark.parametrize("looks", [False, True])
def test_a_cell_without_a_fault_has_no_warning(tmp_path: Path, looks: bool) -> None:
    assert codes(one(tmp_path, Recipe(looks=looks))) == set()


@pytest.mark.parametrize(
    ("kept", "later_s", "detail"), [(1, 1000, "fell into the window"), (75, 0, "no step of the executor loop")]
)
def test_looks_that_tell_no_wait_a_step_are_told(tmp_path: Path, kept: int, later_s: int, detail: str) -> None:
    one(tmp_path, Recipe(looks=True))
    folder = SweepFolder(tmp_path).cell_folders()[0]
    rows = [replace(row, t_ns=row.t_ns + later_s * NS_PER_S) for row in load_gil(folder.gil)[::kept]]
    write_rows(folder.gil, GIL, rows)
    (doubt,) = study_sweep(tmp_path).cells[0].doubts
    assert doubt.code == "no_gil_samples"
    assert detail in doubt.detail


@pytest.mark.parametrize(
    ("recipe", "code"),
    [
        (Recipe(load_cpu=0.95), "client_saturated"),
        (Recipe(lag_ms=30), "client_saturated"),
        (Recipe(arrival_lag_ms=10), "client_saturated"),
        (Recipe(arrival_lag_ms=1, merged_chunks=3), "client_saturated"),
        (Recipe(fail_every=5), "requests_failed"),
        (Recipe(window_s=0.5), "window_short"),
        (Recipe(warmup_s=0.1), "warmup_short"),
        (Recipe(sample_errors=200), "samples_missed"),
        (Recipe(looks=True, looks_missed=0.25), "samples_missed"),
        (Recipe(executor_cpu=0.3, proxy_cpu=0.97, gil={"executor_loop": 300}), "front_end_limited"),
    ],
)
def test_a_planted_cause_gives_its_warning(tmp_path: Path, recipe: Recipe, code: str) -> None:
    assert code in codes(one(tmp_path, recipe))


def test_fewer_in_flight_than_asked_is_told_with_both_numbers(tmp_path: Path) -> None:
    study = study_sweep(one(tmp_path, Recipe(users=7), concurrency=8))
    (doubt,) = [doubt for doubt in study.doubts if doubt.code == "concurrency_not_reached"]
    assert doubt.detail == "7 in flight on average over the window, 8 asked for"


def test_missing_samples_and_steps_are_told(tmp_path: Path) -> None:
    one(tmp_path, Recipe())
    folder = SweepFolder(tmp_path).cell_folders()[0]
    folder.steps.unlink()
    folder.stacks.unlink()
    assert {"no_steps", "no_gil_samples"} <= codes(tmp_path)


def test_a_failed_cell_gives_its_reason(tmp_path: Path) -> None:
    one(tmp_path, Recipe())
    change(tmp_path, state="failed", error="port 8000 in use", phases=Phases())
    (doubt,) = study_sweep(tmp_path).doubts
    assert (doubt.code, doubt.detail) == ("cell_failed", "port 8000 in use")


def test_a_timers_granularity_does_not_make_a_client_saturated(tmp_path: Path) -> None:
    assert "client_saturated" not in codes(one(tmp_path, Recipe(lag_ms=1.5)))


def test_a_late_client_with_kernel_times_that_kept_its_load_is_not_saturated(tmp_path: Path) -> None:
    assert "client_saturated" not in codes(one(tmp_path, Recipe(lag_ms=30, arrival_lag_ms=2)))


@pytest.mark.parametrize(("workers", "warned"), [(1, True), (2, False)])
def test_more_users_a_process_than_the_self_test_found_good_are_warned_of(
    tmp_path: Path, workers: int, warned: bool
) -> None:
    trust = {"users": 4, "failed_at": 8, "why": "only 80% of the load was kept", "measured_at": "2025-06-01"}
    plan = {"drive": "http", "workers": workers, "factors": {"A": ["1"]}}
    write_sweep(tmp_path, [("1", 8, 0, Recipe())], document={"client_trust": trust, "plan": plan})
    assert ("beyond_selftest" in codes(tmp_path)) is warned


def test_two_blocks_are_few_and_a_missing_cell_leaves_a_block_incomplete(tmp_path: Path) -> None:
    write_sweep(tmp_path, [(value, 8, block, Recipe()) for block in range(2) for value in ("1", "32")][:3])
    assert {"few_repeats", "blocks_incomplete"} <= codes(tmp_path)


def test_a_disturbed_cell_is_named_with_how_far_it_is_out_of_line(tmp_path: Path) -> None:
    cells = [(value, 8, block, Recipe(jitter=0.05)) for block in range(4) for value in ("1", "8", "32")]
    assert "cell_out_of_line" not in codes(write_sweep(tmp_path / "even", cells))
    cells[7] = (*cells[7][:3], Recipe(jitter=0.05, factor=2.0))
    (doubt,) = [doubt for doubt in study_sweep(write_sweep(tmp_path / "odd", cells)).doubts if "line" in doubt.code]
    assert doubt.cell == "007-8-c8-b2"
    assert "less output tokens/s" in doubt.detail


def test_captures_own_warnings_come_through_and_are_not_doubled(tmp_path: Path) -> None:
    one(tmp_path, Recipe(load_cpu=0.95))
    change(tmp_path, warnings=({"code": "client_saturated", "detail": "seen live"}, {"code": "from_the_future"}))
    assert [(doubt.code, doubt.detail) for doubt in study_sweep(tmp_path).doubts] == [("client_saturated", "seen live")]
