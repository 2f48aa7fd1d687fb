import math

import numpy as np
import pytest

from analysis.compare import MEASURES
from analysis.plan import Setting
from analysis.versus import Difference, Gate, welch
from contracts.errors import UsageError


def difference(low: float | None, high: float | None, name: str = "ttft_ms.p99") -> Difference:
    measure = next(one for one in MEASURES if one.name == name)
    ratio = 1.0 if low is None or high is None else math.sqrt(low * high)
    return Difference(measure, Setting.of({"A": "1"}), 8, 3, 3, 1.0, ratio, ratio, low, high, "")


def test_the_intervals_of_two_samples_of_one_distribution_hold_one_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(1000):
        base, other = np.exp(rng.normal(4, 0.1, 5)), np.exp(rng.normal(4, 0.1, 5))
        _, low, high = welch(base, other)
        assert low is not None
        assert high is not None
        held += low <= 1 <= high
    assert 920 <= held <= 980


def test_a_planted_effect_is_found_and_its_ratio_is_right() -> None:
    rng = np.random.default_rng(3)
    base, other = np.exp(rng.normal(4, 0.02, 6)), 1.2 * np.exp(rng.normal(4, 0.02, 6))
    ratio, low, high = welch(base, other)
    assert ratio == pytest.approx(1.2, rel=0.05)
    assert low is not None
    assert low > 1.1
    assert high is not None


def test_fewer_than_three_cells_on_a_side_have_a_ratio_and_no_interval() -> None:
    ratio, low, high = welch([1.0, 1.0, 1.0], [2.0, 2.0])
    assert (ratio, low, high) == (pytest.approx(2.0), None, None)


@pytest.mark.parametrize(
    ("text", "low", "high", "trips"),
    [
        ("ttft_ms.p99 > +5%", 1.06, 1.2, True),
        ("ttft_ms.p99 > +5%", 1.04, 1.2, False),
        ("ttft_ms.p99>5%", 1.06, 1.2, True),
        ("ttft_ms.p99 < -10%", 0.5, 0.89, True),
        ("ttft_ms.p99 < -10%", 0.5, 0.91, False),
        ("ttft_ms.p99 > +5%", None, None, False),
        ("ttft_ms.p50 > +5%", 1.06, 1.2, False),
    ],
)
def test_a_gate_trips_only_when_the_whole_interval_lies_beyond_it(
    text: str, low: float | None, high: float | None, trips: bool
) -> None:
    assert Gate.parse(text).trips(difference(low, high)) is trips


@pytest.mark.parametrize("text", ["", "ttft", "ttft_ms.p99 > 5", "ttft_ms.p98 > 5%", "ttft_ms.p99 >= 5%"])
def test_a_gate_that_cannot_be_read_names_the_measures(text: str) -> None:
    with pytest.raises(UsageError, match=r"ttft_ms\.p99"):
        Gate.parse(text)
