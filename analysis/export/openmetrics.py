"""Cells as OpenMetrics text 1.0: summaries in seconds, rates and shares as gauges, one label set a cell.

Every sample bears the labels `cell`, `block`, `concurrency` and one `knob_NAME` a knob, and the time at which its cell
ended, so that `promtool tsdb create-blocks-from openmetrics` can put a sweep into Prometheus afterwards.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from analysis.metrics import CellMetrics, Spread, measure
from analysis.slo import Term, hold
from analysis.tables import CellTables

_MS_PER_S = 1000.0
_NOT_NAME = re.compile(r"[^A-Za-z0-9_]")
_SUMMARIES = {
    "ttft": ("ttft_ms", "Request sent to first token"),
    "tpot": ("tpot_ms", "Time per output token after the first"),
    "itl": ("itl_ms", "Inter-token latency"),
    "icl": ("icl_ms", "Inter-chunk latency"),
    "e2e": ("e2e_ms", "Request sent to end of response"),
    "schedule_lag": ("schedule_lag_ms", "Lateness of requests against their schedule"),
    "host_step": ("host_step_ms", "Wall time of one turn of the executor loop"),
    "device_step": ("device_step_ms", "Device time of a step"),
    "gil_probe": ("gil_probe_ms", "GIL wait of the executor loop in a step by its own account"),
    "server_ttft": ("server_ttft_ms", "Arrival to first token by the server's own clock"),
    "client_lag": ("client_lag_ms", "Lateness of the load process's event loop"),
}

Labels = Mapping[str, str]


@dataclass(slots=True)
class _Family:
    """One metric family: its samples are (suffix, labels, value, timestamp in s)."""

    name: str
    kind: str
    unit: str
    help: str
    samples: list[tuple[str, Labels, float, float | None]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"# TYPE {self.name} {self.kind}"
        if self.unit:
            yield f"# UNIT {self.name} {self.unit}"
        yield f"# HELP {self.name} {_escaped(self.help)}"
        for suffix, labels, value, t_s in self.samples:
            pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            stamp = "" if t_s is None else f" {t_s:.3f}"
            yield f"{self.name}{suffix}{{{pairs}}} {_number(value)}{stamp}"


def openmetrics(cells: Sequence[CellTables], terms: Sequence[Term] = ()) -> str:
    """Write the cells' metrics; what is not known of a cell has no sample, a family without samples is left out."""
    knobs = _label_names(sorted({name for cell in cells for name, _ in cell.setting.pairs}))
    families = _families()
    for cell in cells:
        _add(families, cell, measure(cell), _labels(cell, knobs), terms)
    lines = [line for family in families.values() if family.samples for line in family.lines()]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _families() -> dict[str, _Family]:
    made = [_Family(f"loadgen_{name}_seconds", "summary", "seconds", text) for name, (_, text) in _SUMMARIES.items()]
    made += [
        _Family("loadgen_requests", "counter", "", "Requests of the whole cell"),
        _Family("loadgen_errors", "counter", "", "Requests that did not succeed, by kind"),
        _Family("loadgen_completions_per_second", "gauge", "", "Successful completions in the steady window"),
        _Family("loadgen_output_tokens_per_second", "gauge", "", "Output tokens arriving in the steady window"),
        _Family("loadgen_goodput_per_second", "gauge", "", "Completions that kept to the objective"),
        _Family("loadgen_in_flight_requests", "gauge", "", "Mean of requests in flight"),
        _Family("loadgen_gil_held_ratio", "gauge", "ratio", "Share of wall time in which a thread holds the GIL"),
        _Family("loadgen_gil_wait_ratio", "gauge", "ratio", "Share of wall time in which a thread waits for the GIL"),
        _Family(
            "loadgen_gil_wait_per_step_seconds", "gauge", "seconds", "Mean GIL wait of the executor loop in a step"
        ),
        _Family("loadgen_gil_switches_per_second", "gauge", "", "Hand-overs of the GIL between threads"),
        _Family("loadgen_client_cpu_cores", "gauge", "", "CPU of the busiest load process"),
    ]
    return {family.name: family for family in made}


def _add(
    families: Mapping[str, _Family], cell: CellTables, metrics: CellMetrics, labels: Labels, terms: Sequence[Term]
) -> None:
    t_s = datetime.fromisoformat(cell.info.ended_at).timestamp() if cell.info.ended_at else None

    def put(name: str, value: float | None, suffix: str = "", **further: str) -> None:
        if value is not None and math.isfinite(value):
            families[f"loadgen_{name}"].samples.append((suffix, {**labels, **further}, value, t_s))

    for name, (attribute, _) in _SUMMARIES.items():
        spread: Spread | None = getattr(metrics, attribute)
        if spread is not None:
            for rank, value in (("0.5", spread.p50), ("0.9", spread.p90), ("0.99", spread.p99)):
                put(f"{name}_seconds", value / _MS_PER_S, quantile=rank)
            put(f"{name}_seconds", spread.n, "_count")
            put(f"{name}_seconds", spread.mean * spread.n / _MS_PER_S, "_sum")
    put("requests", metrics.requests, "_total")
    for kind, count in metrics.errors.items():
        put("errors", count, "_total", kind=kind)
    put("completions_per_second", metrics.req_s)
    put("output_tokens_per_second", metrics.output_tok_s)
    kept = hold(cell, terms) if terms else None
    put("goodput_per_second", kept.goodput_req_s if kept else None)
    put("in_flight_requests", metrics.in_flight_mean)
    for thread, share in (metrics.gil_held_fraction or {}).items():
        put("gil_held_ratio", share, thread=thread)
    for thread, share in (metrics.gil.wait_fraction if metrics.gil else {}).items():
        put("gil_wait_ratio", share, thread=thread)
    wait_ms = metrics.gil_wait_ms_per_step
    put("gil_wait_per_step_seconds", None if wait_ms is None else wait_ms / _MS_PER_S)
    put("gil_switches_per_second", metrics.gil.switches_per_s if metrics.gil else None)
    put("client_cpu_cores", metrics.client_cpu_fraction)


def _labels(cell: CellTables, knobs: Mapping[str, str]) -> dict[str, str]:
    info = cell.info
    labels = {"cell": info.id, "block": str(info.block), "concurrency": str(info.concurrency)}
    return labels | {knobs[name]: value for name, value in cell.setting.pairs}


def _label_names(knobs: Sequence[str]) -> dict[str, str]:
    """Make label names of knobs' names, each its own: two that differ in forbidden letters alone are numbered."""
    names: dict[str, str] = {}
    for knob in knobs:
        name = plain = "knob_" + _NOT_NAME.sub("_", knob)
        number = 1
        while name in names.values():
            number += 1
            name = f"{plain}_{number}"
        names[knob] = name
    return names


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
