"""CLOCK_MONOTONIC is the only clock in records; one pair per file ties it to the wall clock."""

import time
from dataclasses import dataclass

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

now_ns = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class ClockPair:
    """The same instant on CLOCK_MONOTONIC and CLOCK_REALTIME, both in ns."""

    monotonic_ns: int
    realtime_ns: int

    def to_monotonic_ns(self, realtime_ns: int) -> int:
        """Place a wall-clock instant of this host on CLOCK_MONOTONIC; exact while the wall clock is not stepped."""
        return realtime_ns - self.realtime_ns + self.monotonic_ns


def clock_pair() -> ClockPair:
    """Read both clocks; of five tries the one with the shortest gap between the readings wins."""
    best: tuple[int, ClockPair] | None = None
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        gap = after - before
        if best is None or gap < best[0]:
            best = (gap, ClockPair(before + gap // 2, wall))
    assert best is not None
    return best[1]
