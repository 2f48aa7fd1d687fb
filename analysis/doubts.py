"""The warnings that the tables themselves give rise to, merged with those that capture left in cell.json."""

from collections.abc import Iterator, Sequence

from analysis.compare import BLOCKS_FOR_A_VERDICT, Comparison
from analysis.limits import CpuUse, Limit
from analysis.metrics import CellMetrics
from analysis.plan import SweepInfo
from analysis.tables import CellTables
from contracts.doubts import REMEDIES, Doubt

CLIENT_CPU_LIMIT = 0.90
LAG_OF_LATENCY = 0.10
TIMER_GRANULARITY_MS = 2.0
CONCURRENCY_REACHED = 0.976  # 2000 of 2048
REQUESTS_FOR_P99 = 100
SAMPLES_MISSED_LIMIT = 0.10
QUEUED_LIMIT = 0.10


def cell_doubts(cell: CellTables, metrics: CellMetrics, cpu: CpuUse, limit: Limit) -> list[Doubt]:
    """Give one cell's warnings: capture's own first; a code appears once a cell, capture's word before ours."""
    found = list(_recorded(cell))
    told = {doubt.code for doubt in found}
    for code, detail in _seen(cell, metrics, cpu, limit):
        # a shared core explains a full run queue: no need to accuse other processes as well
        if code in told or (code == "machine_busy" and "cpu_shared" in told):
            continue
        told.add(code)
        found.append(Doubt(code, detail, cell.info.id))
    return found


def sweep_doubts(info: SweepInfo, cells: Sequence[CellTables], comparison: Comparison) -> list[Doubt]:
    """Give the warnings that concern the sweep as a whole."""
    doubts = []
    complete = [len(effect.blocks) for effect in comparison.effects if effect.measure.name == "output_tok_s"]
    if complete and min(complete) < BLOCKS_FOR_A_VERDICT:
        doubts.append(Doubt("few_repeats", f"{min(complete)} complete block(s) for at least one comparison"))
    if comparison.incomplete:
        doubts.append(Doubt("blocks_incomplete", "; ".join(comparison.incomplete)))
    missing = (info.planned_cells or 0) - len(cells)
    if missing > 0 and not comparison.incomplete:
        doubts.append(Doubt("blocks_incomplete", f"{missing} of {info.planned_cells} planned cells never began"))
    return doubts


def _recorded(cell: CellTables) -> Iterator[Doubt]:
    for warning in cell.info.warnings:
        code = str(warning.get("code", ""))
        if code in REMEDIES:  # a later release may know more codes than this one
            yield Doubt(code, str(warning.get("detail", "")), cell.info.id)


def _seen(cell: CellTables, metrics: CellMetrics, cpu: CpuUse, limit: Limit) -> Iterator[tuple[str, str]]:
    info = cell.info
    if info.state == "failed":
        yield "cell_failed", info.error or "cell.json gives no reason"
    elif info.state != "done":
        yield "cell_failed", f"{info.state}: {info.error or 'it was interrupted'}"
    if metrics.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in metrics.errors.items())
        yield "requests_failed", f"{metrics.failures} of {metrics.requests} requests: {kinds}"
    drained = metrics.errors.get("drain_timeout", 0)
    if drained:
        yield "drain_timeout", f"{drained} requests"
    if cell.window is None:
        return
    yield from _client(metrics, cpu)
    yield from _load(cell, metrics)
    yield from _observers(cell, metrics)
    if limit.name in {"front_end", "post_processing"}:
        yield "front_end_limited", limit.sentence
    if cpu.executor_queued is not None and cpu.executor_queued > QUEUED_LIMIT:
        yield (
            "machine_busy",
            f"the executor loop's thread was runnable without a core {cpu.executor_queued:.0%} of time",
        )


def _client(metrics: CellMetrics, cpu: CpuUse) -> Iterator[tuple[str, str]]:
    """Saturated: > 0.90 of a core, or the lag's p99 above a tenth of TTFT p50, or its p50 above a tenth of TPOT p50.

    Every TTFT holds one lag, so its tail matters there; a gap is the difference of two arrivals, so a rare late
    wake-up moves few of thousands of gaps and the typical lag counts. A timer's own granularity is no lag.
    """
    used = max((value for value in (metrics.client_cpu_fraction, cpu.load) if value is not None), default=0.0)
    if used > CLIENT_CPU_LIMIT:
        yield "client_saturated", f"a load process used {used:.2f} of a core over the window"
        return
    lag = metrics.client_lag_ms
    if lag is None:
        return
    if metrics.ttft_ms and lag.p99 > LAG_OF_LATENCY * metrics.ttft_ms.p50:
        yield (
            "client_saturated",
            f"it woke {lag.p99:.1f} ms late (p99), against a TTFT p50 of {metrics.ttft_ms.p50:.1f} ms",
        )
    elif metrics.tpot_ms and lag.p50 > max(LAG_OF_LATENCY * metrics.tpot_ms.p50, TIMER_GRANULARITY_MS):
        yield (
            "client_saturated",
            f"it woke {lag.p50:.1f} ms late (p50), against a TPOT p50 of {metrics.tpot_ms.p50:.1f} ms",
        )


def _load(cell: CellTables, metrics: CellMetrics) -> Iterator[tuple[str, str]]:
    asked, reached = cell.info.concurrency, metrics.in_flight_mean
    open_loop = bool(cell.requests["scheduled_ns"].notna().any())  # there, users are a limit and not a goal
    if not open_loop and reached is not None and reached < CONCURRENCY_REACHED * asked:
        yield "concurrency_not_reached", f"{reached:.0f} in flight on average over the window, {asked} asked for"
    measured = metrics.ttft_ms.n if metrics.ttft_ms else 0
    if measured < REQUESTS_FOR_P99:
        yield "window_short", f"{measured} successful requests started in the window: p99 rests on one of them"
    assert cell.window is not None
    requests = cell.requests
    early = requests[requests["end_ns"] < cell.window.start_ns]
    finished = early["user"].nunique()
    if not open_loop and len(requests) and finished < asked / 2:
        yield "warmup_short", f"{finished} of {asked} users had finished a request when the window began"


def _observers(cell: CellTables, metrics: CellMetrics) -> Iterator[tuple[str, str]]:
    if cell.holders is None:
        reason = "the recorder did not run or left no file" if cell.info.stacks is None else "no look succeeded"
        yield "no_gil_samples", reason
    else:
        if cell.holders.missed > SAMPLES_MISSED_LIMIT:
            yield "samples_missed", f"{cell.holders.missed:.0%} of the looks lost their stack"
        if not cell.holders.complete:
            yield "observer_failed", "the GIL sampler was cut short: its number of looks is an estimate"
    if metrics.host_step_ms is None:
        yield "no_steps", "no turn of the executor loop was logged in the window"
    elif metrics.steps_lost:
        yield "observer_failed", f"{metrics.steps_lost} iterations are missing from the log in the window"
