"""`loadgen export`: what it writes where, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import Recipe, write_sweep

from contracts.folder import Phases, SweepFolder
from loadgen.cli.export import SUFFIXES
from loadgen.cli.main import main

SAMPLE = Path(__file__).parents[2] / "results" / "sample"


def export(folder: Path, *words: str) -> int:
    return main(["export", str(folder), *words])


@pytest.mark.parametrize("form", SUFFIXES)
def test_one_cell_goes_to_standard_output(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(SAMPLE, "--format", form, "--cell", "003") == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)


def test_all_cells_go_into_a_folder_one_file_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "exports"
    assert export(SAMPLE, "--format", "speedscope", "--out", str(out)) == 0
    written = sorted(out.iterdir())
    assert [path.name for path in written[:2]] == ["001-b1-c256-32.speedscope.json", "002-b1-c256-1.speedscope.json"]
    assert len(written) == 12
    assert sorted(capsys.readouterr().out.split()) == [str(path) for path in written]


@pytest.mark.parametrize(
    ("form", "start"), [("csv", b"cell,block,"), ("parquet", b"PAR1"), ("openmetrics", b"# TYPE loadgen_")]
)
def test_all_cells_go_into_one_file_of_a_tabular_format(form: str, start: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export(SAMPLE, "--format", form, "--out", str(out)) == 0
    assert out.read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_csv_of_one_cell_has_its_steps_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert export(SAMPLE, "--format", "csv", "--table", "steps", "--cell", "002-b1-c256-1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "iteration" in lines[0]
    assert {line.split(",")[0] for line in lines[1:]} == {"002"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "vllm"], "choose one with --cell"),
        (["--format", "parquet"], "give --out"),
        (["--format", "csv", "--cell", "999"], "has 001, 002"),
        (["--format", "vllm", "--table", "steps"], "--table goes with"),
        (["--format", "vllm", "--out", str(SAMPLE / "sweep.json")], "among the records"),
        (["--format", "vllm", "--out", str(SAMPLE / "cells")], "among the records"),
        (["--format", "csv", "--out", "/no/such/folder/x.csv"], "no folder"),
        (["--format", "csv", "--out", "/tmp"], "is a folder"),
        (["--format", "vllm", "--out", __file__], "need a folder"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_way_out(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (SAMPLE / "sweep.json").read_bytes()
    assert export(SAMPLE, *words) == 2
    found = capsys.readouterr()
    assert message in found.err
    assert not found.out
    assert (SAMPLE / "sweep.json").read_bytes() == before


def test_a_folder_without_a_sweep_or_without_cells_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(tmp_path, "--format", "csv") == 2
    write_sweep(tmp_path, [])
    assert export(tmp_path, "--format", "csv") == 2
    assert "no cell yet" in capsys.readouterr().err


def test_a_cell_with_nothing_to_export_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sweep(tmp_path / "sweep", [("1", 8, 1, Recipe()), ("32", 8, 1, Recipe())])
    broken = SweepFolder(folder).cell_folders()[0]
    broken.write(replace(broken.read(), state="failed", phases=Phases()))
    out = tmp_path / "out"
    assert export(folder, "--format", "aiperf", "--out", str(out)) == 1
    assert [path.name for path in out.iterdir()] == ["001-32-c8-b1.aiperf.json"]
    assert "left out: cell 000-1-c8-b1 (failed) has no steady window" in capsys.readouterr().err


def test_the_objective_of_the_sweep_is_used_unless_another_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_sweep(tmp_path, [("1", 8, 1, Recipe())], document={"plan": {"slo": "ttft_ms<101"}})
    for words, goodput in ([], 40), (["--slo", "ttft_ms<99"], 0):
        assert export(folder, "--format", "vllm", *words) == 0
        assert json.loads(capsys.readouterr().out)["request_goodput"] == goodput
