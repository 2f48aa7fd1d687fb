"""Whether a cell was steady in its window: no figure that drifts from the window's beginning to its end.

The window is cut into equal bins; each series gives a value a bin. A series drifts when Mann and Kendall's test for a
trend is clear (p below 0.01) and Theil and Sen's slope, over the whole window, amounts to more than a tenth of the
median. Both go by ranks and medians, so a stall or a burst is no drift.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from analysis.tables import CellTables
from analysis.window import Floats, Window

LEAST_BINS, MOST_BINS = 8, 40
CLEAR = 0.01
MOST_DRIFT = 0.10


@dataclass(frozen=True, slots=True)
class Drift:
    """By how much of its median a series moved over the window, and how likely so much of a trend is by chance."""

    name: str
    change: float
    p_value: float

    @property
    def clear(self) -> bool:
        return self.p_value < CLEAR and abs(self.change) > MOST_DRIFT


@dataclass(frozen=True, slots=True)
class Steadiness:
    """All series that could be judged; empty where the window holds too little."""

    drifts: tuple[Drift, ...]

    @property
    def complaints(self) -> tuple[str, ...]:
        return tuple(
            f"{one.name} {'rose' if one.change > 0 else 'fell'} by {abs(one.change):.0%}"
            for one in self.drifts
            if one.clear
        )


def judge_steadiness(cell: CellTables) -> Steadiness:
    """Look for drift in completions, TTFT and the executor loop's step."""
    if cell.window is None:
        return Steadiness(())
    bins = min(MOST_BINS, int(cell.window.length_s))
    if bins < LEAST_BINS:
        return Steadiness(())
    return Steadiness(tuple(_drift(name, values) for name, values in _series(cell, cell.window, bins)))


def _series(cell: CellTables, window: Window, bins: int) -> Iterator[tuple[str, Floats]]:
    requests, steps = cell.requests, cell.steps
    ended = requests.loc[requests["success"], "end_ns"]
    counts = _bin(ended, window, bins).value_counts().reindex(range(bins), fill_value=0)
    if counts.median() > 0:
        yield "requests/s", np.asarray(counts, dtype=np.float64)
    for name, times, values, how in (
        ("TTFT p50", requests["sent_ns"], requests["ttft_ms"], "median"),
        ("step", steps["t_ns"], steps["host_step_ms"], "mean"),
    ):
        grouped = values.groupby(_bin(times, window, bins)).agg(how).dropna()
        if len(grouped) >= LEAST_BINS:
            yield name, np.asarray(grouped, dtype=np.float64)


def _bin(times_ns: "pd.Series[int]", window: Window, bins: int) -> "pd.Series[int]":
    """Give each moment's bin, dropping those outside of the window."""
    inside = times_ns[window.holds(times_ns)]
    found: pd.Series[int] = (inside - window.start_ns) * bins // (window.end_ns - window.start_ns)
    return found


def _drift(name: str, values: Floats) -> Drift:
    middle = float(np.median(values))
    places = np.arange(len(values))
    if middle == 0 or np.ptp(values) == 0:
        return Drift(name, 0.0, 1.0)
    slope = float(stats.theilslopes(values, places).slope)
    return Drift(name, slope * (len(values) - 1) / middle, float(stats.kendalltau(places, values).pvalue))
