"""A trace replayed against the reference stack, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.arrow import read_table
from contracts.folder import SweepFolder
from contracts.records import REQUESTS

pytestmark = pytest.mark.stack

LINES = [
    {"timestamp": 40 * n, "input_length": 600 + n, "output_length": 1 + n % 4, "hash_ids": [0, n + 1]}
    for n in range(50)
]


def sweep(folder: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "loadgen.cli.main", "sweep", "--set", "TLLM_RPC_SUBMIT_BATCH_MAX=1"]
    command += ["--repeats", "1", "--concurrency", "16", "--no-observe", "--out", str(folder / "out"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def write(path: Path, *more: str) -> Path:
    path.write_text("\n".join((*map(json.dumps, LINES), *more)) + "\n")
    return path


def test_a_window_holds_the_whole_trace_and_the_report_names_it(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl")
    ended = sweep(
        tmp_path, "--drive", "http", "--trace", trace, "--arrival", "trace", "--time-scale", "2", "--workers", "2"
    )
    assert ended.returncode == 0, ended.stderr
    folder = SweepFolder(tmp_path / "out")
    (cell,) = folder.cells.iterdir()
    phases = json.loads((cell / "cell.json").read_text())["phases"]
    rows = [row for path in cell.glob("requests*.arrow") for row in read_table(path, REQUESTS).to_pylist()]
    assert sorted(row["trace_line"] for row in rows) == list(range(1, 51))
    assert all(phases["steady_start_ns"] <= row["sent_ns"] <= phases["steady_end_ns"] for row in rows)
    assert {row["error_kind"] for row in rows} == {None}
    plan = json.loads(folder.json.read_text())["plan"]
    assert (plan["trace"]["path"], plan["trace"]["format"], plan["trace"]["time_scale"]) == (
        str(trace),
        "mooncake",
        2.0,
    )
    assert "trace t.jsonl (mooncake), at its own times x 2.0" in (tmp_path / "out" / "report.html").read_text()


def test_a_bad_line_late_in_a_trace_is_told_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    good = [json.dumps(LINES[0])] * 100
    trace = tmp_path / "t.jsonl"
    trace.write_text("\n".join((*good, *good, "broken", *good)))
    ended = sweep(tmp_path, "--drive", "rpc", "--trace", trace, "--warmup", "0")
    assert ended.returncode == 1
    assert f"{trace}:201: not JSON" in ended.stderr
    (cell,) = (tmp_path / "out" / "cells").iterdir()
    assert read_table(cell / "requests.arrow", REQUESTS).num_rows == 200


def test_a_bad_line_among_the_first_starts_nothing(tmp_path: Path) -> None:
    ended = sweep(tmp_path, "--trace", write(tmp_path / "t.jsonl", "broken"), "--drive", "rpc")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "t.jsonl:51: not JSON" in ended.stderr
    assert not (tmp_path / "out").exists()
