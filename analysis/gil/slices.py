"""How sure a share from looks is: its sampling error, from the spread over consecutive slices of the observation.

Looks that follow each other hang together, as a wait lasts for several of them; slices of a few dozen do not much. When
there are many slices, neighbours become one, so that memory stays bounded however long the observation goes on.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt

from scipy.special import stdtrit

LOOKS = 32
MOST = 64
FEWEST = 8


@dataclass(slots=True)
class _Slice:
    """Looks in which a thread was asleep on the GIL, was woken from there, and was not asleep at all."""

    looks: int = 0
    on_gil: dict[int, float] = field(default_factory=dict)
    woken: dict[int, float] = field(default_factory=dict)
    awake: dict[int, float] = field(default_factory=dict)

    def absorb(self, other: "_Slice") -> None:
        self.looks += other.looks
        for mine, theirs in ((self.on_gil, other.on_gil), (self.woken, other.woken), (self.awake, other.awake)):
            _add(mine, theirs.items())


class Slices:
    """Consecutive slices of the looks, by thread."""

    def __init__(self) -> None:
        self._size = LOOKS
        self._slices = [_Slice()]

    def __len__(self) -> int:
        return len(self._slices)

    def add(
        self,
        on_gil: Iterable[tuple[int, float]],
        woken: Iterable[tuple[int, float]],
        awake: Iterable[tuple[int, float]],
    ) -> None:
        """Take one look: (thread, how many looks this one stands for) by what the thread did."""
        now = self._slices[-1]
        if now.looks == self._size:
            if len(self._slices) == MOST:
                self._halve()
            now = _Slice()
            self._slices.append(now)
        now.looks += 1
        _add(now.on_gil, on_gil)
        _add(now.woken, woken)
        _add(now.awake, awake)

    def _halve(self) -> None:
        for one, other in zip(self._slices[::2], self._slices[1::2], strict=True):
            one.absorb(other)
        self._slices = self._slices[::2]
        self._size *= 2

    def error(self, tid: int, asleep: float | None) -> float | None:
        """Give the half-width of the 95 % interval of a thread's wait share; None where that cannot be told.

        `asleep` is the thread's exact share of time asleep, of which the looks only tell how much was on the GIL (a
        ratio of two counts, linearised); None where the wait share is the plain share of looks.
        """
        looks = sum(one.looks for one in self._slices)
        wanted = sum(one.on_gil.get(tid, 0.0) + one.woken.get(tid, 0.0) for one in self._slices)
        if len(self._slices) < FEWEST or not wanted:
            return None
        counted = [
            (one.looks, one.on_gil.get(tid, 0.0), one.woken.get(tid, 0.0), one.looks - one.awake.get(tid, 0.0))
            for one in self._slices
        ]
        woken = sum(part[2] for part in counted) / looks
        if asleep is None:
            share = wanted / looks
            off = [(on_gil + up - share * size) / looks for size, on_gil, up, _ in counted]
        else:
            slept = sum(part[3] for part in counted)
            ratio = sum(part[1] for part in counted) / slept if slept > 0 else 0.0
            weight = asleep / slept if slept > 0 else 0.0
            off = [
                weight * (on_gil - ratio * sleeping) + (up - woken * size) / looks
                for size, on_gil, up, sleeping in counted
            ]
        count = len(off)
        deviation = sqrt(count / (count - 1) * sum(one * one for one in off))
        return float(stdtrit(count - 1, 0.975)) * deviation


def _add(to: dict[int, float], amounts: Iterable[tuple[int, float]]) -> None:
    for tid, amount in amounts:
        to[tid] = to.get(tid, 0.0) + amount
