"""What limits a cell, named with its evidence: CPU of the processes, step times and who held the GIL.

Rules in order, the first that holds wins; a fraction of 1 is one core. The thresholds leave room for the sampler's
edges and for the millisecond a saturated thread spends being switched.
  client          a load process burned >= 0.90
  front_end       the front end burned >= 0.85, and less than 0.7 of the requests in flight are in the engine's steps
  device          the device step fills >= 0.85 of the turn: the loop waits for the device
  executor_loop   the loop's thread burned, or held the GIL, >= 0.75: Python work on the loop itself
  gil             the GIL was held >= 0.80, >= 0.15 of it by others: they take it from the loop
  post_processing a post-processing process burned >= 0.85 (it has one thread, and can fill a core), and more than any
                  front end: the loop has time left
  front_end       a front end burned >= 0.75 (its threads wait for one GIL, so it never fills a core), or fills >= 0.92
                  of its core with the load process pinned beside it, and none of the above: the loop has time left
Of several front ends, or post-processing processes, the busiest counts: what belongs to it waits for it.
"""

from dataclasses import dataclass

import numpy as np

from analysis.gil.stacks import is_executor_loop
from analysis.metrics import CellMetrics
from analysis.tables import CellTables
from analysis.window import counter_rate

CLIENT_BUSY = 0.90
DEVICE_FILLS = 0.85
LOOP_BUSY = 0.75
GIL_BUSY = 0.80
OTHERS_MATTER = 0.15
FRONT_END_BUSY = 0.75
SHARED_CORE_FULL = 0.92
FRONT_END_FULL = 0.85
LET_THROUGH = 0.7
POSTPROC_BUSY = 0.85


@dataclass(frozen=True, slots=True)
class Limit:
    """What limits a cell: `name` is one of those above, or unclear; one sentence says why."""

    name: str
    sentence: str

    @property
    def title(self) -> str:
        return _TITLES[self.name]


_TITLES = {
    "client": "load generator",
    "device": "device",
    "executor_loop": "executor loop (host)",
    "gil": "GIL contention",
    "post_processing": "post-processing",
    "front_end": "front end",
    "unclear": "unclear",
}


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Cores burned over the window; None where host.arrow does not tell. `queued` is run-queue delay as a share.

    `front_end` and `postproc` are of the busiest process, with its role where there are several. `one_process` is True
    when the executor loop is a thread of the (first) front end's process, and shares its GIL.
    """

    load: float | None
    front_end: float | None
    front_end_name: str
    postproc: float | None
    postproc_name: str
    engine: float | None
    executor: float | None
    executor_queued: float | None
    one_process: bool


def cpu_use(cell: CellTables) -> CpuUse:
    """Read what each role burned from the host sampler's counters (several processes of a role: the busiest)."""
    processes, threads = _rates(cell, threads=False), _rates(cell, threads=True)
    loops = [
        (rates, role)
        for (role, name, _), rates in threads.items()
        if not role.startswith("load") and is_executor_loop(name)
    ]
    (executor, queued), role = max(loops, default=((None, None), ""), key=lambda loop: loop[0][0] or 0.0)
    one_process = role in {"proxy", "server"}
    own = {"frontend"} if one_process else {"proxy", "server", "frontend"}
    front_end, name = _busiest(processes, own)
    if one_process and front_end is None:  # there is one front end, and it is the loop's process
        front_end, name = _busiest(processes, {"proxy", "server"})
    postproc, postproc_name = _busiest(processes, {"postproc"})
    return CpuUse(
        load=_busiest(processes, {"load"})[0],
        front_end=front_end,
        front_end_name=name,
        postproc=postproc,
        postproc_name=postproc_name,
        engine=_busiest(processes, {"rank"})[0],
        executor=executor,
        executor_queued=queued,
        one_process=one_process,
    )


