"""Long holds of the GIL: spans longer than the switch interval in which one thread kept it and no other got it.

Consecutive looks that found the same holder, with the interpreter's own count of hand-overs unmoved between them, are
one hold: no other thread had the GIL in between. That is certain. Whether the holder let go for a moment and took it
again is not known; to the threads that wait it makes no difference. A hold lasted at least from its first look to its
last, and less than from the look before to the look after. Only holds whose least length is beyond the interval count:
those that lasted `seen_from_ms` or longer were all seen, of shorter ones a part.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from analysis.gil.steps import LONGEST_GAP_NS
from analysis.window import NS_PER_MS, NS_PER_S, Window
from contracts.records import GilRow

DEFAULT_INTERVAL_MS = 5.0
UNNAMED = "(not known)"
_UNSEEN_GAPS = 4  # a slot holds one look at a random place, so up to two slots at each end of a hold may be unseen

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Hold:
    """One long hold, by the kernel's thread id; `function` is the one that most of its looks found innermost.

    At `waited` of its `looks` another thread wanted the GIL.
    """

    tid: int
    function: str | None
    start_ns: int
    least_ms: float
    most_ms: float
    looks: int
    waited: int


@dataclass(frozen=True, slots=True)
class HoldGroup:
    """The long holds of one thread in one function: the longest lasted between `longest_ms` and `longest_most_ms`.

    `share` is the share of wall time that they take at least; `waited` of their looks found another thread that wanted
    the GIL.
    """

    name: str
    function: str | None
    count: int
    longest_ms: float
    longest_most_ms: float
    share: float
    waited: float


@dataclass(frozen=True, slots=True)
class LongHolds:
    """All long holds of an observation of `span_s` seconds; `interval_from` says who told the interval."""

    interval_ms: float
    interval_from: str
    seen_from_ms: float
    gap_ms: float
    span_s: float
    count: int
    longest_ms: float
    share: float
    waited: float | None
    groups: tuple[HoldGroup, ...]


class HoldTally:
    """Finds long holds in looks as they come. Until a look tells the interval, `told_ms` is taken, else the default."""

    def __init__(self, told_ms: float | None = None) -> None:
        self.interval_ms = DEFAULT_INTERVAL_MS if told_ms is None else told_ms
        self.interval_from = "CPython's default, as nothing tells the real one" if told_ms is None else "the server"
        self.looks = 0
        self._interval_us: int | None = None
        self._holds: list[Hold] = []
        self._run: list[GilRow] = []
        self._before_ns = 0
        self._first_ns = self._last_ns = 0

    def add(self, row: GilRow) -> None:
        if row.interval_us is not None and row.interval_us != self._interval_us:
            self._interval_us = row.interval_us
            self.interval_ms, self.interval_from = row.interval_us / 1e3, "the process"
        run = self._run
        if run and _goes_on(run[-1], row):
            run.append(row)
        else:
            if len(run) > 1:
                self._holds += self._long(row.t_ns)
            self._before_ns = self._last_ns if self.looks else row.t_ns
            self._run = [row] if row.locked and row.holder is not None else []
        self._first_ns = self._first_ns if self.looks else row.t_ns
        self._last_ns = row.t_ns
        self.looks += 1

    def _long(self, after_ns: int) -> list[Hold]:
        """Give the hold that the last run of looks was, if it was a long one."""
        run = self._run
        least_ms = (run[-1].t_ns - run[0].t_ns) / NS_PER_MS if run else 0.0
        tid = run[0].holder if run else None
        if tid is None or least_ms <= self.interval_ms:
            return []
        (function, _), *_ = Counter(row.function for row in run).most_common(1)
        waited = sum(any(other != tid for wants in (row.waiting, row.runnable) for other in wants) for row in run)
        most_ms = (after_ns - self._before_ns) / NS_PER_MS
        return [Hold(tid, function, run[0].t_ns, least_ms, most_ms, len(run), waited)]

    def holds(self) -> list[Hold]:
        """Give the long holds so far, in order; one that goes on counts as long as it was seen."""
        return [*self._holds, *self._long(self._last_ns)]

    def ranked(self, names: Mapping[int, str], group: Callable[[str], str] = str) -> LongHolds | None:
        """Sum the holds up by thread and function; `group` maps names to those shown. None with less than two looks."""
        span_ns = self._last_ns - self._first_ns
        if self.looks < 2 or span_ns <= 0:
            return None
        holds = self.holds()
        gap_ms = span_ns / NS_PER_MS / (self.looks - 1)
        groups = _grouped(((group(names.get(hold.tid, UNNAMED)), hold.function), hold) for hold in holds)
        return LongHolds(
            interval_ms=self.interval_ms,
            interval_from=self.interval_from,
            seen_from_ms=self.interval_ms + _UNSEEN_GAPS * gap_ms,
            gap_ms=gap_ms,
            span_s=span_ns / NS_PER_S,
            count=len(holds),
            longest_ms=max((hold.least_ms for hold in holds), default=0.0),
            share=_total_ms(holds) * NS_PER_MS / span_ns,
            waited=_waited(holds) if holds else None,
            groups=tuple(_group(name, function, found, span_ns) for (name, function), found in groups.items()),
        )


def _goes_on(last: GilRow, row: GilRow) -> bool:
    """Say whether a look found the hold that the one before it found."""
    same = row.locked and row.holder == last.holder and row.switches == last.switches
    return same and row.t_ns - last.t_ns <= LONGEST_GAP_NS


def _group(name: str, function: str | None, holds: Sequence[Hold], span_ns: int) -> HoldGroup:
    longest = max(holds, key=lambda hold: (hold.least_ms, hold.most_ms))
    return HoldGroup(
        name=name,
        function=function,
        count=len(holds),
        longest_ms=longest.least_ms,
        longest_most_ms=longest.most_ms,
        share=_total_ms(holds) * NS_PER_MS / span_ns,
        waited=_waited(holds),
    )


def _total_ms(holds: Iterable[Hold]) -> float:
    return sum(hold.least_ms for hold in holds)


def _waited(holds: Sequence[Hold]) -> float:
    return sum(hold.waited for hold in holds) / sum(hold.looks for hold in holds)


def _grouped(keyed: Iterable[tuple[Key, Hold]]) -> dict[Key, list[Hold]]:
    """Collect holds by key, those that took most time first."""
    groups: defaultdict[Key, list[Hold]] = defaultdict(list)
    for key, hold in keyed:
        groups[key].append(hold)
    return dict(sorted(groups.items(), key=lambda item: -_total_ms(item[1])))


def study_holds(
    rows: Sequence[GilRow], window: Window | None, group: Callable[[str], str], told_ms: float | None
) -> LongHolds | None:
    """Find a cell's long holds inside the window; `told_ms` is the interval that the server was set to, if it says."""
    tally = HoldTally(told_ms)
    names: dict[int, str] = {}
    for row in rows:
        if row.appeared:
            names.update(zip(row.appeared, row.names, strict=True))
        if window is None or window.holds(row.t_ns):
            tally.add(row)
    return tally.ranked(names, group)


def told_interval_ms(server: Mapping[str, Any]) -> float | None:
    """Take the switch interval from what the reference stack says of itself."""
    settings = server.get("settings")
    value = settings.get("switch_interval_ms") if isinstance(settings, Mapping) else None
    return float(value) if isinstance(value, (int, float)) else None


def holds_document(holds: LongHolds | None) -> dict[str, Any] | None:
    """Give the JSON form (contract) of `loadgen show` and `loadgen gil`."""
    if holds is None:
        return None
    return {
        "switch_interval_ms": holds.interval_ms,
        "switch_interval_from": holds.interval_from,
        "count": holds.count,
        "longest_ms": holds.longest_ms,
        "fraction": holds.share,
        "waited_fraction": holds.waited,
        "all_seen_from_ms": holds.seen_from_ms,
        "gap_ms": holds.gap_ms,
        "by_function": [
            {
                "name": one.name,
                "function": one.function,
                "count": one.count,
                "longest_ms": one.longest_ms,
                "longest_at_most_ms": one.longest_most_ms,
                "fraction": one.share,
                "waited_fraction": one.waited,
            }
            for one in holds.groups
        ],
    }
