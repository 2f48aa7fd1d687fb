"""Who waited for the GIL and for whom, from the wait sampler's looks (contracts.records.GilRow).

Looks fall at random moments, so the share of looks in which something was so estimates the share of wall time in which
it was. A thread wants the GIL when it waits on its locks, or was woken from there and has no core yet. Looks at threads
that slept for long are rarer and weigh as many looks as they stand for.

How long a thread slept in all the kernel knows exactly: what is left of wall time after its time on a core and in the
queue for one. So looks need only tell which share of the sleep was on the GIL, and of the queue after it: for a
thread that sleeps nowhere else there is little left to guess.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.gil.slices import Slices
from analysis.gil.stacks import group_of, is_executor_loop
from analysis.gil.steps import Flags, Floats, Ints, StepWaits, waits_per_step
from analysis.window import NS_PER_S, Window
from contracts.arrow import read_batches
from contracts.records import GIL, GilRow

NOBODY = "(nobody)"
UNKNOWN = "(not known)"
EDGE = 0.1


@dataclass(frozen=True, slots=True)
class Blame:
    """Of a thread's wait, the share in which this thread held the GIL in this function.

    `tid` None: nobody held it, as the next holder had been woken and had no core yet; or the holder is not known.
    """

    tid: int | None
    name: str
    function: str | None
    fraction: float


@dataclass(frozen=True, slots=True)
class ThreadShare:
    """A thread's shares of the whole observation's wall time.

    `error` is half the width of the 95 % interval of `wait`, for its sampling error alone (None: never found waiting,
    or too few looks). `asleep` is the part of `wait` before it was woken; `running` is on a core, or queued for one,
    without the GIL.
    """

    tid: int
    name: str
    wait: float
    error: float | None
    asleep: float
    held: float
    running: float
    blame: tuple[Blame, ...]


@dataclass(frozen=True, slots=True)
class _Clock:
    """A thread's exact time on a core and in the queue for one so far, at a moment."""

    t_ns: int
    cpu_ns: int
    queue_ns: int


@dataclass(frozen=True, slots=True)
class _Sleep:
    """In how many looks a thread slept, and its exact shares of wall time asleep and in the queue for a core."""

    looks: float
    exact: float
    queue: float


