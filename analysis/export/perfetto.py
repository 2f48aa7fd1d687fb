"""A cell as a timeline for ui.perfetto.dev: GIL holder, threads' states, executor steps, requests, counters.

One JSON document in the Trace Event Format. Microsecond 0 is the cell's first record; `otherData.origin_ns` is that
moment on CLOCK_MONOTONIC. What is too much to draw is thinned, and `otherData.thinned` says so.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from analysis.export.gil_tracks import holder_states, names_of, thread_states
from analysis.export.trace_events import TraceEvents
from analysis.gil.looks import LoopLooks, loop_looks
from analysis.gil.steps import covered_steps, step_starts, wait_of_each
from analysis.metrics import rank_zero
from analysis.tables import CellTables
from analysis.window import NS_PER_MS, NS_PER_S, in_flight_means
from contracts.errors import UsageError
from contracts.records import GilRow

SERVER, REQUESTS, COUNTERS = 1, 2, 3  # the trace's processes; real ids are in the names
PHASES, STEPS, HOLDER, FIRST_THREAD = 11, 12, 13, 20  # tracks of the first: a thread's number is no process's
BIN_NS = 100 * NS_PER_MS
MOST_BINS = 5_000
LOOKS_A_RATE = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is drawn at most; at the defaults a kind of record comes to some 20 MB of JSON."""

    requests: int = 20_000
    steps: int = 50_000
    looks: int = 30_000


