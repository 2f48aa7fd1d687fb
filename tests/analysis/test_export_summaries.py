"""Cells as other load testers would have summarised them: keys from their sources, numbers known beforehand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from synthetic import Recipe, write_sweep

from analysis.export.aiperf import PERCENTILES, aiperf_export
from analysis.export.openmetrics import openmetrics
from analysis.export.vllm import vllm_result
from analysis.metrics import measure
from analysis.slo import parse_slo
from analysis.tables import CellTables, load_cell, load_sweep
from contracts.errors import UsageError
from contracts.folder import Phases, SweepFolder

GOLDEN = Path(__file__).parent / "golden"
SAMPLE = Path(__file__).parents[2] / "results" / "sample"
EXACT = Recipe()  # 8 users; TTFT 100 ms, TPOT 10 ms, 11 tokens: a request takes 200 ms, 40 end in a second


def golden(name: str) -> list[list[str]]:
    lines = (GOLDEN / name).read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


def vllm(path: Path, objective: str | None = None) -> dict[str, Any]:
    """Export the first cell, by way of JSON."""
    sweep, folder = load_sweep(path), SweepFolder(path).cell_folders()[0]
    document = vllm_result(sweep.per_cell[0], sweep.info, folder, parse_slo(objective) if objective else ())
    return dict(json.loads(json.dumps(document, allow_nan=False)))


def aiperf(path: Path, objective: str | None = None) -> dict[str, Any]:
    sweep = load_sweep(path)
    document = aiperf_export(sweep.per_cell[0], sweep.info, parse_slo(objective) if objective else ())
    return dict(json.loads(json.dumps(document, allow_nan=False)))


def exact(path: Path, recipe: Recipe = EXACT) -> Path:
    return write_sweep(path, [("1", 8, 1, recipe)])


def without_window(path: Path) -> CellTables:
    exact(path)
    (folder,) = SweepFolder(path).cell_folders()
    folder.write(replace(folder.read(), state="failed", phases=Phases()))
    return load_cell(folder)


def test_vllm_has_the_keys_of_the_original_and_the_knobs_as_metadata() -> None:
    found = list(vllm(SAMPLE))
    assert [name for name in found if not name.startswith("knob.")] == [
        name for name, _ in golden("export_vllm_keys.txt")
    ]
    assert found[0] == "knob.TLLM_RPC_SUBMIT_BATCH_MAX"


def test_vllm_numbers_are_in_the_units_of_the_original(tmp_path: Path) -> None:
    found = vllm(exact(tmp_path))
    assert found["duration"] == 4.0
    assert found["latencies"][0] == pytest.approx(0.2)
    assert found["median_ttft_ms"] == pytest.approx(100)
    assert found["p99_tpot_ms"] == pytest.approx(10)
    assert found["mean_itl_ms"] == pytest.approx(10)
    assert found["mean_e2el_ms"] == pytest.approx(200)
    assert found["std_ttft_ms"] == pytest.approx(0, abs=1e-6)
    assert found["max_concurrent_requests"] == 8
    assert found["max_output_tokens_per_s"] == 440
    assert found["request_goodput"] is None
    assert found["queue_times"] is None


def test_vllm_rates_are_counts_over_the_duration(tmp_path: Path) -> None:
    found = vllm(exact(tmp_path))
    assert found["completed"] == 160
    assert found["request_throughput"] == found["completed"] / found["duration"] == 40
    assert found["output_throughput"] == found["total_output_tokens"] / found["duration"] == 440
    assert found["total_token_throughput"] == 40 * 4096 + 440


def test_vllm_goodput_is_the_objectives(tmp_path: Path) -> None:
    exact(tmp_path)
    assert vllm(tmp_path, "ttft_ms<101,tpot_ms<11")["request_goodput"] == 40
    assert vllm(tmp_path, "ttft_ms<99")["request_goodput"] == 0


def test_failures_are_counted_and_have_no_latency(tmp_path: Path) -> None:
    exact(tmp_path, replace(EXACT, fail_every=5))
    found = vllm(tmp_path)
    assert found["failed"] == 32
    assert found["completed"] == 128
    assert found["latencies"].count(0.0) == 32
    assert found["mean_ttft_ms"] == pytest.approx(100)
    (error,) = aiperf(tmp_path)["error_summary"]
    assert error == {"error_details": {"code": 500, "type": "http_500", "message": "broken pipe"}, "count": 32}


def test_a_cell_without_a_success_has_nulls_and_no_latency_blocks(tmp_path: Path) -> None:
    exact(tmp_path, replace(EXACT, fail_every=1))
    assert vllm(tmp_path)["mean_ttft_ms"] is None
    assert "time_to_first_token" not in aiperf(tmp_path)


def test_a_cell_without_a_window_has_no_summary(tmp_path: Path) -> None:
    cell = without_window(tmp_path)
    info = load_sweep(tmp_path).info
    with pytest.raises(UsageError, match="no steady window"):
        aiperf_export(cell, info)
    with pytest.raises(UsageError, match="no steady window"):
        vllm_result(cell, info, SweepFolder(tmp_path).cell_folders()[0])


def test_aiperf_blocks_have_the_names_units_and_statistics_of_the_schema() -> None:
    known = {name: (kind, unit) for name, kind, unit in golden("export_aiperf_blocks.txt")}
    ranks = [f"p{percent}" for percent in PERCENTILES]
    full = {"unit", "avg", "min", "max", *ranks, "std", "count", "sum"}
    document = aiperf(SAMPLE, "ttft_ms<50")
    assert document["schema_version"] == "1.5"
    assert set(document) <= set(known)
    blocks = {name: block for name, block in document.items() if known[name][0] != "field"}
    assert len(blocks) == 17
    for name, block in blocks.items():
        kind, unit = known[name]
        assert block["unit"] == unit
        assert set(block) == (full if kind == "record" else {"unit", "avg"}), name


def test_aiperf_numbers_are_known(tmp_path: Path) -> None:
    found = aiperf(exact(tmp_path), "ttft_ms<101")
    assert found["time_to_first_token"]["avg"] == pytest.approx(100)
    assert found["inter_token_latency"]["p50"] == pytest.approx(10)
    assert found["request_latency"]["sum"] == pytest.approx(200 * found["request_latency"]["count"])
    assert found["output_token_throughput_per_user"]["min"] == pytest.approx(100)
    assert found["request_throughput"] == {"unit": "requests/sec", "avg": 40.0}
    assert found["good_request_count"]["avg"] == 160
    assert found["benchmark_duration"] == {"unit": "sec", "avg": 4.0}
    assert found["was_cancelled"] is False
    assert found["run_info"]["variation_values"] == {"TLLM_RPC_SUBMIT_BATCH_MAX": "1", "concurrency": 8}


def test_aiperf_numbers_variations_and_trials() -> None:
    sweep = load_sweep(SAMPLE)
    found = [aiperf_export(cell, sweep.info)["run_info"] for cell in sweep.per_cell]
    batching = [one["variation_values"]["TLLM_RPC_SUBMIT_BATCH_MAX"] for one in found]
    assert {(value, one["variation_index"]) for value, one in zip(batching, found, strict=True)} == {
        ("1", 0),
        ("32", 1),
    }
    assert {one["trial"] for one in found} == {0, 1, 2}
    assert found[0]["random_seed"] == 7


def samples(text: str) -> dict[str, list[Any]]:
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_openmetrics_is_what_prometheus_parses_and_has_the_metrics() -> None:
    sweep = load_sweep(SAMPLE)
    found = samples(openmetrics(sweep.per_cell))
    first = measure(sweep.per_cell[0])
    assert first.ttft_ms is not None
    ttft = {
        (one.name, one.labels.get("quantile")): one
        for one in found["loadgen_ttft_seconds"]
        if one.labels["cell"] == "001"
    }
    median = ttft["loadgen_ttft_seconds", "0.5"]
    assert median.value == pytest.approx(first.ttft_ms.p50 / 1000)
    assert median.labels["concurrency"] == "256"
    assert median.labels["knob_TLLM_RPC_SUBMIT_BATCH_MAX"] == "32"
    assert ttft["loadgen_ttft_seconds_count", None].value == first.ttft_ms.n
    assert len(found["loadgen_completions_per_second"]) == 12
    assert {one.labels["thread"] for one in found["loadgen_gil_held_ratio"]} >= {"executor_loop", "asyncio_*"}
    assert all(one.timestamp is not None for family in found.values() for one in family)


def test_openmetrics_survives_hostile_names(tmp_path: Path) -> None:
    value = 'a"b\\c\nd} 1'
    recipe = replace(EXACT, gil={'x"} 1\\n': 10})
    write_sweep(tmp_path, [(value, 8, 1, recipe)], knob="A.B-C=D")
    found = samples(openmetrics(load_sweep(tmp_path).per_cell, parse_slo("ttft_ms<101")))
    (sample,) = found["loadgen_goodput_per_second"]
    assert sample.labels["knob_A_B_C_D"] == value
    assert [one.labels["thread"] for one in found["loadgen_gil_held_ratio"]] == ['x"} 1\\n']


def test_openmetrics_keeps_knobs_apart_that_differ_in_forbidden_letters_alone(tmp_path: Path) -> None:
    exact(tmp_path)
    (folder,) = SweepFolder(tmp_path).cell_folders()
    folder.write(replace(folder.read(), knobs={"A.B": "1", "A-B": "2"}))
    (sample,) = samples(openmetrics(load_sweep(tmp_path).per_cell))["loadgen_completions_per_second"]
    assert {sample.labels["knob_A_B"], sample.labels["knob_A_B_2"]} == {"1", "2"}


def test_openmetrics_of_a_cell_without_a_window_has_its_counts_alone(tmp_path: Path) -> None:
    found = samples(openmetrics([without_window(tmp_path)]))
    assert "loadgen_ttft_seconds" not in found
    assert found["loadgen_requests"][0].value > 0
