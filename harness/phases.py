"""A load, taken through its phases: ramp, warm-up and the steady window (those again for each further stage), drain."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace

from contracts.clock import NS_PER_S, now_ns
from contracts.errors import FailingServerError, LaunchError, LoadError
from contracts.folder import Phases
from harness.events import Listener, LoadMoved, StageReached
from harness.loadcrew import LoadCrew
from harness.plan import Cell, LoadPlan
from harness.stacks.base import RunningServer

READY_TIMEOUT_S = 60.0
PHASE_GRACE_S = 60.0
SETTLE_LIMIT_S = 60.0
GIVE_UP_DRAIN_S = 10.0
STEP_USERS_PER_S = 700.0
LEAST_STEP_S = 0.2


class LoadPhases:
    """Call the methods in their order. `phases` holds the times that were reached, CLOCK_MONOTONIC ns.

    `ended_early` says that the load was over before the window was.
    Each raises LoadError when the load does not get there, FailingServerError when the server fails everything, and
    LaunchError when it ends meanwhile.
    """

    def __init__(self, cell: Cell, load: LoadPlan, server: RunningServer, crew: LoadCrew, notify: Listener) -> None:
        self._cell = cell
        self._load = load
        self._server = server
        self._crew = crew
        self._notify = notify
        self._given_up = False
        self.ended_early = False
        self._settled_from = 0
        self.phases = Phases()

    def ramp(self) -> None:
        """Start the users, until every one has a request in flight."""
        ramp_s = self._load.ramp_s
        self._crew.wait_for("ready", timeout_s=READY_TIMEOUT_S, stage="starting the load")
        self._notify(StageReached(self._cell, "ramp", ramp_s))
        self._passed(start_ns=now_ns())
        self._crew.tell("start")
        self._crew.wait_for("ramped", timeout_s=ramp_s + PHASE_GRACE_S, stage="ramping up", each=self._watch)
        self._passed(ramped_ns=now_ns())

    def climb(self, cell: Cell) -> None:
        """Go on to another stage of the same load: wait until there are as many users as it holds."""
        before = self._cell.concurrency
        self._enter(cell)
        ramp_s = max(LEAST_STEP_S, abs(cell.concurrency - before) / STEP_USERS_PER_S)
        self._notify(StageReached(cell, "ramp", ramp_s))
        self._crew.change_users(cell.concurrency, ramp_s)
        limit_s = ramp_s + self._load.drain_s + PHASE_GRACE_S  # those who have no place any more end their request
        self._crew.wait_for("ramped", timeout_s=limit_s, stage="changing the users", each=self._watch)
        self._passed(ramped_ns=now_ns())

    def ramp_window(self, cell: Cell, opened: Callable[[], None], *, last: bool) -> None:
        """Go on to a stage that is a ramp: its window is the ramp itself."""
        assert cell.stage is not None
        self._enter(cell)
        self._crew.change_users(cell.concurrency, cell.stage.duration_s)
        self.steady(opened, last=last)

    def _enter(self, cell: Cell) -> None:
        self._cell = cell
        self._settled_from = self._crew.tally().completed
        self.phases = Phases(start_ns=now_ns())

    def warm_up(self) -> None:
        """Let the least warm-up time pass, and as many requests end as there are users (within reason).

        Where a trace says when requests come, its time is not used up by waiting.
        """
        warmup_s = self._load.warmup_s
        self._notify(StageReached(self._cell, "warm-up", warmup_s))
        least = time.monotonic() + warmup_s
        limit = least + SETTLE_LIMIT_S

        def settled() -> bool:
            now = time.monotonic()
            enough = self._crew.tally().completed - self._settled_from >= self._cell.concurrency
            enough = enough or self._load.arrival == "trace"
            return now >= limit or (now >= least and enough)

        self._wait("done", stage="warming up", enough=settled)

    def steady(self, opened: Callable[[], None], *, last: bool = True) -> None:
        """Hold the window open for its time, or until its quota is full; `opened` is called when it has begun.

        After the `last` one no request begins.
        """
        stage = self._cell.stage
        duration_s = self._load.duration_s if stage is None else stage.duration_s
        start_ns = now_ns()
        end_ns = None if duration_s is None else start_ns + round(duration_s * NS_PER_S)
        self._passed(steady_start_ns=start_ns)
        if last:
            self._crew.tell("steady", start_ns=start_ns, end_ns=end_ns)
        self._notify(StageReached(self._cell, "steady", duration_s))
        opened()
        if end_ns is None:
            self._wait("quota", stage="the steady window")
            end_ns = now_ns()
            self._crew.tell("stop")
        else:
            over_ns = end_ns
            self._wait("done", stage="the steady window", enough=lambda: now_ns() >= over_ns)
            end_ns = min(end_ns, now_ns())
            self.ended_early = end_ns < over_ns
        self._passed(steady_end_ns=end_ns)

    def drain(self) -> None:
        """Let the requests that were started end; none is cut before the drain time is over."""
        self._notify(StageReached(self._cell, "drain", None))
        limit_s = self._load.drain_s + PHASE_GRACE_S
        self._crew.wait_for("done", timeout_s=limit_s, stage="draining", each=self._watch)
        self._passed(drained_ns=now_ns())

    def give_up(self) -> None:
        """End a load against a server that fails everything; what was recorded is kept."""
        self._given_up = True
        self._crew.tell("stop")
        with contextlib.suppress(LoadError):
            self._crew.wait_for("done", timeout_s=GIVE_UP_DRAIN_S, stage="giving up", each=self._watch)

    def _wait(self, event: str, *, stage: str, enough: Callable[[], bool] = lambda: False) -> None:
        self._crew.wait_for(event, timeout_s=math.inf, stage=stage, each=self._watch, enough=enough)

    def _watch(self) -> None:
        if not self._server.alive():
            raise LaunchError(f"the server ended during the cell:\n{self._server.last_log_lines()}")
        tally = self._crew.tally()
        self._notify(LoadMoved(self._cell, tally))
        if tally.failing and not self._given_up:
            raise FailingServerError(f"stopped early, as the server fails everything: {tally.failing}")

    def _passed(self, **times: int) -> None:
        self.phases = replace(self.phases, **times)
