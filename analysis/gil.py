"""Who waited for the GIL and for whom, from the wait sampler's looks (contracts.records.GilRow).

Looks fall at random moments, so the share of looks in which something was so estimates the share of wall time in which
it was. A thread wants the GIL when it waits on its locks, or was woken from there and has no core yet. Looks at threads
that slept for long are rarer and weigh as many looks as they stand for.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from analysis.files import readable
from analysis.stacks import group_of, is_executor_loop
from analysis.window import NS_PER_MS, NS_PER_S, Window
from contracts.arrow import read_batches
from contracts.records import GIL, GilRow

NOBODY = "(nobody)"
UNKNOWN = "(not known)"
LONGEST_GAP_NS = 100 * NS_PER_MS
_BATCHES = 20

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


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
    """A thread's shares of the whole observation's wall time; `running` is on a core, or queued for one, without it."""

    tid: int
    name: str
    wait: float
    held: float
    running: float
    blame: tuple[Blame, ...]


@dataclass(frozen=True, slots=True)
class StepWaits:
    """The executor loop's GIL wait inside its steps, over `steps` of them that the looks cover.

    `share` is of the steps' wall time, with its standard error (batch means); `mean_ms` is that share of the mean
    step. `p50_ms` and `p99_ms` are over single steps, between whose few looks the wait is interpolated: they blur what
    is shorter than the gap between looks, `gap_ms` on the average. The last two are means over the steps that took in
    new requests and those that did not (None where the log does not say or there are none).
    """

    steps: int
    share: float
    share_error: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    gap_ms: float
    with_arrivals_ms: float | None
    without_arrivals_ms: float | None


class GilTally:
    """Adds looks up into shares; for a file's rows and for rows as they come."""

    def __init__(self) -> None:
        self.looks = 0
        self._names: dict[int, str] = {}
        self._locked = 0
        self._wait: defaultdict[int, float] = defaultdict(float)
        self._held: defaultdict[int, float] = defaultdict(float)
        self._running: defaultdict[int, float] = defaultdict(float)
        self._blame: defaultdict[int, defaultdict[tuple[int | None, bool, str | None], float]] = defaultdict(
            lambda: defaultdict(float)
        )
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
        cold, weight = row.cold, row.cold_weight
        for tid in row.running:
            self._running[tid] += weight if tid in cold else 1
        for wanting in (row.waiting, row.runnable):
            for tid in wanting:
                amount = weight if tid in cold else 1
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
        looks = max(self.looks, 1)
        shares = [
            ThreadShare(
                tid=tid,
                name=name,
                wait=min(self._wait.get(tid, 0.0) / looks, 1.0),
                held=self._held.get(tid, 0.0) / looks,
                running=min(self._running.get(tid, 0.0) / looks, 1.0),
                blame=self._blame_of(tid),
            )
            for tid, name in self._names.items()
        ]
        return tuple(sorted(shares, key=lambda share: (-share.wait, -share.held, share.tid)))

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


def load_gil(path: Path) -> list[GilRow]:
    """Read a cell's looks; empty when there are none."""
    return [
        GilRow(**row) for file in readable([path]) for batch in read_batches(file, GIL) for row in batch.to_pylist()
    ]


def study_gil(
    rows: Iterable[GilRow], window: Window | None, end_ns: Ints, step_ms: Floats, new_requests: Floats | None = None
) -> GilStudy | None:
    """Work through the looks inside the window. The steps are one rank's, by `end_ns`; None without looks."""
    tally = GilTally()
    kept = []
    for row in rows:
        if window is None or window.holds(row.t_ns):
            tally.add(row)
            kept.append(row)
        else:
            tally.name(row)
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
    loops = [thread for thread in threads if is_executor_loop(thread.name)]
    loop = max(loops, key=lambda thread: thread.wait + thread.held, default=None)
    return GilStudy(
        looks=tally.looks,
        missed=tally.missed,
        held_fraction=tally.held_fraction,
        switches_per_s=tally.switches_per_s,
        wait_fraction=dict(sorted(waits.items(), key=lambda item: -item[1])),
        blame={group: _ranked(parts) for group, parts in blame.items()},
        executor_steps=None
        if loop is None
        else waits_per_step(*wanting(kept, loop.tid), end_ns, step_ms, new_requests),
    )


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


def waits_per_step(
    t_ns: Ints, wants: Flags, end_ns: Ints, step_ms: Floats, new_requests: Floats | None = None
) -> StepWaits | None:
    """Join looks with steps on their one clock; a step lasts `step_ms` up to `end_ns`.

    Steps before the first look, after the last, or across a gap without looks are left out; so are all, with None,
    where the ends of steps are not known to better than their length (a log whose times are whole seconds).
    """
    order = np.argsort(end_ns, kind="stable")
    ends, lengths = end_ns[order], step_ms[order]
    if len(t_ns) < 2 or len(ends) < 2 or np.median(np.diff(ends)) <= 0:
        return None
    starts = ends - np.round(lengths * NS_PER_MS).astype(np.int64)
    starts[1:] = np.maximum(starts[1:], ends[:-1])  # the log's times are rounded: turns do not overlap
    gaps = np.concatenate([[0], np.cumsum(np.diff(t_ns) > LONGEST_GAP_NS)])
    from_look = np.searchsorted(t_ns, starts, side="right") - 1
    to_look = np.searchsorted(t_ns, ends, side="left")
    inside = (from_look >= 0) & (to_look < len(t_ns)) & (starts < ends)
    inside[inside] = gaps[from_look[inside]] == gaps[to_look[inside]]
    if not inside.any():
        return None
    starts, ends, lengths = starts[inside], ends[inside], lengths[inside]
    step_of = np.searchsorted(ends, t_ns, side="right")
    looked = step_of < len(ends)
    looked[looked] = t_ns[looked] >= starts[step_of[looked]]
    if not looked.any():
        return None
    share = float(wants[looked].mean())
    single = _interpolated(t_ns, wants, starts, ends)
    arrivals = None if new_requests is None else new_requests[order][inside]
    p50, p99 = np.percentile(single, (50, 99))
    return StepWaits(
        steps=len(ends),
        share=share,
        share_error=_batch_error(wants[looked].astype(np.float64)),
        mean_ms=share * float(lengths.mean()),
        p50_ms=float(p50),
        p99_ms=float(p99),
        gap_ms=float(np.diff(t_ns).mean()) / NS_PER_MS,
        with_arrivals_ms=None if arrivals is None else _mean(single[arrivals > 0]),
        without_arrivals_ms=None if arrivals is None else _mean(single[arrivals == 0]),
    )


def _interpolated(t_ns: Ints, wants: Flags, starts: Ints, ends: Ints) -> Floats:
    """Integrate the wait over each span (ms), taking it to change linearly from look to look."""
    flags = wants.astype(np.float64)
    relative = (t_ns - t_ns[0]) / NS_PER_MS
    integral = np.concatenate([[0.0], np.cumsum((flags[1:] + flags[:-1]) / 2 * np.diff(relative))])
    at = [np.interp((edge - t_ns[0]) / NS_PER_MS, relative, integral) for edge in (starts, ends)]
    return np.asarray(at[1] - at[0], dtype=np.float64)


def _batch_error(values: Floats) -> float:
    """Estimate a mean's standard error from the means of consecutive batches: the values hang together over time."""
    if len(values) < 2 * _BATCHES:
        return float("nan")
    means = [batch.mean() for batch in np.array_split(values, _BATCHES)]
    return float(np.std(means, ddof=1) / np.sqrt(_BATCHES))


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
