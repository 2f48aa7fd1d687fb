"""What `loadgen show DIR --json` prints."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.claims import ClaimRow
from analysis.compare import Effect
from analysis.gil.holds import holds_document
from analysis.gil.looks import GilStudy
from analysis.metrics import CellMetrics, Spread
from analysis.scaling.document import scaling_document
from analysis.scaling.study import Scaling, study_scaling
from analysis.slo import SloStudy
from analysis.study import CellStudy, Study, study_sweep
from analysis.verdict import verdict_table
from contracts.doubts import Doubt
from contracts.folder import FORMAT

TOP_BLAME = 10


def summarise(path: Path, objective: str | None = None) -> dict[str, Any]:
    """Work through a sweep's folder into the JSON document of `loadgen show --json`; unknown numbers are None."""
    return summary_of(study_sweep(path, objective))


def summary_of(study: Study, scaling: Scaling | None = None) -> dict[str, Any]:
    """Turn a study into the document (contract, format 1: names are added, never changed)."""
    document = {
        "format": FORMAT,
        "state": study.info.state,
        "baseline": dict(study.comparison.baseline.pairs),
        "verdict": list(verdict_table(study).sentences),
        "cells": [_cell(cell) for cell in study.cells],
        "claims": [_claim(row) for row in study.claims],
        "slo": _slo(study.slo),
        "scaling": scaling_document(scaling or study_scaling(study)),
        "comparisons": [_effect(effect) for effect in study.comparison.effects],
        "warnings": [_doubt(doubt) for doubt in study.doubts],
    }
    cleaned = without_nan(document)
    assert isinstance(cleaned, dict)
    return cleaned


def _cell(cell: CellStudy) -> dict[str, Any]:
    info, metrics = cell.tables.info, cell.metrics
    return {
        "id": info.id,
        "slug": info.slug,
        "block": info.block,
        "state": info.state,
        "concurrency": info.concurrency,
        "knobs": dict(cell.tables.setting.pairs),
        "requests": metrics.requests,
        "requests_in_window": metrics.requests_in_window,
        "errors": metrics.failures,
        "errors_by_kind": dict(metrics.errors),
        "error": info.error,
        "window_s": metrics.window_s,
        "clocks": {
            f"load{number or ''}": {"offset_ms": fit.offset_ms, "error_ms": fit.error_ms}
            for number, fit in cell.tables.clocks.fits.items()
        },
        "metrics": metrics_of(metrics),
        "cores": asdict(cell.cpu),
        "drift": {one.name: {"change": one.change, "p": one.p_value} for one in cell.steadiness.drifts},
        "limit": None if cell.limit is None else {"name": cell.limit.name, "why": cell.limit.sentence},
    }


def metrics_of(metrics: CellMetrics) -> dict[str, Any]:
    """Give a cell's metrics by their names (contract), spreads as mappings; unknown ones None, or not finite."""
    return {
        "ttft_ms": _spread(metrics.ttft_ms),
        "itl_ms": _spread(metrics.itl_ms),
        "itl_absent": metrics.itl_absent,
        "icl_ms": _spread(metrics.icl_ms),
        "tpot_ms": _spread(metrics.tpot_ms),
        "e2e_ms": _spread(metrics.e2e_ms),
        "output_speed_tok_s_user": _spread(metrics.output_speed_tok_s_user),
        "req_s": metrics.req_s,
        "output_tok_s": metrics.output_tok_s,
        "host_step_ms": _spread(metrics.host_step_ms),
        "device_step_ms": _spread(metrics.device_step_ms),
        "gil_probe_ms": _spread(metrics.gil_probe_ms),
        "rpc_messages": metrics.rpc_messages,
        "rpc_requests": metrics.rpc_requests,
        "rpc_messages_per_request": metrics.rpc_messages_per_request,
        "in_flight_mean": metrics.in_flight_mean,
        "gil_held_fraction": None if metrics.gil_held_fraction is None else dict(metrics.gil_held_fraction),
        **_gil(metrics.gil),
        "long_holds": holds_document(metrics.long_holds),
        "step_parts_ms": None if metrics.step_parts is None else asdict(metrics.step_parts),
        "gc_pause_ms": _spread(metrics.gc_pause_ms),
        "client_cpu_fraction": metrics.client_cpu_fraction,
        "client_lag_ms": _spread(metrics.client_lag_ms),
        "schedule_lag_ms": _spread(metrics.schedule_lag_ms),
        "server_ttft_ms": _spread(metrics.server_ttft_ms),
        "client_minus_server_ttft_ms": metrics.client_minus_server_ttft_ms,
    }


def _gil(gil: GilStudy | None) -> dict[str, Any]:
    if gil is None:
        return {"gil_wait_fraction": None, "gil_wait_ms_per_step": None, "gil_blame": None, "gil_switches_s": None}
    steps = gil.executor_steps
    return {
        "gil_wait_fraction": dict(gil.wait_fraction),
        "gil_wait_ms_per_step": None
        if steps is None
        else {
            "mean": steps.mean_ms,
            "p50": steps.p50_ms,
            "p99": steps.p99_ms,
            "asleep": steps.asleep_ms,
            "share": steps.share,
            "share_error": steps.share_error,
            "with_arrivals": steps.with_arrivals_ms,
            "without_arrivals": steps.without_arrivals_ms,
            "gap_ms": steps.gap_ms,
            "n": steps.steps,
        },
        "gil_blame": {
            waiter: [
                {"name": part.name, "function": part.function, "fraction": part.fraction} for part in parts[:TOP_BLAME]
            ]
            for waiter, parts in gil.blame.items()
        },
        "gil_switches_s": gil.switches_per_s,
    }


def _spread(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "metric": effect.measure.name,
        "concurrency": effect.concurrency,
        "knobs": dict(effect.setting.pairs),
        "base": effect.base,
        "other": effect.other,
        "ratio": effect.ratio,
        "interval": None if effect.low is None else [effect.low, effect.high],
        "block_ratios": dict(zip(map(str, effect.blocks), effect.ratios, strict=True)),
        "verdict": effect.verdict,
    }


def _claim(row: ClaimRow) -> dict[str, Any]:
    return {
        "id": row.claim.id,
        "claim": row.claim.text,
        "source": row.claim.source,
        "metric": row.claim.measure,
        "concurrency": row.concurrency,
        "published": row.claim.published,
        "measured": row.measured,
        "low": row.low,
        "high": row.high,
        "verdict": row.verdict,
    }


def _slo(slo: SloStudy | None) -> dict[str, Any] | None:
    if slo is None:
        return None
    return {
        "terms": [term.text for term in slo.terms],
        "rows": [
            {
                "knobs": dict(row.setting.pairs),
                "concurrency": row.concurrency,
                "cells": row.cells,
                "met": row.met,
                "shares": list(row.shares),
                "goodput_req_s": row.goodput_req_s,
            }
            for row in slo.rows
        ],
        "highest": [{"knobs": dict(setting.pairs), "concurrency": highest} for setting, highest in slo.highest],
    }


def _doubt(doubt: Doubt) -> dict[str, Any]:
    return {"code": doubt.code, "detail": doubt.detail, "cell": doubt.cell, "remedy": doubt.remedy}


def without_nan(value: Any) -> Any:
    """JSON has no NaN: what is not finite becomes null."""
    if isinstance(value, dict):
        return {name: without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_nan(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