class GilTally:
    """Adds looks up into shares; for a file's rows and for rows as they come.

    `names` are of threads that are there already, where the first row to be added is not the first look of all.
    """

    def __init__(self, names: Mapping[int, str] | None = None) -> None:
        self.looks = 0
        self._names: dict[int, str] = dict(names or {})
        self._locked = 0
        self._wait: defaultdict[int, float] = defaultdict(float)
        self._held: defaultdict[int, float] = defaultdict(float)
        self._running: defaultdict[int, float] = defaultdict(float)
        self._blame: defaultdict[int, defaultdict[tuple[int | None, bool, str | None], float]] = defaultdict(
            lambda: defaultdict(float)
        )
        self._rare: set[int] = set()
        self._partial: set[int] = set()
        self._clocked_ns = 0
        self._asleep_holding: defaultdict[int, float] = defaultdict(float)
        self._woken: defaultdict[int, float] = defaultdict(float)
        self._clocks: dict[int, tuple[_Clock, _Clock]] = {}
        self._slices = Slices()
        self._first: GilRow | None = None
        self._last: GilRow | None = None

    def name(self, row: GilRow) -> None:
        """Take note of a row's names alone: a look outside the span of interest may be the one that told them."""
        self._names.update(zip(row.appeared, row.names, strict=True))

    def add(self, row: GilRow) -> None:
        self.name(row)
        self._first = self._first or row
        self._last = row
        self.looks += 1
        self._locked += row.locked
        if row.holder is not None:
            self._held[row.holder] += 1
            self._asleep_holding[row.holder] += row.holder_sleeps
        cold, weight = row.cold, row.cold_weight
        self._rare.update(cold)
        self._partial.update(row.gone)
        if row.clocked:
            self._clocked_ns = row.t_ns
        for tid, cpu_ns, queue_ns in zip(row.clocked, row.cpu_clock_ns, row.queue_clock_ns, strict=True):
            clock = _Clock(row.t_ns, cpu_ns, queue_ns)
            self._clocks[tid] = (self._clocks.get(tid, (clock,))[0], clock)

        def amounts(tids: Iterable[int]) -> list[tuple[int, float]]:
            return [(tid, weight if tid in cold else 1) for tid in tids]

        waiting, woken, running = amounts(row.waiting), amounts(row.runnable), amounts(row.running)
        awake = [] if row.holder is None or row.holder_sleeps else [(row.holder, 1.0)]
        self._slices.add(waiting, woken, [*woken, *running, *awake])
        for tid, amount in woken:
            self._woken[tid] += amount
        for tid, amount in running:
            self._running[tid] += amount
        for wanting in (waiting, woken):
            for tid, amount in wanting:
                self._wait[tid] += amount
                holder = None if row.holder == tid else row.holder  # it changed hands in the middle of the look
                self._blame[tid][holder, row.locked, row.function if holder else None] += amount

    @property
    def held_fraction(self) -> float:
        """Share of wall time in which anybody held the GIL."""
        return self._locked / self.looks if self.looks else 0.0

    @property
    def span_s(self) -> float:
        """Return the time from the first look to the last."""
        if self._first is None or self._last is None:
            return 0.0
        return (self._last.t_ns - self._first.t_ns) / NS_PER_S

    @property
    def switches_per_s(self) -> float:
        """Hand-overs from one thread to another; the interpreter's own count, not sampled."""
        if self._first is None or self._last is None or not self.span_s:
            return 0.0
        return (self._last.switches - self._first.switches) / self.span_s

    @property
    def missed(self) -> int:
        if self._first is None or self._last is None:
            return 0
        return self._last.missed - self._first.missed

    def threads(self) -> tuple[ThreadShare, ...]:
        """All threads that were seen, those that waited longest first."""
        shares = [self._share(tid, name) for tid, name in self._names.items()]
        return tuple(sorted(shares, key=lambda share: (-share.wait, -share.held, share.tid)))

    def _share(self, tid: int, name: str) -> ThreadShare:
        """Take that part of the exact time asleep which looks found on the GIL; then the woken, at most the queue."""
        looks = max(self.looks, 1)
        wants, woken = self._wait.get(tid, 0.0), self._woken.get(tid, 0.0)
        slept = self._slept(tid)
        if slept is None:
            asleep, up = min((wants - woken) / looks, 1.0), min(woken / looks, 1.0)
        else:
            asleep, up = slept.exact * min((wants - woken) / slept.looks, 1.0), min(woken / looks, slept.queue)
        return ThreadShare(
            tid=tid,
            name=name,
            wait=asleep + up,
            error=self._slices.error(tid, None if slept is None else slept.exact),
            asleep=asleep,
            held=self._held.get(tid, 0.0) / looks,
            running=min(self._running.get(tid, 0.0) / looks, 1.0),
            blame=self._blame_of(tid),
        )

    def _slept(self, tid: int) -> _Sleep | None:
        """Give a thread's sleep by the clocks; None for one that must be counted plainly.

        That is a thread which was found by rare looks, or was not there all the time, or was never seen to sleep on the
        GIL. A clock that is not read anew has not moved.
        """
        first, last = self._clocks.get(tid, (None, None))
        if first is None or last is None or self._first is None or tid in self._rare | self._partial:
            return None
        span = self._clocked_ns - first.t_ns
        if first.t_ns - self._first.t_ns > EDGE * span or span < self.span_s * NS_PER_S / 2:
            return None
        wants, woken = self._wait.get(tid, 0.0), self._woken.get(tid, 0.0)
        holding = self._held.get(tid, 0.0) - self._asleep_holding.get(tid, 0.0)
        looks = self.looks - self._running.get(tid, 0.0) - woken - holding
        if wants <= woken or looks <= 0:
            return None
        queue = (last.queue_ns - first.queue_ns) / span
        return _Sleep(looks, max(1 - queue - (last.cpu_ns - first.cpu_ns) / span, 0.0), queue)

    def _blame_of(self, tid: int) -> tuple[Blame, ...]:
        parts = self._blame.get(tid)
        if not parts:
            return ()
        total = sum(parts.values())
        found = [
            Blame(holder, self._holder_name(holder, locked=locked), function, amount / total)
            for (holder, locked, function), amount in parts.items()
        ]
        return tuple(sorted(found, key=lambda blame: (-blame.fraction, blame.name, blame.function or "")))

    def _holder_name(self, holder: int | None, *, locked: bool) -> str:
        if holder is None:
            return UNKNOWN if locked else NOBODY
        return self._names.get(holder, UNKNOWN)


@dataclass(frozen=True, slots=True, eq=False)
class LoopLooks:
    """The looks at the executor loop: when, and whether it wanted the GIL then, held it, ran without it, or others did.

    `scale` and `asleep` are what `waits_per_step` takes: they make the looks' share of waiting the thread's.
    """

    tid: int
    t_ns: Ints
    wants: Flags
    holds: Flags
    runs: Flags
    others: Flags
    scale: float
    asleep: float


