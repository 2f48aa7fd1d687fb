"""What the users of one load process share: the workload, the records, and when to start, send and stop."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns

import gevent
from gevent.event import Event

from contracts.clock import NS_PER_MS, NS_PER_S
from contracts.errors import UsageError
from contracts.load import LoadSpec
from loadgen import kinds
from loadgen.drives import MakeCaller
from loadgen.recorder import Recorder
from loadgen.workload.arrival import CLOSED, TRACE, DueTimes, Schedule
from loadgen.workload.synthetic import Draw, Requests, Source

_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.1, 1.0
LEAD_NS = 10 * NS_PER_MS
_CUT, _THINK = 1, 2  # what a request's own random numbers are for


@dataclass(frozen=True, slots=True)
class Habits:
    """What users do beside asking: think after an answer (closed loop), and cut some requests short."""

    think_s: float = 0.0
    exponential: bool = False
    abort_fraction: float = 0.0
    abort_after: int = 1

    @classmethod
    def of(cls, spec: LoadSpec) -> "Habits":
        """Take them from a spec. Raises UsageError."""
        if not 0 <= spec.abort_fraction <= 1 or spec.abort_after_tokens < 1:
            raise UsageError(
                f"cannot cut {spec.abort_fraction} of the requests after {spec.abort_after_tokens} tokens: it takes a "
                f"fraction from 0 to 1 and at least one token"
            )
        if spec.think not in ("constant", "exponential") or not 0 <= spec.think_s < math.inf:
            raise UsageError(f"cannot think for {spec.think_s} s, {spec.think!r}: use constant or exponential")
        return cls(spec.think_s, spec.think == "exponential", spec.abort_fraction, spec.abort_after_tokens)

    def cut_after(self, workload: Source, draw: Draw) -> int | None:
        """Say after how many chunks this request shall be cut, if it shall."""
        cut = self.abort_fraction > 0 and workload.chance(draw, _CUT) < self.abort_fraction
        return self.abort_after if cut else None

    def pause_s(self, workload: Source, draw: Draw) -> float:
        """Say how long the user thinks after this request."""
        if self.exponential and self.think_s:
            return -math.log(1.0 - workload.chance(draw, _THINK)) * self.think_s
        return self.think_s


def schedule_of(spec: LoadSpec, trace: DueTimes | None = None) -> DueTimes | None:
    """Make a spec's schedule, another one in every load process; None in closed loop. Raises UsageError."""
    if spec.arrival == CLOSED:
        return None
    if spec.arrival == TRACE:
        if trace is None:
            raise UsageError("the arrival 'trace' needs a trace")
        return trace
    if spec.rate_rps is None:
        raise UsageError(f"the arrival {spec.arrival!r} needs a rate")
    seed = (spec.workload.seed << 16) ^ spec.worker
    return Schedule(spec.arrival, spec.rate_rps, spec.burstiness, seed, spec.arrival_phase)


