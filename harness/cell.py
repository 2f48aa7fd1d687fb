"""One cell: launch the stack, drive the load through its phases, observe, stop; records on disk whatever happens."""

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from contracts.arrow import write_rows
from contracts.doubts import Doubt
from contracts.errors import FailingServerError, ToolError
from contracts.folder import CellFolder, CellInfo, Phases
from contracts.load import LoadSpec
from contracts.records import SERVER
from harness.events import Listener, StageReached
from harness.loadcrew import LoadCrew
from harness.observing import CellObservers
from harness.phases import LoadPhases
from harness.placement import Placement, available_cpus, place
from harness.plan import Cell, LoadPlan
from harness.process import Guard
from harness.stacks.base import RunningServer, ServerView, Stack

STOP_GRACE_S = 8.0
INTERRUPT_GRACE_S = 1.0
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 120.0
SHARED_CORE_NICE = -10  # a load process that waits for the server's core measures the scheduler


@dataclass(slots=True)
class _Outcome:
    """What a cell has gathered so far; becomes its cell.json."""

    doubts: list[Doubt] = field(default_factory=list)
    view: ServerView | None = None
    load_pids: list[int] = field(default_factory=list)
    load_nice: int = 0
    load: LoadPhases | None = None
    observers: CellObservers | None = None

    @property
    def phases(self) -> Phases:
        return Phases() if self.load is None else self.load.phases


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
            early = outcome.phases.steady_start_ns is None or isinstance(error, FailingServerError)
            state = "failed" if early else "partial"
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
        """Start everything in order; the exit stack ends it in the opposite order, hastily if something broke."""
        grace_s = INTERRUPT_GRACE_S
        with ExitStack() as cleanup:
            temporary = Path(tempfile.mkdtemp(prefix="loadgen-"))
            self._guard.watch_folder(temporary)
            cleanup.callback(self._guard.forget_folder, temporary)
            cleanup.callback(shutil.rmtree, temporary, ignore_errors=True)
            self._notify(StageReached(cell, "launch", None))
            server = self._stack.launch(self._guard, cell.knobs, placement, temporary, folder.server_log)
            cleanup.callback(lambda: server.stop(grace_s))
            outcome.view = server.view()
            crew = LoadCrew(
                self._guard,
                self._specs(cell, folder, server),
                log=folder.client_log,
                cpus=placement.load,
                nice=SHARED_CORE_NICE if placement.load_beside_server else 0,
            )
            cleanup.callback(lambda: crew.stop(grace_s))
            outcome.load_nice = SHARED_CORE_NICE if crew.favoured else 0
            outcome.load_pids = crew.pids
            observers = outcome.observers = CellObservers(
                self._guard, folder, placement, writes_steps=self._stack.writes_steps, observe=self._observe
            )
            cleanup.callback(observers.stop)
            observers.begin(outcome.view, crew.pids)
            load = outcome.load = LoadPhases(cell, self._load, server, crew, self._notify)
            try:
                self._drive(folder, server, load, observers, outcome)
            except FailingServerError:
                load.give_up()
                raise
            if crew.tally().unfinished:
                outcome.doubts.append(Doubt("drain_timeout", f"{crew.tally().unfinished} requests"))
            grace_s = STOP_GRACE_S
            self._notify(StageReached(cell, "stop", None))

    def _drive(
        self, folder: CellFolder, server: RunningServer, load: LoadPhases, observers: CellObservers, outcome: _Outcome
    ) -> None:
        load.ramp()
        load.warm_up()
        view = outcome.view = server.view()
        load.steady(opened=lambda: observers.open_window(view, self._load.duration_s))
        observers.close_window()
        if load.ended_early:
            outcome.doubts.append(Doubt("trace_ended", "no request was left in the trace"))
        load.drain()
        observers.finish()
        rows = server.truth()
        if rows:
            write_rows(folder.server, SERVER, rows)

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
                workers=workers,
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
                arrival=load.arrival,
                rate_rps=None if load.rate_rps is None else load.rate_rps * users / cell.concurrency,
                burstiness=load.burstiness,
                arrival_phase=worker / workers,
                think_s=load.think_s,
                abort_fraction=load.abort_fraction,
                abort_after_tokens=load.abort_after_tokens,
                give_up_s=load.give_up_s,
                keep_alive=load.keep_alive,
                tls_verify=load.tls_verify,
                extra_body=dict(load.extra_body),
            )
            for worker, users in enumerate(shares)
        ]


def _closed(info: CellInfo, outcome: _Outcome, state: str, error: str | None) -> CellInfo:
    processes: dict[str, int] = dict(outcome.view.processes) if outcome.view else {}
    processes |= {f"load{n or ''}": pid for n, pid in enumerate(outcome.load_pids)}
    facts: Mapping[str, object] = outcome.view.facts if outcome.view else {}
    observed = outcome.observers
    doubts = [*outcome.doubts, *(observed.doubts if observed else ())]
    return replace(
        info,
        state=state,
        phases=outcome.phases,
        stacks=observed.stacks if observed else None,
        processes=processes,
        server=dict(facts),
        placement={**info.placement, "load_nice": str(outcome.load_nice)},
        ended_at=_now(),
        error=error,
        warnings=tuple({"code": doubt.code, "detail": doubt.detail} for doubt in doubts),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
