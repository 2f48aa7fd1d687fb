"""`loadgen run --stages`: one load through several levels, each a cell that every command can read."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import FormatError
from contracts.folder import SweepFolder, read_json, write_json
from harness.stages import Stage, stage_factors, stage_names
from loadgen.cli.parsing import stages

pytestmark = pytest.mark.stack
STAGES = "3:1,3-9:1.5,9:1,3:1"


def loadgen(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "loadgen.cli.main", *words], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    words = [
        "-m",
        "loadgen.paced",
        str(tmp_path_factory.mktemp("paced") / "truth"),
        "--first-ms",
        "20",
        "--gap-ms",
        "5",
    ]
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as paced:
        assert paced.stdout is not None
        yield f"http://127.0.0.1:{paced.stdout.readline().strip()}"
        paced.communicate()


@pytest.fixture(scope="module")
def folder(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("staged") / "s"
    words = ["--url", url, "--model", "m", "--isl", "20", "--osl", "6", "--warmup", "0.2", "--no-observe"]
    done = loadgen("run", *words, "--stages", STAGES, "--workers", "2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def cells(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads(loadgen("show", str(folder), "--json").stdout)["cells"])


def test_every_stage_is_a_cell_with_a_window_of_its_own(folder: Path, cells: list[dict[str, Any]]) -> None:
    infos = [cell.read() for cell in SweepFolder(folder).cell_folders()]
    assert [info.state for info in infos] == ["done"] * 4
    assert [cell["concurrency"] for cell in cells] == [3, 9, 9, 3]
    assert [cell["knobs"]["stage"] for cell in cells] == ["hold", "ramp", "hold", "hold2"]
    windows = [(info.phases.steady_start_ns, info.phases.steady_end_ns) for info in infos]
    assert all(start is not None and end is not None and start < end for start, end in windows)
    assert [start for start, _ in windows] == sorted(start for start, _ in windows if start)
    assert all(cell["metrics"]["ttft_ms"]["n"] > 3 for cell in cells)
    assert {cell["errors"] for cell in cells} == {0}


def test_as_many_are_in_flight_in_each_stage_as_it_says_and_a_ramp_has_its_mean(cells: list[dict[str, Any]]) -> None:
    first, ramp, second, last = (cell["metrics"]["in_flight_mean"] for cell in cells)
    assert 2 < first <= 3
    assert 3.5 < ramp < 8.5
    assert 7 < second <= 9
    assert 2 < last <= 3.01


def test_the_stages_share_their_load_and_each_counts_its_own_requests(
    folder: Path, cells: list[dict[str, Any]]
) -> None:
    first, *others = SweepFolder(folder).cell_folders()
    assert len(first.all_requests()) == 2
    assert not [path for other in others for path in other.all_requests()]
    for cell in cells:
        assert 0 < cell["requests_in_window"] < cell["requests"]


def test_a_ramp_is_said_not_to_be_steady_and_nothing_else_is_held_against_it(folder: Path) -> None:
    warnings = json.loads(loadgen("show", str(folder), "--json").stdout)["warnings"]
    ramp = {warning["code"] for warning in warnings if warning["cell"] == "002"}
    assert "ramp_window" in ramp
    assert not {"concurrency_not_reached", "warmup_short", "not_steady"} & ramp
    assert "ramp_window" not in {warning["code"] for warning in warnings if warning["cell"] != "002"}
    assert "blocks_incomplete" not in {warning["code"] for warning in warnings}


def test_report_and_compare_read_a_staged_run(folder: Path) -> None:
    assert loadgen("report", str(folder)).returncode == 0
    done = loadgen("compare", str(folder), str(folder), "--json")
    assert done.returncode == 0, done.stderr
    assert {row["concurrency"] for row in json.loads(done.stdout)["differences"]} == {3, 9}


def test_records_that_point_out_of_the_sweep_are_refused(folder: Path, tmp_path: Path) -> None:
    from analysis.tables import load_cell

    cell = SweepFolder(folder).cell_folders()[1]
    document = read_json(cell.json)
    target = SweepFolder(tmp_path).cell("002")
    target.path.mkdir(parents=True)
    write_json(target.json, {**document, "records": "../../elsewhere"})
    with pytest.raises(FormatError, match="elsewhere"):
        load_cell(target)


def test_stages_are_read_as_holds_and_ramps() -> None:
    assert stages("400:20,400-1024:30.5") == [Stage(400, 20), Stage(1024, 30.5, ramp_from=400)]


@pytest.mark.parametrize("text", ["", "400", "400:0", "0:10", "400:20,500-600:10", "1-2-3:4", "400:-1", "4:1e3"])
def test_stages_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        stages(text)


def test_stages_are_told_apart_only_where_the_users_do_not() -> None:
    assert stage_factors([]) == stage_factors([Stage(1, 1), Stage(2, 1)]) == {}
    up_and_down = [Stage(1, 1), Stage(2, 1), Stage(1, 1)]
    assert stage_names(up_and_down) == ["hold", "hold", "hold2"]
    assert stage_factors(up_and_down) == {"stage": ["hold", "hold2"]}


def test_stages_with_another_length_of_the_window_are_refused(url: str) -> None:
    done = loadgen("run", "--url", url, "--model", "m", "--stages", "2:1", "--duration", "3")
    assert done.returncode == 2
    assert "--stages says how long" in done.stderr
