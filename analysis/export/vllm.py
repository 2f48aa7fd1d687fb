"""A cell as the result file of `vllm bench serve --save-result`: its keys, its units.

The keys are those of vllm/benchmarks/serve.py (tests/analysis/golden/export_vllm_keys.txt says at which commit). The
original has seconds in `duration`, `latencies` and `queue_times`, ms where the key says so. What is not known is null.
docs/export.md says where a key of the same name means something else than docs/metrics.md.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from analysis.export.population import population_of
from analysis.plan import SweepInfo
from analysis.requests import second_counts
from analysis.slo import Term, hold
from analysis.tables import CellTables
from analysis.window import Window
from contracts.folder import CellFolder

PERCENTILES = (50, 90, 95, 99)
_BACKENDS = {"completions": "openai", "chat": "openai-chat"}
_S_PER_MS = 1e-3


def vllm_result(cell: CellTables, sweep: SweepInfo, folder: CellFolder, terms: Sequence[Term] = ()) -> dict[str, Any]:
    """Build the document. Raises UsageError when the cell has no steady window."""
    population = population_of(cell)
    measured = population.measured
    completed, length_s = len(population.completed), population.length_s
    kept = hold(cell, terms) if terms else None
    backend = _BACKENDS.get(sweep.plan.get("endpoint", "")) if sweep.plan.get("drive") == "http" else None
    closed = sweep.plan.get("arrival", "closed") == "closed"
    document: dict[str, Any] = {f"knob.{name}": value for name, value in cell.setting.pairs}
    document |= {
        "date": _date(cell.info.started_at),
        "endpoint_type": backend,
        "backend": backend,
        "label": cell.info.slug,
        "model_id": None,
        "tokenizer_id": None,
        "num_prompts": len(population.started),
        "request_rate": "inf" if closed else _number(sweep.plan, "rate_rps"),
        "burstiness": _number(sweep.plan, "burstiness"),
        "max_concurrency": cell.info.concurrency if closed else None,
        "duration": length_s,
        "completed": completed,
        "failed": len(population.failed),
        "total_input_tokens": population.input_tokens,
        "total_output_tokens": round(population.output_tokens),
        "request_throughput": completed / length_s,
        "request_goodput": kept.goodput_req_s if kept else None,
        "output_throughput": population.output_tokens / length_s,
        "total_token_throughput": (population.input_tokens + population.output_tokens) / length_s,
        "latencies": [
            seconds if math.isfinite(seconds) else 0.0 for seconds in population.started["e2e_ms"] * _S_PER_MS
        ],
        "queue_times": _queue_times(population.started),
        "max_output_tokens_per_s": float(second_counts(folder.all_requests(), population.window, cell.clocks).max()),
        "max_concurrent_requests": _peak(cell.requests, population.window),
        "rtfx": 0.0,
    }
    for name, values in (
        ("ttft", measured["ttft_ms"]),
        ("tpot", measured["tpot_ms"]),
        ("itl", cell.gaps.icl_ms),
        ("e2el", measured["e2e_ms"]),
    ):
        document |= _statistics(name, values)
    return document


def _statistics(name: str, values: Any) -> dict[str, float | None]:
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return dict.fromkeys(
            [f"{word}_{name}_ms" for word in ("mean", "median", "std", *(f"p{percent}" for percent in PERCENTILES))]
        )
    found: dict[str, float | None] = {
        f"mean_{name}_ms": float(known.mean()),
        f"median_{name}_ms": float(np.median(known)),
        f"std_{name}_ms": float(known.std()),
    }
    shares = zip(PERCENTILES, np.percentile(known, PERCENTILES), strict=True)
    return found | {f"p{percent}_{name}_ms": float(value) for percent, value in shares}


def _queue_times(started: pd.DataFrame) -> list[float] | None:
    """How long each request waited in the client (s); without a schedule nothing says when it should have gone."""
    lags = started["schedule_lag_ms"]
    if lags.isna().any() or lags.empty:
        return None
    return [float(lag) * _S_PER_MS for lag in lags]


def _peak(requests: pd.DataFrame, window: Window) -> int:
    """Give the most requests in flight at any moment of the window, each over [sent, end)."""
    sent = requests["sent_ns"].to_numpy(dtype=np.int64)
    end = requests["end_ns"].to_numpy(dtype=np.int64)
    times = np.concatenate([end, sent])
    change = np.concatenate([np.full(len(end), -1), np.full(len(sent), 1)])
    order = np.argsort(times, kind="stable")  # at the same moment an end comes before a start
    times, in_flight = times[order], np.cumsum(change[order])
    before = np.searchsorted(times, window.start_ns, side="left") - 1
    inside = in_flight[max(before, 0) : np.searchsorted(times, window.end_ns, side="left")]
    return int(inside.max(initial=0))


def _number(plan: Mapping[str, str], name: str) -> float | None:
    try:
        return float(plan[name])
    except (KeyError, ValueError):
        return None


def _date(text: str | None) -> str | None:
    return datetime.fromisoformat(text).strftime("%Y%m%d-%H%M%S") if text else None
