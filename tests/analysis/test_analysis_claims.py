"""Published claims are shown where the sweep turned their knob alone, and judged by the interval."""

from pathlib import Path

import pytest
from synthetic import KNOB, Recipe, write_sweep

from analysis.claims import Claim, ClaimRow, claims_shown, judge
from analysis.study import study_sweep

FASTER = Claim("faster", "a shorter step", "here", KNOB, "1", "32", "host_step_ms.mean", published=1.2)


def rows(path: Path, claim: Claim, factors: tuple[float, ...], values: tuple[str, str] = ("1", "32")) -> list[ClaimRow]:
    cells = [
        (value, 8, block, Recipe(factor=factor))
        for block, other in enumerate(factors)
        for value, factor in zip(values, (1.0, other), strict=True)
    ]
    return claims_shown(study_sweep(write_sweep(path, cells)).comparison, [claim])


@pytest.mark.parametrize(
    ("published", "low", "high", "verdict"),
    [
        (1.2, 1.1, 1.3, "reproduced"),
        (1.5, 1.1, 1.3, "direction only"),
        (1.2, 0.9, 1.3, "not reproduced"),
        (None, 1.1, 1.3, "reproduced"),
        (None, 0.9, 1.3, "not reproduced"),
        (1.2, None, None, "too few blocks"),
    ],
)
def test_the_verdict_follows_from_the_interval(
    published: float | None, low: float | None, high: float | None, verdict: str
) -> None:
    assert judge(published, low, high) == verdict


def test_a_ratio_is_better_over_worse(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, FASTER, (0.8, 0.81, 0.79))
    assert row.measured == pytest.approx(1.25, abs=0.02)
    assert row.low is not None
    assert row.high is not None
    assert row.low < 1.25 < row.high
    assert row.verdict == "reproduced"


def test_a_claim_about_another_value_or_more_users_is_not_spoken_of(tmp_path: Path) -> None:
    assert rows(tmp_path / "a", FASTER, (0.8, 0.8, 0.8), ("1", "8")) == []
    beyond = Claim("x", "x", "x", KNOB, "1", "32", "host_step_ms.mean", above=1024)
    assert rows(tmp_path / "b", beyond, (0.8, 0.8, 0.8)) == []


def test_an_effect_against_the_claim_is_not_reproduced(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, FASTER, (1.2, 1.21, 1.19))
    assert row.measured < 1
    assert row.verdict == "not reproduced"