def perfetto(cell: CellTables, limits: Limits | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Build the document, and say what was thinned. Raises UsageError when the cell has no records to draw."""
    limits = limits or Limits()
    origin_ns = _origin(cell)
    trace = TraceEvents(origin_ns)
    thinned: list[str] = []
    _phases(trace, cell)
    loop = loop_looks(cell.gil, cell.window) if cell.gil else None
    _steps(trace, cell, loop, limits.steps, thinned)
    _gil(trace, cell, loop, limits.looks, thinned)
    _requests(trace, cell, limits.requests, thinned)
    _counters(trace, cell)
    info = cell.info
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "cell": info.slug,
            "setting": cell.setting.label,
            "concurrency": str(info.concurrency),
            "origin_ns": str(origin_ns),
            "thinned": "; ".join(thinned) or "nothing",
        },
        "traceEvents": trace.events,
    }
    return document, tuple(thinned)


def _origin(cell: CellTables) -> int:
    known = [cell.info.phases.start_ns]
    known += [int(frame["sent_ns"].min()) for frame in (cell.requests,) if len(frame)]
    known += [int(frame["t_ns"].min()) for frame in (cell.steps, cell.host) if len(frame)]
    known += [cell.gil[0].t_ns] if cell.gil else []
    times = [time for time in known if time is not None]
    if not times:
        raise UsageError(f"cell {cell.info.id} ({cell.info.state}) has no records: nothing to draw")
    return min(times)


def _phases(trace: TraceEvents, cell: CellTables) -> None:
    phases = cell.info.phases
    pid = cell.info.stacks.pid if cell.info.stacks else cell.info.processes.get("rank0")
    trace.name_process(SERVER, "executor process" + (f" (pid {pid})" if pid is not None else ""))
    trace.name_thread(SERVER, PHASES, "phases")
    edges = (phases.start_ns, phases.ramped_ns, phases.steady_start_ns, phases.steady_end_ns, phases.drained_ns)
    for name, start, end in zip(("ramp", "warm-up", "steady", "drain"), edges, edges[1:], strict=False):
        if start is not None and end is not None and end > start:
            trace.slice(SERVER, PHASES, name, start, end, {})


def _steps(trace: TraceEvents, cell: CellTables, loop: LoopLooks | None, most: int, thinned: list[str]) -> None:
    """Draw one rank's turns; `gil_wait_sampled_ms` is what the looks say, `gil_wait_ms` the loop's own account."""
    steps = rank_zero(cell.steps).sort_values("t_ns", kind="stable").reset_index(drop=True)
    if steps.empty:
        return
    waits = _sampled_waits(loop, steps)
    ends = steps["t_ns"].to_numpy(dtype=np.int64)
    starts = step_starts(ends, steps["host_step_ms"].to_numpy(dtype=np.float64))
    trace.name_thread(SERVER, STEPS, "executor steps")
    first = int(np.argmax(steps["in_window"].to_numpy(dtype=bool)))
    drawn = _span("steps", len(steps), first, most, thinned)
    for place, row in zip(drawn, steps.iloc[drawn.start : drawn.stop].to_dict("records"), strict=True):
        known = {
            "iteration": row["iteration"],
            "in_window": int(row["in_window"]),
            "host_step_ms": row["host_step_ms"],
            "gil_wait_sampled_ms": waits[place],
            "gil_wait_ms": row["gil_wait_ms"],
            "prev_device_step_ms": row["prev_device_step_ms"],
            "scheduled_requests": row["scheduled_requests"],
            "new_requests": row["new_requests"],
            "rpc_messages": row["rpc_messages"],
        }
        start, end = min(starts[place], ends[place]), ends[place]
        trace.slice(SERVER, STEPS, "step", int(start), int(end), _known(known))
        trace.counter(COUNTERS, "scheduled", "requests", int(start), int(row["scheduled_requests"]))


def _sampled_waits(loop: LoopLooks | None, steps: pd.DataFrame) -> Any:
    """Give each step's wait by the looks (ms), as analysis.gil.looks has it; NaN where no looks cover it."""
    waits = np.full(len(steps), np.nan)
    inside = np.flatnonzero(steps["in_window"].to_numpy(dtype=bool))
    if loop is None:
        return waits
    measured = steps.iloc[inside]
    covered = covered_steps(
        loop.t_ns,
        measured["t_ns"].to_numpy(dtype=np.int64),
        measured["host_step_ms"].to_numpy(dtype=np.float64),
    )
    if covered is not None:
        waits[inside[covered.rows]] = wait_of_each(loop.t_ns, loop.wants, covered, loop.scale)
    return waits


def _gil(trace: TraceEvents, cell: CellTables, loop: LoopLooks | None, most: int, thinned: list[str]) -> None:
    if not cell.gil:
        return
    names = names_of(cell.gil)
    window = cell.window
    first = next((place for place, row in enumerate(cell.gil) if window is None or window.holds(row.t_ns)), 0)
    places = _span("looks at the GIL", len(cell.gil), first, most, thinned)
    rows: Sequence[GilRow] = cell.gil[places.start : places.stop]
    trace.name_thread(SERVER, HOLDER, "GIL holder")
    for state in holder_states(rows, names):
        trace.slice(SERVER, HOLDER, state.name, state.start_ns, state.end_ns, _known({"function": state.function}))
    by_thread = thread_states(rows, names)
    order = sorted(by_thread, key=lambda tid: -len(by_thread[tid]))
    for track, tid in enumerate(order, FIRST_THREAD):
        trace.name_thread(SERVER, track, f"{names.get(tid, 'thread')} ({tid})")
        for state in by_thread[tid]:
            args = _known({"function": state.function, "holder": state.holder})
            trace.slice(SERVER, track, state.name, state.start_ns, state.end_ns, args)
    if loop is not None:
        _loop(trace, loop, rows[-1].t_ns)
    stride = max(len(rows) // MOST_BINS, LOOKS_A_RATE)
    for earlier, later in pairwise(rows[::stride]):
        rate = (later.switches - earlier.switches) * NS_PER_S / max(later.t_ns - earlier.t_ns, 1)
        trace.counter(COUNTERS, "GIL switches", "per_s", earlier.t_ns, round(rate, 1))


def _loop(trace: TraceEvents, loop: LoopLooks, last_ns: int) -> None:
    """Add the looks at the executor loop as a counter: 0, or where it waited what such a look stands for."""
    for t_ns, wants in zip(loop.t_ns.tolist(), loop.wants.tolist(), strict=True):
        if t_ns > last_ns:
            return
        trace.counter(COUNTERS, "executor loop waits", "share", t_ns, loop.scale if wants else 0.0)


def _requests(trace: TraceEvents, cell: CellTables, most: int, thinned: list[str]) -> None:
    """Draw requests, each with what it waited for: `queued` (where the server says), `first token`, `decode`."""
    if cell.requests.empty:
        return
    trace.name_process(REQUESTS, "requests")
    requests = cell.requests.sort_values("sent_ns", kind="stable")
    every = -(-len(requests) // most)
    drawn = requests.iloc[::every]
    if every > 1:
        thinned.append(f"requests: {len(drawn)} of {len(requests)} drawn, one in {every}")
    scheduled = _scheduled(cell.server)
    for track, row in enumerate(drawn.to_dict("records"), 1):
        failed = not row["success"]
        name = f"failed: {row['error_kind']}" if failed else "request"
        shown = ("worker", "seq", "user", "server_id", "prompt_tokens", "output_tokens", "ttft_ms", "error")
        trace.begin(REQUESTS, track, name, row["sent_ns"], _known({key: row[key] for key in shown}))
        for part, start, end in _parts(row, scheduled.get(row["server_id"])):
            trace.begin(REQUESTS, track, part, start, {})
            trace.end(REQUESTS, track, part, end)
        trace.end(REQUESTS, track, name, row["end_ns"])


def _scheduled(server: pd.DataFrame) -> dict[str, int]:
    known = server[["server_id", "first_scheduled_ns"]].dropna().drop_duplicates("server_id")
    return dict(zip(known["server_id"], known["first_scheduled_ns"].astype("int64").tolist(), strict=True))


def _parts(row: Mapping[Hashable, Any], scheduled_ns: int | None) -> Iterator[tuple[str, int, int]]:
    first_ns, last_ns, start_ns = row["first_token_ns"], row["last_token_ns"], int(row["sent_ns"])
    if scheduled_ns is not None and start_ns <= scheduled_ns <= (row["end_ns"] if pd.isna(first_ns) else first_ns):
        yield "queued", start_ns, scheduled_ns
        start_ns = scheduled_ns
    if not pd.isna(first_ns):
        yield "first token", start_ns, int(first_ns)
        yield "decode", int(first_ns), int(last_ns)


def _counters(trace: TraceEvents, cell: CellTables) -> None:
    trace.name_process(COUNTERS, "counters")
    requests = cell.requests
    if len(requests):
        first, last = int(requests["sent_ns"].min()), int(requests["end_ns"].max())
        edges = np.arange(first, last + 2 * BIN_NS, max(BIN_NS, (last - first) // MOST_BINS))
        means = in_flight_means(requests["sent_ns"], requests["end_ns"], edges)
        for t_ns, mean in zip(edges[:-1].tolist(), means.tolist(), strict=True):
            trace.counter(COUNTERS, "in flight", "requests", t_ns, round(mean, 2))
    whole = cell.host[cell.host["tid"].isna()]
    for (role, pid), rows in whole.groupby(["role", "pid"], sort=False):
        t_ns, cpu_ns = rows["t_ns"].astype("int64").tolist(), rows["cpu_ns"].astype("int64").tolist()
        pairs = zip(pairwise(t_ns), pairwise(cpu_ns), strict=True)
        for (start, end), (before, after) in pairs:
            if end > start:
                cores = (after - before) / (end - start)
                trace.counter(COUNTERS, f"CPU of {role} ({pid})", "cores", start, round(cores, 3))


def _span(what: str, total: int, first: int, most: int, thinned: list[str]) -> range:
    """Choose which of a sequence are drawn: all, or as many as may be from the steady window's start."""
    if total <= most:
        return range(total)
    start = min(first, total - most)
    thinned.append(f"{what}: {most} of {total} drawn, those from number {start + 1} on")
    return range(start, start + most)


def _known(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is missing, and turn numpy's numbers into JSON's."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in values.items()
        if not pd.isna(value)
    }
