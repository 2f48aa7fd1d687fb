"""The clocks of other load machines against this one's, from round trips; and their records brought onto ours.

A machine's clock was read somewhere within a round trip, so the shorter the trip, the surer the offset: of every ten
seconds the trip with the least delay is taken, and the offset runs straight from one of those to the next, which
follows clocks that drift. The error is half of the longest trip that was taken: what the network might hide by being
slower one way than the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.window import NS_PER_MS, NS_PER_S
from contracts.arrow import read_table
from contracts.records import CLOCKS

_BIN_NS = 10 * NS_PER_S

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClockFit:
    """One machine's clock: `offsets_ns` later than ours when it showed `theirs_ns`; wrong by at most `error_ns`."""

    theirs_ns: Ints
    offsets_ns: Ints
    error_ns: int

    @property
    def offset_ms(self) -> float:
        return float(self.offsets_ns[0]) / NS_PER_MS

    @property
    def error_ms(self) -> float:
        return self.error_ns / NS_PER_MS

    def offset_at(self, theirs_ns: Ints) -> Ints:
        """Give the offset at each of these times of that clock."""
        start, base = self.theirs_ns[0], self.offsets_ns[0]
        more = np.interp(theirs_ns - start, self.theirs_ns - start, self.offsets_ns - base)
        return np.asarray(base + np.rint(more).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a cell's load processes that ran elsewhere; none for a load on this machine."""

    fits: Mapping[int, ClockFit] = field(default_factory=dict)

    def shift(self, worker: Any, theirs_ns: Any) -> Ints:
        """Say for each row how much later its machine's clock is than ours, ns: subtract it."""
        workers, times = np.asarray(worker, dtype=np.int64), np.asarray(theirs_ns, dtype=np.int64)
        shift = np.zeros(len(times), dtype=np.int64)
        for number, fit in self.fits.items():
            mine = workers == number
            shift[mine] = fit.offset_at(times[mine])
        return shift

    @property
    def error_ms(self) -> float:
        return max((fit.error_ms for fit in self.fits.values()), default=0.0)


def load_clocks(path: Path) -> Clocks:
    """Read the round trips of a cell's load machines; none where the file is missing."""
    if not path.exists():
        return Clocks()
    frame = read_table(path, CLOCKS).to_pandas()
    return Clocks({int(number): _fit(rows) for number, rows in frame.groupby("worker")})


def _fit(rows: pd.DataFrame) -> ClockFit:
    best = rows.loc[rows.groupby((rows["t_ns"] - rows["t_ns"].min()) // _BIN_NS)["rtt_ns"].idxmin()].sort_values("t_ns")
    offsets = best["offset_ns"].to_numpy(dtype=np.int64)
    return ClockFit(best["t_ns"].to_numpy(dtype=np.int64) + offsets, offsets, int(best["rtt_ns"].max() + 1) // 2)