@dataclass(slots=True)
class Crew:
    """The users' common ground. `on_ramped` is called when every user has tried its first request, and after a change.

    A first request that could not be sent counts as tried: a load against a dead server reports failures instead of
    waiting for a ramp that never ends. With a schedule it is called when every user is there, and the schedule begins.
    In closed loop `change` lets users come and go: those who have no place any more end their request and wait.
    `on_over` is called when the last user has no request left, `on_unusable` when the next one cannot be used. The
    schedule begins `lead_ns` after the ramp. `cut_*` is what a request is recorded as when its user is killed under it.
    `stop` ends it all.
    """

    workload: Source
    recorder: Recorder
    make_caller: MakeCaller
    name: str
    users: int
    first_user: int
    spawn_rate: float
    on_ramped: Callable[[], None]
    schedule: DueTimes | None = None
    habits: Habits = field(default_factory=Habits)
    on_over: Callable[[], None] = lambda: None
    on_unusable: Callable[[str], None] = lambda _: None
    lead_ns: int = LEAD_NS
    stopping: bool = False
    cut_kind: str = kinds.CANCELLED
    cut_message: str = "its user was stopped"
    start_ns: int = field(default_factory=monotonic_ns)
    unsent: int = 0
    wanted: int = field(init=False)
    _before: int = 0
    _settled: bool = False
    _parked: set[int] = field(default_factory=set)
    _changed: Event = field(default_factory=Event)
    _origin_ns: int = 0
    _stop_ns: int = 0
    _origin: Event = field(default_factory=Event)
    _born: int = 0
    _tried: int = 0
    _ended: int = 0

    def __post_init__(self) -> None:
        self.wanted = self.users  # so many are there or coming; `users` of them have a place

    def next_index(self) -> int:
        """Give a new user its number in this process, from 0."""
        index = self._born
        self._born += 1
        return index

    def change(self, users: int, rate: float) -> None:
        """Have `users` places from now on, growing or shrinking at `rate` a second; new users are the caller's to make.

        Raises UsageError with a schedule, whose users are no load but a limit.
        """
        if self.schedule is not None:
            raise UsageError("an open loop has a rate: its users cannot be changed while it runs")
        self._before, self.users, self.spawn_rate, self.start_ns = self.users, users, rate, monotonic_ns()
        self.wanted = max(self.wanted, users)
        self._settled = False
        self._wake()
        self._look()

    def await_turn(self, index: int) -> None:
        """Spread the users that Locust starts in one lump a second over that second."""
        _sleep_until(self._turn_ns(index))

    def await_place(self, index: int) -> None:
        """Wait, between two requests, while this user has no place; return at once when the load stops."""
        while not self.stopping and not self._has_place(index):
            self._parked.add(index)
            self._look()
            left_ns = self._turn_ns(index) - monotonic_ns() if index < self.users else None
            self._changed.wait(None if left_ns is None else max(left_ns, 0) / NS_PER_S)
        if index in self._parked:
            self._parked.discard(index)
            self._look()

    def _has_place(self, index: int) -> bool:
        low, high = sorted((self._before, self.users))
        if not low <= index < high:
            return index < low
        return (monotonic_ns() >= self._turn_ns(index)) is (self.users > self._before)

    def _turn_ns(self, index: int) -> int:
        """Say when this user's place comes (growing) or goes (shrinking: the last one's first)."""
        rank = index - self._before if self.users >= self._before else self._before - 1 - index
        return self.start_ns + int(max(rank, 0) / self.spawn_rate * NS_PER_S)

    def _wake(self) -> None:
        changed, self._changed = self._changed, Event()
        changed.set()

    def _look(self) -> None:
        """Say that all is as it was asked for, once."""
        if not self._settled and self._tried == self.wanted and len(self._parked) == self.wanted - self.users:
            self._settled = True
            self._origin_ns = monotonic_ns() + self.lead_ns
            self._origin.set()
            self.on_ramped()

    def first_tried(self) -> None:
        self._tried += 1
        self._look()

    def await_due(self, draw: Draw) -> int | None:
        """Sleep until the request is due, as it says itself or by the schedule; None when the load stops first.

        Free users hold the next due times, in order; when all are busy the times pass, and the next that is free
        takes the oldest, late.
        """
        assert self.schedule is not None
        self._origin.wait()
        if self.stopping:
            return None
        own_ns = draw.place.due_ns
        due_ns = self._origin_ns + (self.schedule.next_ns() if own_ns is None else own_ns)
        _sleep_until(due_ns)
        if not self.stopping:
            return due_ns
        self.unsent += due_ns < self._stop_ns
        return None

    def next_request(self, requests: Requests, answer_tokens: int | None) -> Draw | None:
        """Take a user's next request; None when there is none left, or the next one cannot be used."""
        try:
            return requests.next(answer_tokens)
        except UsageError as error:
            self.on_unusable(str(error))
            return None

    def leave(self, *, began: bool) -> None:
        """Count a user that has no request left; one that never had any counts as having tried its first."""
        if not began and self.schedule is None:
            self.first_tried()
        self._ended += 1
        if self._ended == self.users:
            self.on_over()

    def stop(self) -> None:
        """Let no request begin from now on, and count those that were due and never sent."""
        if self.stopping:
            return
        self.stopping = True
        self._wake()
        self._stop_ns = monotonic_ns()
        if self.schedule is not None and self._origin.is_set():
            self.unsent += self.schedule.skip_to(self._stop_ns - self._origin_ns)


def _sleep_until(due_ns: int) -> None:
    """Sleep; the event loop's idea of now may be old, so that one sleep may end too early."""
    while (left_ns := due_ns - monotonic_ns()) > 0:
        gevent.sleep(left_ns / NS_PER_S)


def backoff_s(failures: int) -> float:
    """Say how long a user waits after so many failures in a row, so that a dead server is not hammered."""
    return float(min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(failures - 1, 10)))
