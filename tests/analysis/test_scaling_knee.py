"""The knee: throughput drawn from a scalability law whose knee is known, and growth whose slope is."""

import re
from pathlib import Path

import numpy as np
import pytest
from synthetic import Recipe, write_sweep

from analysis.plan import Setting
from analysis.report.page import write_report
from analysis.scaling.knee import find_knee, fit_usl, growths, knee_of, usl
from analysis.study import study_sweep

SETTING = Setting.of({"KNOB": "1"})


def drawn(
    users: list[int], alpha: float, beta: float, noise: float = 0.0, blocks: int = 3
) -> list[tuple[int, int, float]]:
    rng = np.random.default_rng(4)
    return [
        (n, block, usl(n, 50.0, alpha, beta) * (1 + noise * float(rng.standard_normal())))
        for block in range(blocks)
        for n in users
    ]


@pytest.mark.parametrize(("alpha", "beta"), [(0.02, 1e-5), (0.005, 2e-6), (0.0, 1e-4), (0.01, 0.0)])
def test_the_knee_is_the_concurrency_of_greatest_power(alpha: float, beta: float) -> None:
    users = np.arange(1, 3000)
    power = np.array([usl(n, 1.0, alpha, beta) ** 2 / n for n in users])
    assert knee_of(alpha, beta) == pytest.approx(users[power.argmax()], abs=1)


def test_a_scalability_law_is_recovered_from_noisy_points() -> None:
    law = fit_usl([(n, x) for n, _, x in drawn([16, 32, 64, 128, 256, 512], 0.02, 1e-5, noise=0.02)])
    assert law.rate == pytest.approx(50, rel=0.1)
    assert law.knee == pytest.approx(knee_of(0.02, 1e-5), rel=0.2)
    assert law.residual < 0.05
    assert law.holds


def test_a_knee_in_the_range_has_a_span_over_the_blocks() -> None:
    knee = find_knee(SETTING, drawn([16, 32, 64, 128, 256], 0.02, 1e-5, noise=0.01))
    assert knee.at is not None
    assert knee.low is not None
    assert knee.high is not None
    assert knee.low <= knee.at * 1.05
    assert knee.high >= knee.at * 0.95
    assert "over 3 blocks" in knee.sentence


def test_no_knee_in_the_range_is_an_answer() -> None:
    beyond = find_knee(SETTING, drawn([16, 32, 64, 128], 0.002, 0.0))
    assert beyond.at is None
    assert beyond.sentence.startswith("no knee in the range 16 to 128; continued, the law has it at")
    below = find_knee(SETTING, drawn([256, 512, 1024, 2048], 0.02, 0.0))
    assert below.at is None
    assert "it lies below" in below.sentence


def test_two_concurrencies_make_no_knee() -> None:
    assert find_knee(SETTING, drawn([64, 256], 0.02, 0.0)).sentence == "2 concurrencies; a knee takes three or more"


def test_throughput_that_obeys_no_scalability_law_has_no_knee() -> None:
    rough = [(n, 0, x) for n, x in zip([16, 32, 64, 128, 256], [100.0, 900.0, 150.0, 2000.0, 90.0], strict=True)]
    knee = find_knee(SETTING, rough)
    assert knee.at is None
    assert "does not hold" in knee.sentence
    assert knee.law is not None
    assert not knee.law.holds


def test_growth_is_the_slope_of_logarithms_within_blocks(tmp_path: Path) -> None:
    cells = [
        ("1", users, block, Recipe(users=users, ttft_ms=100.0 * (users / 8) ** 1.5))
        for block in (0, 1)
        for users in (8, 16)
    ]
    study = study_sweep(write_sweep(tmp_path, cells))
    (ttft,) = [one for one in growths(study.settings[0], study.cells) if one.name == "ttft_ms.p50"]
    assert (ttft.start, ttft.end, ttft.blocks) == (8, 16, 2)
    assert ttft.slope == pytest.approx(1.5, abs=0.01)
    assert ttft.faster


def test_a_report_draws_throughput_with_its_knee_without_any_look_at_the_gil(tmp_path: Path) -> None:
    def recipe(users: int) -> Recipe:
        e2e_ms = users / usl(users, 1000.0, 0.02, 1e-3) * 1e3 * 11
        return Recipe(users=users, ttft_ms=0.3 * e2e_ms, itl_ms=0.07 * e2e_ms, window_s=2.0)

    sweep = write_sweep(tmp_path / "sweep", [("1", n, 0, recipe(n)) for n in (4, 8, 16, 32, 64)])
    text = write_report(sweep, tmp_path / "report.html").read_text(encoding="utf-8")
    expected = knee_of(0.02, 1e-3)
    (told,) = set(re.findall(r"knee at ([\d,]+) in flight", text))
    assert int(told) == pytest.approx(expected, rel=0.15)
    assert "Throughput and its knee" in text
    assert "it has no looks at the GIL" in text or "too short for a steady state" in text
