"""The block model: known answers, and what its intervals promise, over simulated sweeps."""

import numpy as np
import pytest
from scipy import stats

from analysis.blocks import against_baseline, critical_value, odd_cell


def simulated(
    random: np.random.Generator, blocks: int, effects: list[float], noise: float = 0.05, drift: float = 0.5
) -> dict[tuple[int, int], float]:
    """Log values of a baseline and settings with these true log ratios, on a machine that drifts between blocks."""
    level = drift * random.standard_normal(blocks)
    return {
        (block, setting): level[block] + true + noise * random.standard_normal()
        for block in range(blocks)
        for setting, true in enumerate((0.0, *effects))
    }


def test_one_setting_is_the_paired_t_interval() -> None:
    logs = simulated(np.random.default_rng(1), 5, [0.2])
    differences = [logs[block, 1] - logs[block, 0] for block in range(5)]
    estimate = against_baseline(logs, [1])[1]
    low, high = stats.ttest_1samp(differences, 0).confidence_interval()
    assert estimate.difference == pytest.approx(np.mean(differences))
    assert estimate.reach == pytest.approx((high - low) / 2)


@pytest.mark.parametrize(("settings", "freedom", "table"), [(2, 10, 2.57), (4, 16, 2.71), (9, 18, 2.98)])
def test_critical_values_are_dunnetts(settings: int, freedom: int, table: float) -> None:
    equal = tuple(tuple(1.0 if row == column else 0.5 for column in range(settings)) for row in range(settings))
    assert critical_value(freedom, equal) == pytest.approx(table, abs=0.015)


@pytest.mark.parametrize("true", [[0.0] * 4, [0.03, 0.2, -0.1, 0.0]])
def test_all_intervals_of_a_family_hold_at_once_as_often_as_they_say(true: list[float]) -> None:
    random = np.random.default_rng(7)
    held = 0
    for _ in range(1000):
        found = against_baseline(simulated(random, 3, true), range(1, 5))
        held += all(
            abs(found[n].difference - effect) <= (found[n].reach or 0.0) for n, effect in enumerate(true, start=1)
        )
    assert 925 <= held <= 975


def test_no_effect_is_rarely_called_one_and_a_fifth_is_found() -> None:
    random = np.random.default_rng(3)
    false = found = 0
    for _ in range(1000):
        nothing = against_baseline(simulated(random, 5, [0.0] * 4), range(1, 5))
        false += any(abs(one.difference) > (one.reach or 0.0) for one in nothing.values())
        fifth = against_baseline(simulated(random, 5, [0.0, 0.0, 0.0, float(np.log(1.2))]), range(1, 5))[4]
        found += fifth.difference > (fifth.reach or 0.0)
    assert false <= 65  # 5 % and three standard errors
    assert found > 900


def test_a_missing_cell_costs_its_block_for_its_setting_alone() -> None:
    logs = simulated(np.random.default_rng(2), 4, [0.3, 0.1], noise=0.0)
    del logs[2, 1]
    found = against_baseline(logs, [1, 2])
    assert found[1].difference == pytest.approx(0.3)
    assert found[2].difference == pytest.approx(0.1)
    assert found[1].reach == pytest.approx(0.0, abs=1e-6)


def test_a_setting_that_never_met_the_baseline_is_left_out() -> None:
    assert set(against_baseline({(0, 0): 0.0, (0, 1): 0.1, (1, 2): 0.2}, [1, 2])) == {1}
    assert against_baseline({(0, 1): 0.1}, [1]) == {}
    assert against_baseline({(0, 0): 0.0, (0, 1): 0.1}, [1])[1].reach is None


def test_the_cell_that_is_out_of_line_is_named_and_by_how_much() -> None:
    logs = simulated(np.random.default_rng(4), 4, [0.1, 0.2, 0.0], noise=0.02)
    logs[2, 3] -= 0.5
    odd = odd_cell(logs, [1, 2, 3])
    assert odd is not None
    assert odd.cells == ((2, 3),)
    assert odd.off == pytest.approx(-0.5, abs=0.1)


def test_with_two_settings_either_of_the_two_cells_may_be_out_of_line() -> None:
    logs = simulated(np.random.default_rng(4), 8, [0.1], noise=0.01)
    logs[5, 1] += 1.0
    odd = odd_cell(logs, [1])
    assert odd is not None
    assert set(odd.cells) == {(5, 0), (5, 1)}
    assert abs(odd.off) == pytest.approx(1.0, abs=0.1)


def test_noise_alone_is_rarely_out_of_line_and_exact_fits_never_are() -> None:
    random = np.random.default_rng(9)
    cried = sum(odd_cell(simulated(random, 4, [0.1, 0.2]), [1, 2]) is not None for _ in range(1000))
    assert cried <= 20  # 1 % and three standard errors
    exact = simulated(np.random.default_rng(2), 4, [0.1, 0.2], noise=0.0)
    odd = odd_cell(exact, [1, 2])
    assert odd is None or abs(odd.off) < 1e-9
    assert odd_cell({(0, 0): 1.0, (0, 1): 2.0}, [1]) is None
