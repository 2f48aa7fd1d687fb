"""The warnings that the tables themselves give rise to, merged with those that capture left in cell.json."""

from collections.abc import Iterator, Sequence

from analysis.compare import BLOCKS_FOR_A_VERDICT, Comparison
from analysis.limits import CpuUse, Limit
from analysis.metrics import CellMetrics, Spread
from analysis.plan import SweepInfo
from analysis.steady import Steadiness
from analysis.tables import CellTables
from contracts.doubts import REMEDIES, SAMPLES_MISSED_LIMIT, Doubt

CLIENT_CPU_LIMIT = 0.90
LAG_OF_LATENCY = 0.10
LAG_OF_REQUEST = 0.02  # as much load as the self-test may lose
MOST_BOUNDED = 0.05
TIMER_GRANULARITY_MS = 2.0
CONCURRENCY_REACHED = 0.976  # 2000 of 2048
REQUESTS_FOR_P99 = 100
QUEUED_LIMIT = 0.10
CLOCK_ERROR_MS = 5.0
_OF_STEADY_LOADS = frozenset(("concurrency_not_reached", "warmup_short"))


def cell_doubts(
    cell: CellTables,
    metrics: CellMetrics,
    cpu: CpuUse,
    limit: Limit,
    steadiness: Steadiness,
    *,
    think_s: float = 0.0,
) -> list[Doubt]:
    """Give one cell's warnings: capture's own first; a code appears once a cell, capture's word before ours."""
    found = list(_recorded(cell))
    told = {doubt.code for doubt in found}
    for code, detail in _seen(cell, metrics, cpu, limit, think_s):
        # a shared core explains a full run queue: no need to accuse other processes as well
        if "ramp_window" in told and code in _OF_STEADY_LOADS:
            continue
        if code in told or (code == "machine_busy" and "cpu_shared" in told):
            continue
        told.add(code)
        found.append(Doubt(code, detail, cell.info.id))
    if steadiness.complaints and "ramp_window" not in told:
        found.append(Doubt("not_steady", f"over the window {', '.join(steadiness.complaints)}", cell.info.id))
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
    doubts += _out_of_line(cells, comparison)
    doubts += _beyond_selftest(info, cells)
    return doubts


def _out_of_line(cells: Sequence[CellTables], comparison: Comparison) -> Iterator[Doubt]:
    ids = {(cell.info.concurrency, cell.info.block, cell.setting): cell.info.id for cell in cells if cell.done}
    for odd in comparison.out_of_line:
        named = [ids[odd.concurrency, block, setting] for block, setting in odd.cells]
        off = f"{100 * abs(odd.ratio - 1):.0f}% {'more' if odd.ratio > 1 else 'less'}"
        if len(named) > 1:
            yield Doubt(
                "cell_out_of_line",
                f"of {' and '.join(named)} one is out of line: their output tokens/s stand {off} "
                "apart than in the other blocks",
            )
        else:
            yield Doubt(
                "cell_out_of_line",
                f"{off} output tokens/s than its block and its setting have elsewhere",
                named[0],
            )


def _beyond_selftest(info: SweepInfo, cells: Sequence[CellTables]) -> Iterator[Doubt]:
    """Warn of more users a load process over HTTP than the self-test found it fit for."""
    users, failed_at = (info.client_trust.get(name, "") for name in ("users", "failed_at"))
    workers = info.plan.get("workers", "")
    if info.plan.get("drive") != "http" or not (users.isdecimal() and failed_at.isdecimal() and workers.isdecimal()):
        return
    share = max((cell.info.concurrency for cell in cells), default=0) / max(int(workers), 1)
    if share > int(users):
        why = info.client_trust.get("why", "")
        yield Doubt(
            "beyond_selftest", f"{share:.0f} users in one load process; good at {users}, and at {failed_at}: {why}"
        )


def _recorded(cell: CellTables) -> Iterator[Doubt]:
    for warning in cell.info.warnings:
        code = str(warning.get("code", ""))
        if code in REMEDIES:  # a later release may know more codes than this one
            yield Doubt(code, str(warning.get("detail", "")), cell.info.id)


