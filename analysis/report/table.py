"""The table of all cells: one row a cell, raw values for sorting and for the CSV file beside what is shown."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass

from analysis.metrics import CellMetrics, Spread
from analysis.study import CellStudy, Study
from analysis.text import NOTHING, number, share


@dataclass(frozen=True, slots=True)
class Cell:
    """One field: what is shown and what it sorts by (a number's raw value)."""

    text: str
    sort: str
    numeric: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A sortable table; `csv` is the same with raw numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    csv: str


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    value: Callable[[CellMetrics], float | None]
    write: Callable[[float | None], str] = number


def _of(spread: Spread | None, name: str) -> float | None:
    return None if spread is None else float(getattr(spread, name))


_COLUMNS = (
    _Column("requests", lambda m: m.requests),
    _Column("failed", lambda m: m.failures),
    _Column("req_s", lambda m: m.req_s),
    _Column("output_tok_s", lambda m: m.output_tok_s),
    _Column("in_flight_mean", lambda m: m.in_flight_mean),
    _Column("ttft_ms p50", lambda m: _of(m.ttft_ms, "p50")),
    _Column("ttft_ms p90", lambda m: _of(m.ttft_ms, "p90")),
    _Column("ttft_ms p99", lambda m: _of(m.ttft_ms, "p99")),
    _Column("itl_ms p50", lambda m: _of(m.itl_ms, "p50")),
    _Column("itl_ms p99", lambda m: _of(m.itl_ms, "p99")),
    _Column("icl_ms p50", lambda m: _of(m.icl_ms, "p50")),
    _Column("tpot_ms p50", lambda m: _of(m.tpot_ms, "p50")),
    _Column("e2e_ms p50", lambda m: _of(m.e2e_ms, "p50")),
    _Column("e2e_ms p99", lambda m: _of(m.e2e_ms, "p99")),
    _Column("output_speed_tok_s_user p50", lambda m: _of(m.output_speed_tok_s_user, "p50")),
    _Column("host_step_ms mean", lambda m: _of(m.host_step_ms, "mean")),
    _Column("host_step_ms p99", lambda m: _of(m.host_step_ms, "p99")),
    _Column("device_step_ms mean", lambda m: _of(m.device_step_ms, "mean")),
    _Column("rpc_messages", lambda m: m.rpc_messages),
    _Column("rpc_requests", lambda m: m.rpc_requests),
    _Column("rpc_messages_per_request", lambda m: m.rpc_messages_per_request),
    _Column("gil_held", lambda m: m.gil_held_total, share),
    _Column("gil_held executor loop", lambda m: m.gil_held_executor, share),
    _Column("client_cpu_fraction", lambda m: m.client_cpu_fraction),
    _Column("client_lag_ms p99", lambda m: _of(m.client_lag_ms, "p99")),
    _Column("server_ttft_ms p50", lambda m: _of(m.server_ttft_ms, "p50")),
    _Column("client_minus_server_ttft_ms", lambda m: m.client_minus_server_ttft_ms),
)


def cells_table(study: Study) -> Table:
    """Make the table of all cells that began."""
    knobs = sorted({name for cell in study.cells for name, _ in cell.tables.setting.pairs})
    columns = ("cell", "state", "block", "concurrency", *knobs, *(column.name for column in _COLUMNS), "limited by")
    rows = tuple(tuple(_fields(cell, knobs)) for cell in study.cells)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_harmless(field) for field in row] for row in rows)
    return Table(columns, rows, out.getvalue())


def _fields(cell: CellStudy, knobs: list[str]) -> list[Cell]:
    info = cell.tables.info
    values = dict(cell.tables.setting.pairs)
    fields = [_text(info.slug), _text(info.state), _count(info.block), _count(info.concurrency)]
    fields += [_knob(values.get(name, "")) for name in knobs]
    for column in _COLUMNS:
        value = column.value(cell.metrics)
        shown = f"{value:,}" if isinstance(value, int) else column.write(value)
        fields.append(Cell(shown, "" if value is None else repr(value), numeric=True))
    return [*fields, _text(cell.limit.title if cell.limit else NOTHING)]


def _text(value: str) -> Cell:
    return Cell(value, value, numeric=False)


def _count(value: int) -> Cell:
    return Cell(str(value), str(value), numeric=True)


def _knob(value: str) -> Cell:
    """Sort knob values as numbers where they are."""
    try:
        float(value)
    except ValueError:
        return _text(value)
    return Cell(value, value, numeric=True)


def _harmless(field: Cell) -> str:
    """Keep spreadsheets from running text that begins like a formula."""
    if not field.numeric and field.sort[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        return f"'{field.sort}"
    return field.sort
