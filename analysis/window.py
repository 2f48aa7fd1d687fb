"""The steady window and what is integrated or counted over it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from contracts.folder import Phases

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """The half-open span [start_ns, end_ns) of CLOCK_MONOTONIC in which the load was steady."""

    start_ns: int
    end_ns: int

    @classmethod
    def of(cls, phases: Phases) -> "Window | None":
        """Take the window from a cell's phases; None when the cell did not get through it."""
        start_ns, end_ns = phases.steady_start_ns, phases.steady_end_ns
        if start_ns is None or end_ns is None or end_ns <= start_ns:
            return None
        return cls(start_ns, end_ns)

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S

    def holds(self, t_ns: Any) -> Any:
        """Say for each time of an array or a pandas column whether it lies inside."""
        return (t_ns >= self.start_ns) & (t_ns < self.end_ns)


def in_flight_means(sent_ns: Any, end_ns: Any, edges_ns: Any) -> Floats:
    """Mean number of requests in flight between consecutive edges, weighted by time.

    A request is in flight over [sent_ns, end_ns). With n edges there are n - 1 means. Exact: the integral of the
    in-flight count up to t is the sum of (t - sent) over those sent, less the sum of (t - end) over those ended.
    """
    edges = np.asarray(edges_ns, dtype=np.int64)
    origin = edges[0]
    t = (edges - origin) / NS_PER_S
    integral = _elapsed_since(np.asarray(sent_ns, dtype=np.int64) - origin, t)
    integral = integral - _elapsed_since(np.asarray(end_ns, dtype=np.int64) - origin, t)
    means: Floats = np.diff(integral) / np.diff(t)
    return means


def _elapsed_since(events_ns: npt.NDArray[np.int64], t: Floats) -> Floats:
    """Sum over the events before each t of the time since that event (s)."""
    events = np.sort(events_ns) / NS_PER_S
    sums = np.concatenate([[0.0], np.cumsum(events)])
    before = np.searchsorted(events, t, side="right")
    return np.asarray(before * t - sums[before], dtype=np.float64)


def counter_rate(t_ns: Any, counter: Any, window: Window) -> float | None:
    """Growth of a counter per unit of time over the window; for CPU ns this is the fraction of one core.

    Values at the window's edges are interpolated; None unless samples cover at least half of the window.
    """
    t = np.asarray(t_ns, dtype=np.int64)
    if len(t) < 2:
        return None
    order = np.argsort(t, kind="stable")
    t = t[order]
    values = np.asarray(counter, dtype=np.float64)[order]
    start, end = max(window.start_ns, int(t[0])), min(window.end_ns, int(t[-1]))
    if end - start < (window.end_ns - window.start_ns) / 2:
        return None
    relative = (t - start).astype(np.float64)
    low, high = np.interp([0.0, float(end - start)], relative, values)
    return float((high - low) / (end - start))
