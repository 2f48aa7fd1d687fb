"""What a sweep shows of its present cell: counts, the last seconds' figures, and how long all will take.

Percentiles here are for the eye: of the last seconds, of a draw of the TTFTs. The records have every request, and the
report is made of them.
"""

from collections import Counter, deque
from collections.abc import Sequence
from statistics import fmean

from analysis.gil.stacks import is_executor_loop
from contracts.clock import NS_PER_S
from harness.loadcrew import RECENT_S, LoadTally
from harness.observers.gil.pulse import GilPulse
from harness.plan import Cell
from loadgen.cli.screen import visible


def describe(cell: Cell) -> str:
    knobs = " ".join(f"{name}={value}" for name, value in cell.knobs.items())
    return visible(f"c{cell.concurrency} {knobs} block {cell.block}".replace("  ", " "))


def counts(tally: LoadTally) -> str:
    """Say how many users there are, and what has become of their requests."""
    text = f"{tally.users:,} users, {tally.in_flight:,} in flight, {tally.completed:,} done"
    if tally.failed:
        text += f", {tally.failed:,} FAILED"
    return text


def rates(tally: LoadTally) -> str:
    """Say the last seconds' request rate and TTFT; empty while nothing is known."""
    recent = tally.recent
    parts = []
    if recent.req_s is not None:
        parts.append(f"{recent.req_s:,.4g} req/s")
    if recent.ttft_ms:
        p50, p99 = (weighted_percentile(recent.ttft_ms, share) for share in (0.5, 0.99))
        parts.append(f"TTFT p50 {p50:,.0f} p99 {p99:,.0f} ms ({recent.first_tokens:,} requests)")
    return ", ".join(parts)


def weighted_percentile(values: Sequence[tuple[float, float]], share: float) -> float:
    """Give the least value that has at least this share of the weight at or below it; values are (value, weight)."""
    ranked = sorted(values)
    total = sum(weight for _, weight in ranked)
    reached = 0.0
    for value, weight in ranked:
        reached += weight
        if reached >= share * total * (1 - 1e-9):
            return value
    return ranked[-1][0]


class RecentWaits:
    """The executor loop's GIL wait over the last seconds, from the sampler's counts."""

    def __init__(self) -> None:
        self._pulses: deque[GilPulse] = deque()

    def clear(self) -> None:
        self._pulses.clear()

    def add(self, pulse: GilPulse) -> None:
        self._pulses.append(pulse)
        while pulse.t_ns - self._pulses[0].t_ns >= RECENT_S * NS_PER_S:
            self._pulses.popleft()

    def __str__(self) -> str:
        """Tell of the executor loop; where no thread is known as one, of that which waits most. Empty without looks."""
        pulses = tuple(self._pulses)  # another thread may add one meanwhile
        looks = sum(pulse.looks for pulse in pulses)
        if not looks:
            return ""
        wants: Counter[int] = Counter()
        holds: Counter[int] = Counter()
        names: dict[int, str] = {}
        for pulse in pulses:
            for thread in pulse.threads:
                wants[thread.tid] += thread.wants
                holds[thread.tid] += thread.holds
                names[thread.tid] = thread.name
        if not names:
            return "nobody waits for the GIL"
        loops = [tid for tid, name in names.items() if is_executor_loop(name)]
        tid = max(loops, key=lambda one: wants[one] + holds[one]) if loops else max(names, key=lambda one: wants[one])
        waits, held = min(wants[tid] / looks, 1.0), min(holds[tid] / looks, 1.0)
        return f"{visible(names[tid])} waits for the GIL {waits:.0%}, holds it {held:.0%}"


class TimeLeft:
    """Estimates how long the cells that are left will take, from those that were finished.

    A cell lasts as long as finished ones of its concurrency did on the average; where there is none, as the average of
    these averages. May be read by one thread while another adds to it.
    """

    def __init__(self, cells: Sequence[Cell], lasted: Sequence[tuple[int, float]] = ()) -> None:
        self._left = {cell.index: cell.concurrency for cell in cells}
        self._lasted: dict[int, list[float]] = {}
        for concurrency, seconds in lasted:
            self._lasted.setdefault(concurrency, []).append(seconds)

    def ended(self, cell: Cell, seconds: float | None) -> None:
        """Take a cell off; `seconds` is how long it lasted, None where that says nothing of others (it failed)."""
        self._left.pop(cell.index, None)
        if seconds is not None:
            self._lasted.setdefault(cell.concurrency, []).append(seconds)

    def seconds(self, present: Cell | None = None, elapsed_s: float = 0.0) -> float | None:
        """Give the time left, of which the present cell has used `elapsed_s`.

        None while no cell was finished, and when none is left.
        """
        lasted = {concurrency: fmean(seconds) for concurrency, seconds in tuple(self._lasted.items())}
        if not lasted or not self._left:
            return None
        general = fmean(lasted.values())
        left = 0.0
        for index, concurrency in tuple(self._left.items()):
            expected = lasted.get(concurrency, general)
            is_present = present is not None and present.index == index
            left += max(expected - elapsed_s, 0.0) if is_present else expected
        return left


def about(seconds: float | None) -> str:
    """Write a time left as people say it; empty where it is not known."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"about {max(round(seconds / 5) * 5, 5)} s left"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"about {minutes} min left"
    return f"about {minutes // 60} h {minutes % 60:02} min left"