def find_limit(cell: CellTables, metrics: CellMetrics, cpu: CpuUse) -> Limit:  # noqa: PLR0911 - one return a rule
    """Name what limits a cell, by the rules above; `cpu` is what `cpu_use` gives of it."""
    step, device = metrics.host_step_ms, metrics.device_step_ms
    held, held_by_loop = metrics.gil_held_total, metrics.gil_held_executor
    turn = f"a turn takes {step.mean:.1f} ms" if step else "turns are not logged"
    if step and device:
        turn += f" against a device step of {device.mean:.1f} ms"
    load = max((value for value in (cpu.load, metrics.client_cpu_fraction) if value is not None), default=None)

    if load is not None and load >= CLIENT_BUSY:
        return Limit("client", f"The load process used {load:.2f} of a core, so it measures itself; {turn}.")
    if (starved := _starved(cell, metrics, cpu)) is not None:
        return Limit("front_end", f"{starved}; {turn}.")
    if step and device and device.mean >= DEVICE_FILLS * step.mean:
        return Limit("device", f"The loop waits for the device: {turn}.")
    if cpu.executor is not None and cpu.executor >= LOOP_BUSY:
        burned = f"The executor loop burned {cpu.executor:.2f} of a core{_held(held_by_loop)}"
        return Limit("executor_loop", f"{burned}; {turn}.")
    if held is not None and held_by_loop is not None:
        others = held - held_by_loop
        shares = f"{held_by_loop:.0%} by the executor loop and {others:.0%} by others{_one_gil(cpu)}"
        if held_by_loop >= LOOP_BUSY or (held >= GIL_BUSY and others < OTHERS_MATTER):
            return Limit("executor_loop", f"The GIL was held {held:.0%} of the time, {shares}; {turn}.")
        if held >= GIL_BUSY:
            return Limit("gil", f"The GIL was held {held:.0%} of the time, {shares}; {turn}.")
    left = f"the executor loop burned only {cpu.executor:.2f}" if cpu.executor is not None else "the engine had time"
    if cpu.postproc is not None and cpu.postproc >= POSTPROC_BUSY and cpu.postproc >= (cpu.front_end or 0.0):
        name = f"Post-processing process {cpu.postproc_name}"
        return Limit("post_processing", f"{name} used {cpu.postproc:.2f} of a core while {left}; {turn}.")
    further = cpu.front_end_name.startswith("frontend")
    apart = (not cpu.one_process or further) and (cpu.engine is not None or cpu.executor is not None)
    if apart and cpu.front_end is not None and cpu.front_end >= FRONT_END_BUSY:
        name = f"The front end {cpu.front_end_name}" if further else "The front end"
        return Limit("front_end", f"{name} used {cpu.front_end:.2f} of a core while {left}; {turn}.")
    if apart and cpu.front_end is not None and _front_end_fills_its_core(cell, cpu):
        return Limit(
            "front_end",
            f"The front end used {cpu.front_end:.2f} of a core and the load process {cpu.load or 0.0:.2f} of the same "
            f"one: that core was full, and the loop had time left; {turn}.",
        )
    return Limit("unclear", _what_is_known(cpu, held, turn))


def _starved(cell: CellTables, metrics: CellMetrics, cpu: CpuUse) -> str | None:
    """Say so where a full front end lets too few of the requests in flight through to the engine."""
    if cpu.front_end is None or not metrics.in_flight_mean:
        return None
    busy = cpu.front_end - ((cpu.executor or 0.0) if cpu.one_process else 0.0)
    steps = cell.steps
    active = steps.loc[steps["in_window"], "scheduled_requests"].mean()
    if busy < FRONT_END_FULL or not active < LET_THROUGH * metrics.in_flight_mean:
        return None
    beside = " beside the executor loop" if cpu.one_process else ""
    return (
        f"The front end used {busy:.2f} of a core{beside}, and of {metrics.in_flight_mean:,.0f} requests in flight "
        f"only {active:,.0f} were in the engine's steps"
    )


def _front_end_fills_its_core(cell: CellTables, cpu: CpuUse) -> bool:
    """Say whether front end and load, pinned to one core together, used it up, the front end most of it."""
    placement = cell.info.placement
    together = placement.get("server") == placement.get("load") and (placement.get("load") or "any").isdecimal()
    front_end, load = cpu.front_end or 0.0, cpu.load or 0.0
    return together and front_end + load >= SHARED_CORE_FULL and front_end > load


def _held(share: float | None) -> str:
    return "" if share is None else f" and held the GIL {share:.0%} of the time"


def _one_gil(cpu: CpuUse) -> str:
    return " (front end and loop share one process and one GIL)" if cpu.one_process else ""


def _what_is_known(cpu: CpuUse, held: float | None, turn: str) -> str:
    further = cpu.front_end_name.startswith("frontend")
    known = [
        f"{name} {value:.2f}"
        for name, value in (
            ("load process", cpu.load),
            ("server process" if cpu.one_process and not further else "front end", cpu.front_end),
            ("post-processing", cpu.postproc),
            ("rank 0", cpu.engine),
            ("executor loop", cpu.executor),
        )
        if value is not None
    ]
    cores = f"Cores used: {', '.join(known)}" if known else "No CPU samples"
    gil = f"; the GIL was held {held:.0%} of the time" if held is not None else ""
    return f"Nothing was used up. {cores}{gil}; {turn}."


def _rates(cell: CellTables, *, threads: bool) -> dict[tuple[str, str, int], tuple[float | None, float | None]]:
    """(role, name, tid or pid) -> (cores burned, share of time in the run queue) over the window."""
    host, window = cell.host, cell.window
    if window is None or host.empty:
        return {}
    rows = host[host["tid"].notna() if threads else host["tid"].isna()]
    rates = {}
    for _, one in rows.groupby(["role", "tid" if threads else "pid"]):
        t_ns = one["t_ns"].to_numpy(dtype=np.int64)
        burned = counter_rate(t_ns, one["cpu_ns"].to_numpy(dtype=np.float64), window)
        queued = counter_rate(t_ns, one["runqueue_ns"].to_numpy(dtype=np.float64), window)
        last = one.iloc[-1]
        rates[str(last["role"]), str(last["name"]), int(last["tid" if threads else "pid"])] = (burned, queued)
    return rates


def _busiest(
    processes: dict[tuple[str, str, int], tuple[float | None, float | None]], roles: set[str]
) -> tuple[float | None, str]:
    """Return what the busiest process of these roles burned, and its role; several of one role have numbers."""
    burned = [(rate, role) for (role, _, _), (rate, _) in processes.items() if rate is not None and _is(role, roles)]
    return max(burned, default=(None, ""), key=lambda one: one[0] or 0.0)


def _is(role: str, roles: set[str]) -> bool:
    return role.rstrip("0123456789") in roles