@dataclass(frozen=True, slots=True)
class GilStudy:
    """A cell's looks, worked through. The mappings are by thread group (`asyncio_*`), pools' members added up."""

    looks: int
    missed: int
    held_fraction: float
    switches_per_s: float
    wait_fraction: dict[str, float]
    blame: dict[str, tuple[Blame, ...]]
    executor_steps: StepWaits | None
    loop: LoopLooks | None = None


def load_gil(path: Path) -> list[GilRow]:
    """Read a cell's looks; empty when there are none."""
    if not path.exists():
        return []
    batches = (batch.to_pydict() for batch in read_batches(path, GIL))
    return [GilRow(*row) for batch in batches for row in zip(*(batch[name] for name in GIL.columns), strict=True)]


def study_gil(
    rows: Iterable[GilRow], window: Window | None, end_ns: Ints, step_ms: Floats, new_requests: Floats | None = None
) -> GilStudy | None:
    """Work through the looks inside the window. The steps are one rank's, by `end_ns`; None without looks."""
    tally, kept = _inside(rows, window)
    if not kept:
        return None
    threads = tally.threads()
    waits: defaultdict[str, float] = defaultdict(float)
    blame: defaultdict[str, defaultdict[tuple[str, str | None], float]] = defaultdict(lambda: defaultdict(float))
    for thread in threads:
        group = group_of(thread.name)
        waits[group] += thread.wait
        for part in thread.blame:
            blame[group][group_of(part.name), part.function] += part.fraction * thread.wait
    loop = _loop_looks(threads, kept)
    steps = None
    if loop is not None:
        steps = waits_per_step(
            loop.t_ns, loop.wants, end_ns, step_ms, new_requests, scale=loop.scale, asleep=loop.asleep
        )
    return GilStudy(
        looks=tally.looks,
        missed=tally.missed,
        held_fraction=tally.held_fraction,
        switches_per_s=tally.switches_per_s,
        wait_fraction=dict(sorted(waits.items(), key=lambda item: -item[1])),
        blame={group: _ranked(parts) for group, parts in blame.items()},
        executor_steps=steps,
        loop=loop,
    )


def loop_looks(rows: Iterable[GilRow], window: Window | None) -> LoopLooks | None:
    """Give the looks inside the window at the executor loop; None where no thread bears its name."""
    tally, kept = _inside(rows, window)
    return _loop_looks(tally.threads(), kept)


def _loop_looks(threads: Iterable[ThreadShare], kept: list[GilRow]) -> LoopLooks | None:
    loops = [thread for thread in threads if is_executor_loop(thread.name)]
    loop = max(loops, key=lambda thread: thread.wait + thread.held, default=None)
    if loop is None:
        return None
    tid = loop.tid
    t_ns, wants = wanting(kept, tid)
    holds = np.fromiter((row.holder == tid for row in kept), dtype=np.bool_, count=len(kept))
    runs = np.fromiter((tid in row.running for row in kept), dtype=np.bool_, count=len(kept))
    others = np.fromiter((row.locked and row.holder != tid for row in kept), dtype=np.bool_, count=len(kept))
    counted = float(wants.mean()) if len(wants) else 0.0
    return LoopLooks(
        tid=tid,
        t_ns=t_ns,
        wants=wants,
        holds=holds,
        runs=runs & ~holds & ~wants,
        others=others,
        scale=loop.wait / counted if counted else 1.0,
        asleep=loop.asleep / loop.wait if loop.wait else 1.0,
    )


def _inside(rows: Iterable[GilRow], window: Window | None) -> tuple[GilTally, list[GilRow]]:
    """Add up the looks inside the window; those outside tell names alone."""
    tally = GilTally()
    kept = []
    for row in rows:
        if window is None or window.holds(row.t_ns):
            tally.add(row)
            kept.append(row)
        else:
            tally.name(row)
    return tally, kept


def _ranked(parts: dict[tuple[str, str | None], float]) -> tuple[Blame, ...]:
    total = sum(parts.values())
    ranked = sorted(parts.items(), key=lambda item: (-item[1], item[0][0], item[0][1] or ""))
    return tuple(Blame(None, name, function, amount / total) for (name, function), amount in ranked)


def wanting(rows: Iterable[GilRow], tid: int) -> tuple[Ints, Flags]:
    """Return when the looks were, and in which of them a thread wanted the GIL."""
    times, flags = [], []
    for row in rows:
        times.append(row.t_ns)
        flags.append(tid in row.waiting or tid in row.runnable)
    return np.asarray(times, dtype=np.int64), np.asarray(flags, dtype=np.bool_)
