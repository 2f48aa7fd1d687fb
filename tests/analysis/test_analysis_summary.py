"""The JSON of `loadgen show` is a contract; the sentences are what people read first."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import Recipe, write_sweep

from analysis.study import study_sweep
from analysis.summary import summarise, summary_of
from analysis.verdict import verdict_table
from contracts.folder import Phases, SweepFolder

GOLDEN = Path(__file__).parent / "golden" / "show_keys.txt"


def sweep(path: Path, count: int = 3) -> Path:
    """Setting 32 takes 0.8 of the time at 8 in flight and makes no difference at 4."""
    return write_sweep(
        path,
        [
            (
                value,
                concurrency,
                block,
                Recipe(factor={("32", 8): 0.8, ("32", 4): 1 + wobble}.get((value, concurrency), 1.0)),
            )
            for block, wobble in zip(range(count), (0.01, -0.01, 0.005), strict=False)
            for value in ("1", "32")
            for concurrency in (4, 8)
        ],
    )


def keys(value: Any, prefix: str = "") -> set[str]:
    """Every path of keys in a document; what is named by data (knobs, threads, blocks) stands as *."""
    if isinstance(value, list):
        return {path for item in value for path in keys(item, f"{prefix}[]")} or {f"{prefix}[]"}
    if not isinstance(value, dict):
        return {prefix}
    by_data = prefix.rsplit(".", 1)[-1] in {"knobs", "gil_held_fraction", "block_ratios", "baseline", "errors_by_kind"}
    return {path for name, inner in value.items() for path in keys(inner, f"{prefix}.{'*' if by_data else name}")}


def test_the_document_has_the_keys_of_the_golden_file(tmp_path: Path) -> None:
    found = sorted(keys(summarise(sweep(tmp_path))))
    assert found == GOLDEN.read_text(encoding="utf-8").split()


def test_several_processes_say_what_one_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_sweep(tmp_path, [(value, 8, 0, Recipe(looks=True)) for value in ("1", "32")])
    alone = summary_of(study_sweep(path))
    monkeypatch.setattr("analysis.study.WORTH_PROCESSES", 2)
    together = study_sweep(path, processes=2)
    assert summary_of(together) == alone
    assert not any(len(cell.tables.gil) for cell in together.cells), "the looks travelled between processes"


def test_a_broken_sweep_gives_valid_json_without_nan(tmp_path: Path) -> None:
    sweep(tmp_path, 1)
    for folder in SweepFolder(tmp_path).cell_folders()[:2]:
        for file in folder.path.glob("*.arrow"):
            file.unlink()
        folder.write(replace(folder.read(), state="failed", phases=Phases(), error="died"))
    document = json.loads(json.dumps(summarise(tmp_path), allow_nan=False))
    assert document["cells"][0]["metrics"]["ttft_ms"] is None
    assert document["cells"][0]["error"] == "died"


def test_numbers_in_the_document_are_the_metrics(tmp_path: Path) -> None:
    (cell, *_) = summarise(write_sweep(tmp_path, [("1", 8, 0, Recipe())]))["cells"]
    assert (cell["requests"], cell["errors"], cell["errors_by_kind"]) == (200, 0, {})
    assert cell["metrics"]["ttft_ms"]["p50"] == 100
    assert cell["metrics"]["req_s"] == 40


def test_warnings_carry_their_remedy(tmp_path: Path) -> None:
    (warning, *_) = summarise(write_sweep(tmp_path, [("1", 8, 0, Recipe(fail_every=5))]))["warnings"]
    assert set(warning) == {"code", "detail", "cell", "remedy"}
    assert warning["code"] == "requests_failed"


def test_the_verdict_tells_the_effect_and_where_there_is_none(tmp_path: Path) -> None:
    effect, holders = verdict_table(study_sweep(sweep(tmp_path))).sentences
    assert "at 8 in flight output throughput is 25% higher" in effect
    assert "at 4 in flight there is no clear difference" in effect
    assert holders.startswith("At 8 in flight the GIL was held 80% of the time with 1 (executor_loop 60%")


def test_the_verdict_is_refused_with_two_blocks(tmp_path: Path) -> None:
    assert "there is no verdict" in verdict_table(study_sweep(sweep(tmp_path, 2))).sentences[0]


def test_the_short_table_has_a_row_a_setting_and_concurrency(tmp_path: Path) -> None:
    table = verdict_table(study_sweep(sweep(tmp_path)))
    assert [row[:3] for row in table.rows] == [
        ("4", "32", "3"),
        ("8", "32", "3"),
    ]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.rows[1][3].endswith("better")


def test_a_sweep_in_which_nothing_finished_says_so(tmp_path: Path) -> None:
    assert verdict_table(study_sweep(write_sweep(tmp_path, []))).sentences == (
        "No cell of this sweep finished (0 began), so there is nothing to compare.",
    )


def test_a_single_setting_has_nothing_to_compare(tmp_path: Path) -> None:
    (first, *_) = verdict_table(study_sweep(write_sweep(tmp_path, [("1", 8, 0, Recipe())]))).sentences
    assert "nothing to compare it with" in first