def _seen(
    cell: CellTables, metrics: CellMetrics, cpu: CpuUse, limit: Limit, think_s: float
) -> Iterator[tuple[str, str]]:
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
    if cell.clocks.error_ms > CLOCK_ERROR_MS:
        yield "clock_unsure", f"a load machine's clock is known to within {cell.clocks.error_ms:.1f} ms only"
    if cell.window is None:
        return
    yield from _client(metrics, cpu)
    yield from _load(cell, metrics, think_s)
    yield from _observers(cell, metrics)
    if limit.name in {"front_end", "post_processing"}:
        yield "front_end_limited", limit.sentence
    if cpu.executor_queued is not None and cpu.executor_queued > QUEUED_LIMIT:
        yield (
            "machine_busy",
            f"the executor loop's thread was runnable without a core {cpu.executor_queued:.0%} of time",
        )


def _client(metrics: CellMetrics, cpu: CpuUse) -> Iterator[tuple[str, str]]:
    """Saturated: > 0.90 of a core, or so late that the figures or the load suffer.

    Where the kernel told when bytes arrived, lateness is in no latency: it bounds gaps from above when chunks share a
    read, and it makes users send their next request later. Else the lag's p99 must stay below a tenth of TTFT p50,
    since every TTFT holds one lag, and its p50 below a tenth of TPOT p50, since a gap is the difference of two arrivals
    and a rare late wake-up moves few of thousands. A timer's own granularity is no lag.
    """
    used = max((value for value in (metrics.client_cpu_fraction, cpu.load) if value is not None), default=0.0)
    if used > CLIENT_CPU_LIMIT:
        yield "client_saturated", f"a load process used {used:.2f} of a core over the window"
        return
    if metrics.arrival_lag_ms is not None:
        yield from _late_looks(metrics, metrics.arrival_lag_ms)
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


def _late_looks(metrics: CellMetrics, lag: Spread) -> Iterator[tuple[str, str]]:
    if metrics.e2e_ms and lag.p50 > LAG_OF_REQUEST * metrics.e2e_ms.p50:
        late = f"arrivals were seen up to {lag.p50:.1f} ms late (p50 of a request's worst)"
        late += f", against {metrics.e2e_ms.p50:.0f} ms a request: users sent their next one as late"
        yield "client_saturated", f"{late}. Latencies are by the kernel's clock and hold none of it"
    elif metrics.bounded_fraction is not None and metrics.bounded_fraction > MOST_BOUNDED:
        merged = f"{metrics.bounded_fraction:.0%} of the chunks shared a read with a later one"
        yield "client_saturated", f"{merged}: gaps between them are bounded, not exact. TTFT is by the kernel's clock"


def _load(cell: CellTables, metrics: CellMetrics, think_s: float) -> Iterator[tuple[str, str]]:
    asked, reached = cell.info.concurrency, metrics.in_flight_mean
    answered_s = metrics.e2e_ms.mean / 1000 if metrics.e2e_ms else 0.0
    expected = asked * answered_s / (answered_s + think_s) if think_s else asked  # users who think are not in flight
    open_loop = bool(cell.requests["scheduled_ns"].notna().any())  # there, users are a limit and not a goal
    if not open_loop and reached is not None and reached < CONCURRENCY_REACHED * expected:
        thinking = f", {expected:.0f} expected of users who think" if think_s else ""
        yield (
            "concurrency_not_reached",
            f"{reached:.0f} in flight on average over the window, {asked} asked for{thinking}",
        )
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
    yield from _looks(cell, metrics)
    if metrics.host_step_ms is None:
        yield "no_steps", "no turn of the executor loop was logged in the window"
    elif metrics.steps_lost:
        yield "observer_failed", f"{metrics.steps_lost} iterations are missing from the log in the window"


def _looks(cell: CellTables, metrics: CellMetrics) -> Iterator[tuple[str, str]]:
    """Judge the wait sampler's looks; why a cell has none at all is among the harness's own warnings."""
    if not cell.gil:
        return
    gil = metrics.gil
    if gil is None:
        yield "no_gil_samples", "no look of the wait sampler fell into the window: who waited is not known"
        return
    missed = gil.missed / (gil.missed + gil.looks)
    if missed > SAMPLES_MISSED_LIMIT:
        yield "samples_missed", f"the wait sampler came too late for {missed:.0%} of its looks"
    if metrics.host_step_ms is not None and gil.loop is not None and gil.executor_steps is None:
        yield "no_gil_samples", "no step of the executor loop lies between looks: its wait a step is not known"
