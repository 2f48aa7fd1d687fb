"""One cell: launch the stack, drive the load through its phases, observe, stop; records on disk whatever happens."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from contracts.arrow import write_rows
from contracts.doubts import Doubt
from contracts.errors import FailingServerError, LoadError, ToolError
from contracts.folder import CellFolder, CellInfo, Phases, SweepFolder
from contracts.load import LoadSpec
from contracts.records import SERVER
from contracts.sockets import STACK_FOLDER, STACK_SOCKET, parent_for_sockets
from harness.events import CellEnded, CellStarted, Doubted, Event, GilMoved, Listener, LoadMoved, StageReached
from harness.loadcrew import LoadCrew, OpenLink, shares_of
from harness.loadlink import Heard, LoadLink, LocalLoad
from harness.observing import CellObservers
from harness.phases import LoadPhases
from harness.placement import Placement, available_cpus, place
from harness.plan import Cell, LoadPlan
from harness.process import Guard
from harness.remote import RemoteWorker, RemoteWorkers
from harness.stacks.base import RunningServer, ServerView, Stack

SOCKET_NAMES = ("loadgen-XXXXXXXX", STACK_FOLDER, STACK_SOCKET)
STOP_GRACE_S = 8.0
INTERRUPT_GRACE_S = 1.0
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 120.0
SHARED_CORE_NICE = -10  # a load process that waits for the server's core measures the scheduler


@dataclass(slots=True)
class _Outcome:
    """What a load has gathered so far, and what its present cell has; becomes a cell.json."""

    doubts: list[Doubt] = field(default_factory=list)
    view: ServerView | None = None
    load_pids: list[int] = field(default_factory=list)
    load_nice: int = 0
    load: LoadPhases | None = None
    observers: CellObservers | None = None
    cell_doubts: list[Doubt] = field(default_factory=list)
    crew: LoadCrew | None = None
    machines: Mapping[str, str] = field(default_factory=dict)
    told: set[Doubt] = field(default_factory=set)

    def all_doubts(self) -> list[Doubt]:
        """Give the doubts of the load and of its present cell, as far as they are known."""
        lost = [Doubt("worker_lost", why) for why in self.crew.lost.values()] if self.crew else []
        return [*self.doubts, *self.cell_doubts, *lost, *(self.observers.doubts if self.observers else ())]

    def tell(self, notify: Listener) -> None:
        """Tell those that have come up since the last time."""
        for doubt in self.all_doubts():
            if doubt not in self.told:
                self.told.add(doubt)
                notify(Doubted(doubt))

    @property
    def phases(self) -> Phases:
        return Phases() if self.load is None else self.load.phases


class _Journal:
    """Writes the cell.json of the cells of one load, one after the other; `ended_well` of all so far."""

    def __init__(
        self, cells: Sequence[Cell], sweep: SweepFolder, placement: Placement, outcome: _Outcome, notify: Listener
    ) -> None:
        self._records = cells[0].slug if cells[0].stage else None
        self._sweep = sweep
        self._placement = placement
        self._outcome = outcome
        self._notify = notify
        self.ended_well = True

    def begin(self, cell: Cell) -> CellFolder:
        folder = self._sweep.cell(cell.slug)
        folder.path.mkdir(parents=True, exist_ok=True)
        self._outcome.observers, self._outcome.cell_doubts = None, []
        stage = cell.stage
        if stage is not None and stage.ramp_from is not None:
            detail = f"from {stage.ramp_from} to {stage.users} users over {stage.duration_s:g} s"
            self._outcome.cell_doubts.append(Doubt("ramp_window", detail))
        self._cell = cell
        self._info = CellInfo(
            id=cell.id,
            slug=cell.slug,
            index=cell.index,
            block=cell.block,
            knobs=dict(cell.knobs),
            concurrency=cell.concurrency,
            state="running",
            placement=self._placement.describe(),
            started_at=_now(),
            stage=None if stage is None else {"step": cell.step, **asdict(stage)},
            records=self._records,
        )
        folder.write(self._info)
        return folder

    def close(self, state: str, error: str | None = None) -> None:
        info = _closed(self._info, self._outcome, state, error)
        self._sweep.cell(self._cell.slug).write(info)
        self._outcome.tell(self._notify)
        self.ended_well = self.ended_well and state == "done"
        if error != "interrupted":
            self._notify(CellEnded(self._cell, info))


class CellRunner:
    """Runs cells of one sweep, one after the other."""

    def __init__(
        self,
        stack: Stack,
        load: LoadPlan,
        guard: Guard,
        *,
        observe: bool,
        notify: Listener,
        remote: RemoteWorkers | None = None,
    ) -> None:
        self._remote = remote
        self._stack = stack
        self._load = load
        self._guard = guard
        self._observe = observe
        self._notify = notify

    def run(self, cells: Sequence[Cell], sweep: SweepFolder, total: int) -> bool:
        """Run one cell, or the stages of one load; write each one's cell.json; say whether all ended well.

        A failure is a cell's state, not an exception; the stages after it never begin. Only KeyboardInterrupt passes
        through, after the cell was stopped and noted as partial. What an earlier try left is removed first.
        """
        for cell in cells:
            shutil.rmtree(sweep.cell(cell.slug).path, ignore_errors=True)
        placement, doubts = self._place(cells[0])
        outcome = _Outcome(doubts=list(doubts))
        journal = _Journal(cells, sweep, placement, outcome, self._notify)
        self._notify(CellStarted(cells[0], cells[0].index, total))
        folder = journal.begin(cells[0])
        outcome.tell(self._notify)
        try:
            self._run(cells, folder, placement, outcome, journal, total)
        except KeyboardInterrupt:
            journal.close("partial", "interrupted")
            raise
        except (ToolError, OSError) as error:
            early = outcome.phases.steady_start_ns is None or isinstance(error, FailingServerError)
            journal.close("failed" if early else "partial", str(error))
        else:
            journal.close("done")
        return journal.ended_well

    def _place(self, cell: Cell) -> tuple[Placement, tuple[Doubt, ...]]:
        if not self._stack.placeable:
            return Placement(), (Doubt("cpu_shared", "the server was started elsewhere: nothing is pinned"),)
        return place(
            available_cpus(),
            one_process=self._stack.one_process(cell.knobs),
            over_http=self._load.drive == "http",
        )

    def _run(
        self,
        cells: Sequence[Cell],
        folder: CellFolder,
        placement: Placement,
        outcome: _Outcome,
        journal: _Journal,
        total: int,
    ) -> None:
        """Start everything in order; the exit stack ends it in the opposite order, hastily if something broke."""
        grace_s = INTERRUPT_GRACE_S
        first = cells[0]
        with ExitStack() as cleanup:
            temporary = Path(tempfile.mkdtemp(prefix="loadgen-", dir=parent_for_sockets(*SOCKET_NAMES)))
            self._guard.watch_folder(temporary)
            cleanup.callback(self._guard.forget_folder, temporary)
            cleanup.callback(shutil.rmtree, temporary, ignore_errors=True)
            self._notify(StageReached(first, "launch", None))
            server = self._stack.launch(self._guard, first.knobs, placement, temporary, folder.server_log)
            cleanup.callback(lambda: server.stop(grace_s))
            outcome.view = server.view()
            machines = self._machines()
            specs = self._specs(cells, folder, server, len(machines) or self._load.workers)
            opener = (
                self._on_machines(machines, folder, outcome) if machines else self._here(placement, folder, outcome)
            )
            crew = outcome.crew = LoadCrew(specs, opener)
            cleanup.callback(lambda: crew.stop(grace_s))
            if self._remote is not None:
                numbers = {machine.number: place for place, machine in enumerate(machines)}
                self._remote.write_clocks(folder.clocks, numbers)  # the first round trips, should we be killed
                cleanup.callback(self._remote.write_clocks, folder.clocks, numbers)
            outcome.load_pids = crew.pids
            cleanup.callback(lambda: outcome.observers.stop() if outcome.observers else None)
            self._watch(folder, placement, outcome)
            load = outcome.load = LoadPhases(first, self._load, server, crew, partial(self._moved, outcome))
            try:
                load.ramp()
                for cell in cells:
                    if cell is not first:
                        journal.close("done")
                        self._notify(CellStarted(cell, cell.index, total))
                        self._watch(journal.begin(cell), placement, outcome)
                    self._pass(cell, cells, server, load, outcome)
            except FailingServerError:
                load.give_up()
                raise
            rows = server.truth()
            if rows:
                write_rows(folder.server, SERVER, rows)
            if crew.tally().unfinished:
                outcome.cell_doubts.append(Doubt("drain_timeout", f"{crew.tally().unfinished} requests"))
            grace_s = STOP_GRACE_S
            self._notify(StageReached(cells[-1], "stop", None))

    def _watch(self, folder: CellFolder, placement: Placement, outcome: _Outcome) -> None:
        """Begin the observers of a cell."""
        assert outcome.view is not None
        observers = outcome.observers = CellObservers(
            self._guard, folder, placement, writes_steps=self._stack.writes_steps, observe=self._observe
        )
        observers.begin(outcome.view, outcome.load_pids)

    def _pass(
        self, cell: Cell, cells: Sequence[Cell], server: RunningServer, load: LoadPhases, outcome: _Outcome
    ) -> None:
        """Take one cell through its window, and the last one through the drain."""
        first, last = cell is cells[0], cell is cells[-1]
        observers = outcome.observers
        assert observers is not None
        stage = cell.stage
        duration_s = self._load.duration_s if stage is None else stage.duration_s
        view = outcome.view = server.view()
        observers.warm_up(view)

        def opened() -> None:
            observers.open_window(view, duration_s)

        if stage is not None and stage.ramp_from is not None:
            load.ramp_window(cell, opened, last=last)
        else:
            if not first:
                load.climb(cell)
            load.warm_up()
            view = outcome.view = server.view()
            load.steady(opened, last=last)
        observers.close_window()
        outcome.tell(self._notify)
        if load.ended_early:
            outcome.cell_doubts.append(Doubt("trace_ended", "no request was left in the trace"))
        if last:
            load.drain()
        observers.finish()
        if not last:
            observers.stop()

    def _moved(self, outcome: _Outcome, event: Event) -> None:
        """Pass on what the load has come to, and with its counts what the GIL's sampler has seen meanwhile."""
        self._notify(event)
        if isinstance(event, LoadMoved) and outcome.observers is not None:
            pulse = outcome.observers.gil_pulse()
            if pulse is not None:
                self._notify(GilMoved(event.cell, pulse))

    def _machines(self) -> list[RemoteWorker]:
        """Give the load machines that are still there; empty for a load on this machine. Raises LoadError."""
        if self._remote is None:
            return []
        if not self._remote.present:
            raise LoadError("there is no load machine left: all were lost")
        return self._remote.present

    def _here(self, placement: Placement, folder: CellFolder, outcome: _Outcome) -> OpenLink:
        nice = SHARED_CORE_NICE if placement.load_beside_server else 0

        def open_link(spec: LoadSpec, heard: Heard) -> LoadLink:
            link = LocalLoad(self._guard, spec, heard, log=folder.client_log, cpus=placement.load, nice=nice)
            outcome.load_nice = nice if link.favoured else 0
            return link

        return open_link

    def _on_machines(self, machines: Sequence[RemoteWorker], folder: CellFolder, outcome: _Outcome) -> OpenLink:
        remote = self._remote
        assert remote is not None
        outcome.machines = {f"load{place or ''}": machine.host for place, machine in enumerate(machines)}
        return lambda spec, heard: remote.open(machines[spec.worker], spec, folder, heard)

    def _specs(
        self, cells: Sequence[Cell], folder: CellFolder, server: RunningServer, processes: int
    ) -> list[LoadSpec]:
        """Share the users out over the load processes."""
        load, cell = self._load, cells[0]
        users_at_first = cell.concurrency
        if cell.stage is not None and cell.stage.ramp_from is not None:
            users_at_first = cell.stage.ramp_from
        workers = min(processes, users_at_first, *(cell.concurrency for cell in cells))
        if load.drive == "rpc":
            assert server.direct_socket is not None
        shares = shares_of(users_at_first, workers)
        most = shares_of(max(users_at_first, *(cell.concurrency for cell in cells)), workers)
        return [
            LoadSpec(
                drive=load.drive,
                target=str(server.direct_socket) if load.drive == "rpc" else server.url,
                endpoint=load.endpoint,
                model=server.model,
                worker=worker,
                workers=workers,
                users=users,
                first_user=sum(most[:worker]),
                spawn_rate=max(users / load.ramp_s, 1.0),
                quota=None if load.requests is None else max(1, load.requests * users // users_at_first),
                drain_s=load.drain_s,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                read_timeout_s=READ_TIMEOUT_S,
                workload=replace(load.workload, seed=load.workload.seed + cell.block),
                requests_path=str(folder.requests(worker)),
                client_path=str(folder.client(worker)),
                arrival=load.arrival,
                rate_rps=None if load.rate_rps is None else load.rate_rps * users / users_at_first,
                burstiness=load.burstiness,
                arrival_phase=worker / workers,
                think_s=load.think_s,
                abort_fraction=load.abort_fraction,
                abort_after_tokens=load.abort_after_tokens,
                give_up_s=load.give_up_s,
                most_users=most[worker],
                locustfile=load.locustfile,
                web_port=None if worker else load.web_port,
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
    return replace(
        info,
        state=state,
        phases=outcome.phases,
        stacks=observed.stacks if observed else None,
        processes=processes,
        load_machines=dict(outcome.machines),
        server=dict(facts),
        placement={**info.placement, "load_nice": str(outcome.load_nice)},
        ended_at=_now(),
        error=error,
        warnings=tuple({"code": doubt.code, "detail": doubt.detail} for doubt in outcome.all_doubts()),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
