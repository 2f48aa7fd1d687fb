"""When requests are due in open loop: a seeded schedule made ahead, whatever the server does meanwhile.

The gaps are constant, exponential (a Poisson process) or gamma-distributed with mean 1/rate and shape `burstiness`:
1 is Poisson again, less is burstier, much more is nearly constant. A request that cannot be sent when it is due, as
every user is busy, keeps its due time and is sent late; none is left out, and none is due later because of it.

A trace may say itself when its requests are due (`trace`, see loadgen.workload.traces).
"""

from typing import Final, Protocol

import numpy as np

from contracts.clock import NS_PER_S
from contracts.errors import UsageError

CLOSED: Final = "closed"
CONSTANT: Final = "constant"
POISSON: Final = "poisson"
GAMMA: Final = "gamma"
TRACE: Final = "trace"
KINDS: Final = (CLOSED, CONSTANT, POISSON, GAMMA, TRACE)
_BLOCK = 4096


class DueTimes(Protocol):
    """When requests are due, as ns from a beginning: of a schedule, or a trace's own."""

    def next_ns(self) -> int:
        """Take the next due time."""

    def skip_to(self, end_ns: int) -> int:
        """Take what else is due before `end_ns`, and say how many those were."""


class Schedule:
    """Due times as ns from the schedule's beginning, taken one after the other. Equal arguments give equal times.

    `phase` moves a constant schedule by a fraction of its gap, so that several processes do not send in step.
    """

    def __init__(self, kind: str, rate_rps: float, burstiness: float = 1.0, seed: int = 0, phase: float = 0.0) -> None:
        if kind not in KINDS or kind in (CLOSED, TRACE):
            raise UsageError(f"unknown arrival {kind!r}; use one of {', '.join(KINDS)}")
        if not 0 < rate_rps < NS_PER_S:
            raise UsageError(f"cannot send {rate_rps} requests/s: the rate must be positive")
        if not burstiness > 0:
            raise UsageError(f"cannot make arrivals of burstiness {burstiness}: it must be positive")
        self._kind = kind
        self._gap_ns = NS_PER_S / rate_rps
        self._shape = burstiness if kind == GAMMA else 1.0
        self._random = np.random.default_rng((seed & 0xFFFF_FFFF_FFFF_FFFF, 0x5CED))
        self._last_ns = (phase - 1.0) * self._gap_ns if kind == CONSTANT else 0.0
        self._ahead: list[int] = []
        self._at = 0
        self._taken = 0

    @property
    def taken(self) -> int:
        """Count the due times given out."""
        return self._taken

    def next_ns(self) -> int:
        """Take the next due time."""
        if self._at == len(self._ahead):
            self._ahead, self._at = self._draw(), 0
        due_ns = self._ahead[self._at]
        self._at += 1
        self._taken += 1
        return due_ns

    def skip_to(self, end_ns: int) -> int:
        """Take what else is due before `end_ns`, and say how many those were."""
        count = 0
        while True:
            due_ns = self.next_ns()
            if due_ns >= end_ns:
                return count
            count += 1

    def _draw(self) -> list[int]:
        if self._kind == CONSTANT:
            gaps = np.full(_BLOCK, self._gap_ns)
        else:
            gaps = self._random.gamma(self._shape, self._gap_ns / self._shape, _BLOCK)
        times = self._last_ns + np.cumsum(gaps)
        self._last_ns = float(times[-1])
        return [int(value) for value in times]
