"""Paired comparison within blocks: planted effects are found, absent ones are not, few blocks give no verdict."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import KNOB, Recipe, write_sweep

from analysis.compare import Effect, ratio_interval
from analysis.study import study_sweep
from contracts.folder import SweepFolder


def blocks(factors: Sequence[tuple[float, float]]) -> list[tuple[str, int, int, Recipe]]:
    """Cells of baseline 1 and setting 32 in one block each; `factors` are (baseline, other) time factors a block."""
    return [
        (value, 8, block, Recipe(factor=factor))
        for block, pair in enumerate(factors)
        for value, factor in zip(("1", "32"), pair, strict=True)
    ]


def effect_of(path: Path, factors: Sequence[tuple[float, float]], measure: str = "ttft_ms.p50") -> Effect:
    study = study_sweep(write_sweep(path, blocks(factors)))
    (setting,) = study.comparison.settings
    return study.comparison.effect(measure, setting, 8)


def test_a_planted_effect_is_found_through_drift_between_blocks(tmp_path: Path) -> None:
    effect = effect_of(tmp_path, [(1.0, 0.8), (1.5, 1.21), (2.0, 1.59)])
    assert effect.ratio == pytest.approx(0.8, abs=0.01)
    assert effect.low < 0.8 < effect.high
    assert effect.verdict == "better"


def test_more_throughput_is_better_and_more_latency_worse(tmp_path: Path) -> None:
    study = study_sweep(write_sweep(tmp_path, blocks([(1.0, 1.2), (1.0, 1.21), (1.0, 1.19)])))
    verdicts = {effect.measure.name: effect.verdict for effect in study.comparison.effects}
    assert verdicts["output_tok_s"] == verdicts["ttft_ms.p99"] == verdicts["host_step_ms.mean"] == "worse"


def test_noise_without_an_effect_gives_no_verdict(tmp_path: Path) -> None:
    effect = effect_of(tmp_path, [(1.0, 1.1), (1.0, 0.9), (1.0, 1.02), (1.0, 0.97)])
    assert effect.verdict == "no clear difference"


def test_two_blocks_show_numbers_and_refuse_a_verdict(tmp_path: Path) -> None:
    effect = effect_of(tmp_path, [(1.0, 0.8), (1.0, 0.81)])
    assert effect.ratio == pytest.approx(0.805, abs=0.001)
    assert (effect.low, effect.high) == (None, None)
    assert effect.verdict == "too few blocks"


def test_a_cause_is_lower_or_higher_but_never_better(tmp_path: Path) -> None:
    cells = [(value, 8, block, Recipe(messages_a_request=rate))
             for block in range(3) for value, rate in (("1", 1.0), ("32", 0.25))]  # fmt: skip
    study = study_sweep(write_sweep(tmp_path, cells))
    effect = study.comparison.effect("rpc_messages_per_request", study.comparison.settings[0], 8)
    assert effect.verdict == "lower"
    assert effect.ratio == pytest.approx(0.25, rel=0.03)


def test_only_blocks_with_both_cells_finished_count(tmp_path: Path) -> None:
    write_sweep(tmp_path, blocks([(1.0, 0.8)] * 3))
    folder = SweepFolder(tmp_path).cell_folders()[-1]
    folder.write(replace(folder.read(), state="failed"))
    study = study_sweep(tmp_path)
    effect = study.comparison.effect("req_s", study.comparison.settings[0], 8)
    assert effect.blocks == (0, 1)
    assert study.comparison.incomplete == (f"{KNOB}=32 at 8: 2 of 3 blocks complete",)


def test_the_baseline_named_in_sweep_json_is_used(tmp_path: Path) -> None:
    write_sweep(tmp_path, blocks([(1.0, 0.8)]), document={"baseline": {KNOB: "32"}})
    study = study_sweep(tmp_path)
    assert study.comparison.baseline.label == f"{KNOB}=32"
    assert [setting.short for setting in study.comparison.settings] == ["1"]


def test_settings_keep_the_order_of_the_plan(tmp_path: Path) -> None:
    cells = [(value, 8, 0, Recipe()) for value in ("1", "8", "16", "32", "64")]
    assert [setting.short for setting in study_sweep(write_sweep(tmp_path, cells)).settings] == [
        "1", "8", "16", "32", "64",
    ]  # fmt: skip


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    random = np.random.default_rng(5)
    held = 0
    for _ in range(1000):
        _, low, high = ratio_interval(np.exp(np.log(0.9) + 0.05 * random.standard_normal(5)).tolist())
        held += low <= 0.9 <= high
    assert 920 <= held <= 980
