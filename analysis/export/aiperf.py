"""A cell as AIPerf's profile_export_aiperf.json, schema 1.5: metric blocks with AIPerf's names, units and statistics.

A metric of single requests has the whole distribution with `count` and `sum`; a count, a rate or a total has `avg`
alone. What is not known is left out, as there. The schema is at https://docs.nvidia.com/aiperf/reference/json-export-schema
"""

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.export.population import Population, population_of
from analysis.plan import SweepInfo
from analysis.slo import Term, hold
from analysis.tables import CellTables

SCHEMA_VERSION = "1.5"
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def aiperf_export(cell: CellTables, sweep: SweepInfo, terms: Sequence[Term] = ()) -> dict[str, Any]:
    """Build the document. Raises UsageError when the cell has no steady window."""
    info, population = cell.info, population_of(cell)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "benchmark_id": info.slug,
        **_records(cell, population),
        **_totals(cell, population, terms),
        "was_cancelled": info.state != "done",
        "error_summary": _errors(population.failed),
        "start_time": info.started_at,
        "end_time": info.ended_at,
        "run_info": {
            "benchmark_id": info.slug,
            "sweep_id": None,
            "random_seed": _seed(sweep),
            "trial": max(info.block - 1, 0),
            "run_label": info.slug,
            "variation_label": f"{cell.setting.label} concurrency={info.concurrency}",
            "variation_index": _variation(cell, sweep),
            "variation_values": {**dict(cell.setting.pairs), "concurrency": info.concurrency},
            "cli_command": shlex.join(sweep.command) if sweep.command else None,
        },
    }
    return {name: value for name, value in document.items() if value is not None}


def _records(cell: CellTables, population: Population) -> dict[str, Any]:
    """Describe the metrics of single requests and gaps, of the requests that started in the window and succeeded."""
    measured = population.measured
    return {
        "request_latency": _distribution(measured["e2e_ms"], "ms"),
        "time_to_first_token": _distribution(measured["ttft_ms"], "ms"),
        "inter_token_latency": _distribution(measured["tpot_ms"], "ms"),
        "inter_chunk_latency": _distribution(cell.gaps.icl_ms, "ms"),
        "output_token_throughput_per_user": _distribution(measured["output_speed_tok_s_user"], "tokens/sec/user"),
        "output_sequence_length": _distribution(measured["output_tokens"], "tokens"),
        "input_sequence_length": _distribution(measured["prompt_tokens"], "tokens"),
        "error_isl": _distribution(population.failed["prompt_tokens"], "tokens"),
    }


def _totals(cell: CellTables, population: Population, terms: Sequence[Term]) -> dict[str, Any]:
    """Give the counts, totals and rates: what completed, and the tokens that arrived, in the window over its length."""
    length_s = population.length_s
    completed, failed = len(population.completed), len(population.failed)
    kept = hold(cell, terms) if terms else None
    goodput = kept.goodput_req_s if kept else None
    return {
        "request_count": _scalar(completed, "requests"),
        "request_throughput": _scalar(completed / length_s, "requests/sec"),
        "error_request_count": _scalar(failed, "requests"),
        "output_token_throughput": _scalar(population.output_tokens / length_s, "tokens/sec"),
        "total_isl": _scalar(population.input_tokens, "tokens"),
        "total_osl": _scalar(round(population.output_tokens), "tokens"),
        "total_error_isl": _scalar(int(population.failed["prompt_tokens"].sum()), "tokens"),
        "benchmark_duration": _scalar(length_s, "sec"),
        "goodput": None if goodput is None else _scalar(goodput, "requests/sec"),
        "good_request_count": None if goodput is None else _scalar(round(goodput * length_s), "requests"),
    }


def _distribution(values: Any, unit: str) -> dict[str, Any] | None:
    """Describe values; None where there are none. The standard deviation is the sample's."""
    known = pd.Series(values).to_numpy(dtype=np.float64, na_value=np.nan)
    known = known[np.isfinite(known)]
    if not len(known):
        return None
    block: dict[str, Any] = {
        "unit": unit,
        "avg": float(known.mean()),
        "min": float(known.min()),
        "max": float(known.max()),
    }
    ranks = zip(PERCENTILES, np.percentile(known, PERCENTILES), strict=True)
    block |= {f"p{percent}": float(value) for percent, value in ranks}
    if len(known) > 1:
        block["std"] = float(known.std(ddof=1))
    return block | {"count": len(known), "sum": float(known.sum())}


def _scalar(value: float, unit: str) -> dict[str, Any]:
    return {"unit": unit, "avg": float(value)}


def _errors(failed: pd.DataFrame) -> list[dict[str, Any]]:
    """Count the failures by what they were, the most frequent first."""
    found: dict[tuple[int | None, str, str], int] = {}
    for status, kind, message in zip(failed["status"], failed["error_kind"], failed["error"], strict=True):
        code = None if pd.isna(status) or status == 200 else int(status)
        key = (code, str(kind), str(kind) if pd.isna(message) else str(message))
        found[key] = found.get(key, 0) + 1
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return [
        {"error_details": {"code": code, "type": kind, "message": message}, "count": count}
        for (code, kind, message), count in ranked
    ]


def _seed(sweep: SweepInfo) -> int | None:
    text = sweep.plan.get("workload_seed", "")
    return int(text) if text.isdigit() else None


def _variation(cell: CellTables, sweep: SweepInfo) -> int:
    """Give the cell's setting a number: 0 for the baseline, then by the values' places in the plan."""
    place = 0
    for name, value in cell.setting.pairs:
        values = sweep.factors.get(name, (value,))
        place = place * len(values) + (values.index(value) if value in values else 0)
    return place
