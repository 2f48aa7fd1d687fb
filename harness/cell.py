"""One cell: launch the stack, drive the load through its phases, observe, stop; records on disk whatever happens."""

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from contracts.arrow import write_rows
from contracts.clock import NS_PER_S, now_ns
from contracts.doubts import Doubt
from contracts.errors import LaunchError, ToolError
from contracts.folder import CellFolder, CellInfo, GilStacks, Phases
from contracts.load import LoadSpec
from contracts.records import SERVER
from harness.events import Listener, LoadMoved, StageReached
from harness.loadcrew import LoadCrew
from harness.observers.gil.recorder import GilWaitRecorder
from harness.observers.gil_stacks import GilStackRecorder
from harness.observers.host import HostSampler
from harness.observers.iterlog import IterationTail
from harness.placement import Placement, available_cpus, place
from harness.plan import Cell, LoadPlan
from harness.process import Guard
from harness.stacks.base import RunningServer, ServerView, Stack

READY_TIMEOUT_S = 60.0
RAMP_GRACE_S = 60.0
SETTLE_LIMIT_S = 60.0
STOP_GRACE_S = 8.0
INTERRUPT_GRACE_S = 1.0
MIN_STACKS_S = 2
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 120.0
SHARED_CORE_NICE = -10  # a load process that waits for the server's core measures the scheduler


_Watch = Callable[[], None]


@dataclass(slots=True)
class _Outcome:
    """What a cell has gathered so far; becomes its cell.json."""

    phases: Phases = field(default_factory=Phases)
    stacks: GilStacks | None = None
    view: ServerView | None = None
    load_pids: list[int] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    load_nice: int = 0

    def note(self, doubts: tuple[Doubt, ...]) -> None:
        self.doubts += doubts

    def passed(self, **times: int) -> None:
        self.phases = replace(self.phases, **times)


