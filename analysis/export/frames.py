"""Tidy tables for csv and parquet: a row a request, a step or a cell, each with its cell's knobs, names with units."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pandas as pd

from analysis.gil.stacks import is_executor_loop
from analysis.gil.step_parts import StepParts
from analysis.metrics import CellMetrics, Spread, measure
from analysis.slo import Term, hold
from analysis.summary import metrics_of
from analysis.tables import CellTables

TABLES = ("requests", "cells", "steps")
_BY_DATA = ("gil_held_fraction", "gil_wait_fraction", "gil_blame", "itl_absent", "long_holds")  # by threads: no columns
_SPREADS = frozenset(field.name for field in fields(CellMetrics) if field.type == Spread | None)
_TEXTS = frozenset({
    "cell", "state", "started_at", "ended_at", "error", "server_id", "finish_reason", "output_tokens_source",
    "error_kind", "arrival_clock",
})  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def table(cells: Sequence[CellTables], name: str, terms: Sequence[Term] = ()) -> pd.DataFrame:
    """Give one of TABLES over some cells.

    `cells` has the metrics of docs/metrics.md in columns such as `ttft_ms.p99`; with an objective also what the cell
    kept of it. Times in `_ns` are CLOCK_MONOTONIC of the machine that wrote the folder.
    """
    if name == "cells":
        return _typed(pd.DataFrame([_labels(cell) | _cell_row(cell, terms) for cell in cells]))
    frames = []
    for cell in cells:
        rows = cell.requests if name == "requests" else cell.steps
        labels = _labels(cell)
        repeated = pd.DataFrame({label: [value] * len(rows) for label, value in labels.items()}, index=rows.index)
        frames.append(pd.concat([repeated, rows], axis="columns"))
    full = [frame for frame in frames if len(frame)] or frames[:1]
    return _typed(pd.concat(full, ignore_index=True)) if full else pd.DataFrame()


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Give columns types that do not hang on what is missing: one sweep's file goes with another's."""
    loose = [name for name in frame.columns if frame[name].dtype == object]
    kinds = {name: "string" if name in _TEXTS or name.startswith("knob.") else "float64" for name in loose}
    kinds |= {
        name: "Int64" for name in frame.columns if name.endswith(".n") or name in {"rpc_messages", "rpc_requests"}
    }
    if "slo_met" in frame:
        kinds["slo_met"] = "boolean"
    return frame.astype(kinds)


def to_csv(frame: pd.DataFrame) -> str:
    """Write a table as CSV (quoted as RFC 4180 says, empty for what is not known).

    Texts come from servers: one that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    guarded = frame.assign(**{str(name): frame[name].map(_guarded) for name in texts})
    out: str = guarded.to_csv(index=False, lineterminator="\n")
    return out


def to_parquet(frame: pd.DataFrame) -> bytes:
    """Write a table as Parquet (zstd)."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, compression="zstd")
    return buffer.getvalue()


def _guarded(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _labels(cell: CellTables) -> dict[str, Any]:
    info = cell.info
    labels: dict[str, Any] = {"cell": info.id, "block": info.block, "concurrency": info.concurrency}
    return labels | {f"knob.{name}": value for name, value in cell.setting.pairs}


def _cell_row(cell: CellTables, terms: Sequence[Term]) -> dict[str, Any]:
    info, metrics = cell.info, measure(cell)
    row: dict[str, Any] = {
        "state": info.state,
        "started_at": info.started_at,
        "ended_at": info.ended_at,
        "error": info.error,
        "window_s": metrics.window_s,
        "requests": metrics.requests,
        "requests_in_window": metrics.requests_in_window,
        "errors": metrics.failures,
    }
    row |= _flat({name: _whole(name, value) for name, value in metrics_of(metrics).items() if name not in _BY_DATA})
    row |= _gil(metrics)
    if terms:
        kept = hold(cell, terms)
        row["slo_met"] = None if kept is None else kept.met
        row["goodput_req_s"] = None if kept is None else kept.goodput_req_s
        for place, term in enumerate(terms):
            row[f"slo_share.{term.text}"] = None if kept is None else kept.shares[place]
    return row


def _gil(metrics: CellMetrics) -> dict[str, Any]:
    waits, holds = metrics.gil.wait_fraction if metrics.gil else {}, metrics.long_holds
    loop = [share for name, share in waits.items() if is_executor_loop(name)]
    return {
        "gil_held_fraction.all": metrics.gil_held_total,
        "gil_held_fraction.executor_loop": metrics.gil_held_executor,
        "gil_wait_fraction.executor_loop": sum(loop) if loop else None,
        "long_holds.count": None if holds is None else float(holds.count),
        "long_holds.longest_ms": None if holds is None else holds.longest_ms,
        "long_holds.fraction": None if holds is None else holds.share,
    }


def _whole(name: str, value: Any) -> Any:
    """Give a distribution that is not known its columns, so that a table has the same ones whatever is missing."""
    if value is not None:
        return value
    if name in _SPREADS:
        return dict.fromkeys(field.name for field in fields(Spread))
    if name == "step_parts_ms":
        return dict.fromkeys(field.name for field in fields(StepParts))
    return {} if name == "gil_wait_ms_per_step" else None


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
