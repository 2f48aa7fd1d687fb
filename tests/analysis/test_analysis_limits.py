"""What limits a cell is named from planted CPU, step times and GIL shares."""

from pathlib import Path
from typing import Any

import pytest
from synthetic import Recipe, write_sweep

from analysis.study import study_sweep

SHARED = {"executor_loop": 550, "rpc_server_thread": 300}


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        (Recipe(executor_cpu=0.9), "executor_loop"),
        (Recipe(executor_cpu=0.6, gil={"executor_loop": 850}), "executor_loop"),
        (Recipe(executor_cpu=0.6, gil=SHARED), "gil"),
        (Recipe(executor_cpu=0.2, device_ms=9.5), "device"),
        (Recipe(executor_cpu=0.4, proxy_cpu=0.95, gil={"executor_loop": 300}), "front_end"),
        (Recipe(executor_cpu=0.1, device_ms=9.5, proxy_cpu=0.95, in_steps=3), "front_end"),
        (Recipe(executor_cpu=0.1, device_ms=9.5, proxy_cpu=0.95), "device"),
        (Recipe(load_cpu=0.97), "client"),
        (Recipe(executor_cpu=0.2, gil={"executor_loop": 100}), "unclear"),
    ],
)
def test_the_limit_is_named(tmp_path: Path, recipe: Recipe, name: str) -> None:
    (cell,) = study_sweep(write_sweep(tmp_path, [("1", 8, 0, recipe)])).cells
    assert cell.limit.name == name


IDLE_LOOP: dict[str, Any] = {"executor_cpu": 0.3, "gil": {"executor_loop": 200}}


@pytest.mark.parametrize(
    ("recipe", "name", "sentence"),
    [
        (
            Recipe(**IDLE_LOOP, further_cpu={"frontend1": 0.4, "frontend2": 0.9}),
            "front_end",
            "The front end frontend2 used",
        ),
        (
            Recipe(**IDLE_LOOP, one_process=True, further_cpu={"frontend1": 0.9}),
            "front_end",
            "The front end frontend1 used",
        ),
        (
            Recipe(**IDLE_LOOP, further_cpu={"postproc0": 0.2, "postproc1": 0.93}),
            "post_processing",
            "Post-processing process postproc1 used 0.93 of a core while the executor loop burned only 0.30",
        ),
        (
            Recipe(**IDLE_LOOP, proxy_cpu=0.95, further_cpu={"postproc0": 0.86}),
            "front_end",
            "The front end used 0.95",
        ),
        (Recipe(**IDLE_LOOP, further_cpu={"frontend1": 0.3, "postproc0": 0.5}), "unclear", "post-processing 0.50"),
    ],
)
def test_a_further_front_end_or_a_post_processing_process_that_is_the_limit_is_named(
    tmp_path: Path, recipe: Recipe, name: str, sentence: str
) -> None:
    (cell,) = study_sweep(write_sweep(tmp_path, [("1", 8, 0, recipe)])).cells
    assert cell.limit.name == name
    assert sentence in cell.limit.sentence


def test_the_sentence_carries_the_figures(tmp_path: Path) -> None:
    (cell,) = study_sweep(write_sweep(tmp_path, [("1", 8, 0, Recipe(executor_cpu=0.6, gil=SHARED))])).cells
    assert cell.limit.sentence == (
        "The GIL was held 85% of the time, 55% by the executor loop and 30% by others; "
        "a turn takes 10.0 ms against a device step of 3.0 ms."
    )


def test_the_busiest_of_several_load_processes_counts(tmp_path: Path) -> None:
    (cell,) = study_sweep(write_sweep(tmp_path, [("1", 8, 0, Recipe(second_load_cpu=0.97))])).cells
    assert cell.limit is not None
    assert cell.limit.name == "client"


def test_one_process_is_said_to_share_one_gil(tmp_path: Path) -> None:
    recipe = Recipe(executor_cpu=0.6, proxy_cpu=0.35, gil=SHARED, one_process=True)
    (cell,) = study_sweep(write_sweep(tmp_path, [("1", 8, 0, recipe)])).cells
    assert cell.limit.name == "gil"
    assert "share one process and one GIL" in cell.limit.sentence
