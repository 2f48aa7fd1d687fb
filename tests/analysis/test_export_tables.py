"""Tables for spreadsheets and data frames: nothing lost on the way, nothing from a server run as a formula."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from synthetic import KNOB, Recipe, write_sweep

from analysis.export.frames import TABLES, table, to_csv, to_parquet
from analysis.metrics import measure
from analysis.slo import parse_slo
from analysis.tables import SweepTables, load_sweep
from contracts.folder import Phases, SweepFolder

SAMPLE = Path(__file__).parents[2] / "results" / "sample"


@pytest.fixture(scope="module")
def sample() -> SweepTables:
    return load_sweep(SAMPLE)


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_its_cell_and_knobs_and_survives_both_formats(sample: SweepTables, name: str) -> None:
    cells = sample.per_cell[:4]
    frame = table(cells, name)
    assert list(frame.columns[:4]) == ["cell", "block", "concurrency", f"knob.{KNOB}"]
    assert frame["cell"].unique().tolist() == ["001", "002", "003", "004"]
    pd.testing.assert_frame_equal(pd.read_parquet(io.BytesIO(to_parquet(frame))), frame)
    read = pd.read_csv(io.StringIO(to_csv(frame)), dtype={"cell": "str"})
    assert read.columns.tolist() == frame.columns.tolist()
    assert len(read) == len(frame)
    column = {"requests": "ttft_ms", "cells": "ttft_ms.p99", "steps": "gil_wait_ms"}[name]
    assert read[column].tolist() == pytest.approx(frame[column].tolist())


def test_requests_and_steps_are_all_there(sample: SweepTables) -> None:
    assert len(table(sample.per_cell, "requests")) == sum(len(cell.requests) for cell in sample.per_cell)
    assert len(table(sample.per_cell, "steps")) == sum(len(cell.steps) for cell in sample.per_cell)


def test_a_cells_row_has_its_metrics(sample: SweepTables) -> None:
    row = table(sample.per_cell[:1], "cells", parse_slo("ttft_ms:p95<50")).iloc[0]
    metrics = measure(sample.per_cell[0])
    assert metrics.ttft_ms is not None
    assert row["ttft_ms.p99"] == metrics.ttft_ms.p99
    assert row["req_s"] == metrics.req_s
    assert row["gil_wait_ms_per_step.mean"] == metrics.gil_wait_ms_per_step
    assert row["gil_held_fraction.executor_loop"] == metrics.gil_held_executor
    assert 0 < row["slo_share.ttft_ms:p95<50"] <= 1


def test_a_broken_cell_has_a_row_and_the_same_columns(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 1, Recipe()), ("32", 8, 1, Recipe())])
    folder = SweepFolder(tmp_path).cell_folders()[0]
    for file in folder.path.glob("*.arrow"):
        file.unlink()
    folder.write(replace(folder.read(), state="failed", phases=Phases(), error="died"))
    whole = table(load_sweep(tmp_path).per_cell, "cells")
    assert whole["error"].tolist()[0] == "died"
    assert pd.isna(whole["ttft_ms.p99"].tolist()[0])
    alone = table(load_sweep(tmp_path).per_cell[:1], "cells")
    assert set(alone.columns) == set(whole.columns)
    assert alone.dtypes.to_dict() == whole.dtypes.to_dict()


def test_what_a_server_said_is_no_formula_and_stays_in_its_field(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 1, Recipe(fail_every=2, error='=HYPERLINK("http://x","a")\n,b'))])
    frame = table(load_sweep(tmp_path).per_cell, "requests")
    rows = list(csv.DictReader(io.StringIO(to_csv(frame))))
    assert len(rows) == len(frame)
    said = {row["error"] for row in rows if row["error"]}
    assert said == {'\'=HYPERLINK("http://x","a")\n,b'}
    assert set(frame["error"].dropna()) == {'=HYPERLINK("http://x","a")\n,b'}


def test_negative_numbers_are_no_formulas(sample: SweepTables) -> None:
    frame = pd.DataFrame({"x_ms": [-1.5], "text": ["-1.5"]})
    assert to_csv(frame) == "x_ms,text\n-1.5,'-1.5\n"
