"""Drift is found where it is planted, and steady cells, noisy or stalling ones, are left alone."""

from pathlib import Path

import numpy as np
import pytest
from synthetic import Recipe, write_sweep

from analysis.steady import LEAST_BINS, _drift, judge_steadiness
from analysis.study import study_sweep
from analysis.tables import load_sweep


@pytest.mark.parametrize(("slope", "clear"), [(0.0, False), (0.05, False), (0.4, True), (-0.4, True)])
def test_a_trend_of_more_than_a_tenth_is_a_drift(slope: float, clear: bool) -> None:
    random = np.random.default_rng(1)
    values = 100 * (1 + slope * np.linspace(-0.5, 0.5, 20)) + 2 * random.standard_normal(20)
    drift = _drift("x", values)
    assert drift.clear is clear
    assert drift.change == pytest.approx(slope, abs=0.05)


def test_noise_alone_is_rarely_called_a_drift() -> None:
    random = np.random.default_rng(2)
    called = sum(_drift("x", 100 + 30 * random.standard_normal(20)).clear for _ in range(1000))
    assert called <= 20


def test_a_stall_is_no_drift() -> None:
    values = np.full(20, 100.0) + np.random.default_rng(3).standard_normal(20)
    values[15:17] = 5000.0
    assert not _drift("x", values).clear


def test_a_steady_cell_has_its_series_judged_and_no_complaint(tmp_path: Path) -> None:
    (cell,) = load_sweep(write_sweep(tmp_path, [("1", 8, 0, Recipe(window_s=12.0, jitter=0.1))])).per_cell
    found = judge_steadiness(cell)
    assert [one.name for one in found.drifts] == ["requests/s", "TTFT p50", "step"]
    assert found.complaints == ()


def test_a_growing_queue_is_told(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [("1", 8, 0, Recipe(window_s=12.0, ttft_growth=0.2))])
    (doubt,) = [doubt for doubt in study_sweep(path).doubts if doubt.code == "not_steady"]
    assert "TTFT p50 rose by" in doubt.detail
    assert "requests/s fell by" in doubt.detail


def test_a_short_window_is_not_judged(tmp_path: Path) -> None:
    (cell,) = load_sweep(write_sweep(tmp_path, [("1", 8, 0, Recipe(window_s=LEAST_BINS - 1.0))])).per_cell
    assert judge_steadiness(cell).drifts == ()