class CellRunner:
    """Runs cells of one sweep, one after the other."""

    def __init__(self, stack: Stack, load: LoadPlan, guard: Guard, *, observe: bool, notify: Listener) -> None:
        self._stack = stack
        self._load = load
        self._guard = guard
        self._observe = observe
        self._notify = notify

    def run(self, cell: Cell, folder: CellFolder) -> CellInfo:
        """Run one cell and write its cell.json. A failure is the cell's state, not an exception.

        Only KeyboardInterrupt passes through, after the cell was stopped and noted as partial. What an earlier try
        left in the folder is removed first.
        """
        shutil.rmtree(folder.path, ignore_errors=True)
        folder.path.mkdir(parents=True)
        placement, doubts = self._place(cell)
        info = CellInfo(
            id=cell.id,
            slug=cell.slug,
            index=cell.index,
            block=cell.block,
            knobs=dict(cell.knobs),
            concurrency=cell.concurrency,
            state="running",
            placement=placement.describe(),
            started_at=_now(),
        )
        folder.write(info)
        outcome = _Outcome(doubts=list(doubts))
        try:
            self._run(cell, folder, placement, outcome)
        except KeyboardInterrupt:
            folder.write(_closed(info, outcome, "partial", "interrupted"))
            raise
        except (ToolError, OSError) as error:
            state = "failed" if outcome.phases.steady_start_ns is None else "partial"
            info = _closed(info, outcome, state, str(error))
        else:
            info = _closed(info, outcome, "done", None)
        folder.write(info)
        return info

    def _place(self, cell: Cell) -> tuple[Placement, tuple[Doubt, ...]]:
        if not self._stack.placeable:
            return Placement(), (Doubt("cpu_shared", "the server was started elsewhere: nothing is pinned"),)
        return place(
            available_cpus(),
            one_process=self._stack.one_process(cell.knobs),
            over_http=self._load.drive == "http",
        )

    def _run(self, cell: Cell, folder: CellFolder, placement: Placement, outcome: _Outcome) -> None:
        with ExitStack() as cleanup:
            temporary = Path(tempfile.mkdtemp(prefix="loadgen-"))
            self._guard.watch_folder(temporary)
            cleanup.callback(self._guard.forget_folder, temporary)
            cleanup.callback(shutil.rmtree, temporary, ignore_errors=True)
            self._stage(cell, "launch", None)
            server = self._stack.launch(self._guard, cell.knobs, placement, temporary, folder.server_log)
            ended_well = False

            def stop_server() -> None:
                server.stop(STOP_GRACE_S if ended_well else INTERRUPT_GRACE_S)

            cleanup.callback(stop_server)
            outcome.view = server.view()
            crew = LoadCrew(
                self._guard,
                self._specs(cell, folder, server),
                log=folder.client_log,
                cpus=placement.load,
                nice=SHARED_CORE_NICE if placement.load_beside_server else 0,
            )
            outcome.load_nice = SHARED_CORE_NICE if crew.favoured else 0
            cleanup.callback(lambda: crew.stop(STOP_GRACE_S if ended_well else INTERRUPT_GRACE_S))
            outcome.load_pids = crew.pids
            host = self._start_observers(folder, outcome, cleanup) if self._observe else None
            self._drive(cell, folder, placement, server, crew, host, outcome, cleanup)
            ended_well = True
            self._stage(cell, "stop", None)

    def _specs(self, cell: Cell, folder: CellFolder, server: RunningServer) -> list[LoadSpec]:
        """Share the users out over the load processes."""
        load = self._load
        workers = min(load.workers, cell.concurrency)
        if load.drive == "rpc":
            assert server.direct_socket is not None
        shares = [cell.concurrency // workers + (n < cell.concurrency % workers) for n in range(workers)]
        return [
            LoadSpec(
                drive=load.drive,
                target=str(server.direct_socket) if load.drive == "rpc" else server.url,
                endpoint=load.endpoint,
                model=server.model,
                worker=worker,
                users=users,
                first_user=sum(shares[:worker]),
                spawn_rate=max(users / load.ramp_s, 1.0),
                quota=None if load.requests is None else max(1, load.requests * users // cell.concurrency),
                drain_s=load.drain_s,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                read_timeout_s=READ_TIMEOUT_S,
                workload=replace(load.workload, seed=load.workload.seed + cell.block),
                requests_path=str(folder.requests(worker)),
                client_path=str(folder.client(worker)),
            )
            for worker, users in enumerate(shares)
        ]

    def _start_observers(self, folder: CellFolder, outcome: _Outcome, cleanup: ExitStack) -> HostSampler:
        assert outcome.view is not None
        host = HostSampler(folder.host)
        host.watch(outcome.view.processes, outcome.view.threads)
        host.watch({f"load{n or ''}": pid for n, pid in enumerate(outcome.load_pids)}, {})
        host.start()
        cleanup.callback(lambda: outcome.note(host.stop()))
        return host

    def _drive(
        self,
        cell: Cell,
        folder: CellFolder,
        placement: Placement,
        server: RunningServer,
        crew: LoadCrew,
        host: HostSampler | None,
        outcome: _Outcome,
        cleanup: ExitStack,
    ) -> None:
        load = self._load
        if self._stack.writes_steps:
            tail = IterationTail(folder.server_log, folder.steps)
            tail.start()
            cleanup.callback(lambda: outcome.note(tail.stop()))

        def watch() -> None:
            if not server.alive():
                raise LaunchError(f"the server ended during the cell:\n{server.last_log_lines()}")
            self._notify(LoadMoved(cell, crew.tally()))

        crew.wait_for("ready", timeout_s=READY_TIMEOUT_S, stage="starting the load")
        self._stage(cell, "ramp", load.ramp_s)
        outcome.passed(start_ns=now_ns())
        crew.tell("start")
        crew.wait_for("ramped", timeout_s=load.ramp_s + RAMP_GRACE_S, stage="ramping up", each=watch)
        outcome.passed(ramped_ns=now_ns())
        self._stage(cell, "warm-up", load.warmup_s)
        self._warm_up(cell, crew, watch)
        view = outcome.view = server.view()
        if host is not None:
            host.watch(view.processes, view.threads)
        start_ns = now_ns()
        end_ns = None if load.duration_s is None else start_ns + round(load.duration_s * NS_PER_S)
        outcome.passed(steady_start_ns=start_ns)
        crew.tell("steady", start_ns=start_ns, end_ns=end_ns)
        self._stage(cell, "steady", load.duration_s)
        stacks = self._start_stacks(folder, placement, view, cleanup) if self._observe else None
        waits = self._start_waits(folder, placement, view, cleanup) if self._observe else None
        if end_ns is None:
            crew.wait_for("quota", timeout_s=math.inf, stage="the steady window", each=watch)
            end_ns = now_ns()
            crew.tell("stop")
        else:
            _wait_window(crew, end_ns, watch)
        outcome.passed(steady_end_ns=end_ns)
        if waits is not None:
            outcome.doubts += waits.finish()
        self._stage(cell, "drain", None)
        crew.wait_for("done", timeout_s=load.drain_s + RAMP_GRACE_S, stage="draining", each=watch)
        outcome.passed(drained_ns=now_ns())
        if stacks is not None:
            outcome.stacks, doubts = stacks.finish()
            outcome.doubts += doubts
        if crew.tally().unfinished:
            outcome.doubts.append(Doubt("drain_timeout", f"{crew.tally().unfinished} requests"))
        rows = server.truth()
        if rows:
            write_rows(folder.server, SERVER, rows)

    def _warm_up(self, cell: Cell, crew: LoadCrew, watch: _Watch) -> None:
        """Let the least warm-up time pass, and as many requests end as there are users (within reason)."""
        least = time.monotonic() + self._load.warmup_s
        limit = least + SETTLE_LIMIT_S

        def settled() -> bool:
            now = time.monotonic()
            return now >= limit or (now >= least and crew.tally().completed >= cell.concurrency)

        crew.wait_for("done", timeout_s=self._load.warmup_s + SETTLE_LIMIT_S + 5.0, stage="warming up", each=watch,
                      enough=settled)  # fmt: skip

    def _start_stacks(
        self, folder: CellFolder, placement: Placement, view: ServerView, cleanup: ExitStack
    ) -> GilStackRecorder | None:
        if view.executor_pid is None:
            return None
        duration = self._load.duration_s
        recorder = GilStackRecorder(
            self._guard,
            view.executor_pid,
            folder.stacks,
            folder.path / "py-spy.log",
            duration_s=None if duration is None else max(MIN_STACKS_S, int(duration - 1)),
            cpus=placement.observers,
        )
        cleanup.callback(recorder.abandon)
        return recorder

    def _start_waits(
        self, folder: CellFolder, placement: Placement, view: ServerView, cleanup: ExitStack
    ) -> GilWaitRecorder | None:
        if view.executor_pid is None:
            return None
        log = folder.path / "gil.log"
        recorder = GilWaitRecorder(self._guard, view.executor_pid, folder.gil, log, cpus=placement.observers)
        cleanup.callback(recorder.abandon)
        return recorder

    def _stage(self, cell: Cell, stage: str, expected_s: float | None) -> None:
        self._notify(StageReached(cell, stage, expected_s))


def _wait_window(crew: LoadCrew, end_ns: int, watch: _Watch) -> None:
    crew.wait_for(
        "done",
        timeout_s=math.inf,
        stage="the steady window",
        each=watch,
        enough=lambda: now_ns() >= end_ns,
    )


def _closed(info: CellInfo, outcome: _Outcome, state: str, error: str | None) -> CellInfo:
    processes: dict[str, int] = dict(outcome.view.processes) if outcome.view else {}
    processes |= {f"load{n or ''}": pid for n, pid in enumerate(outcome.load_pids)}
    facts: Mapping[str, object] = outcome.view.facts if outcome.view else {}
    warnings = tuple({"code": doubt.code, "detail": doubt.detail} for doubt in outcome.doubts)
    return replace(
        info,
        state=state,
        phases=outcome.phases,
        stacks=outcome.stacks,
        processes=processes,
        server=dict(facts),
        placement={**info.placement, "load_nice": str(outcome.load_nice)},
        ended_at=_now(),
        error=error,
        warnings=warnings,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
