"""A line a second of what the sampler has just seen, for whoever watches a sweep: counts of looks, no figure yet.

The sampler's process prints them where it is asked to; `latest` reads the newest from its log. They are for the eye
and enter no record: `gil.arrow` holds the looks themselves.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.clock import NS_PER_S
from contracts.records import GilRow

EVERY_NS = NS_PER_S
MOST_THREADS = 40
_TAIL_BYTES = 8192
_KEY = "pulse"


@dataclass(frozen=True, slots=True)
class PulseThread:
    """In how many looks a thread wanted the GIL, and held it."""

    tid: int
    name: str
    wants: int
    holds: int


@dataclass(frozen=True, slots=True)
class GilPulse:
    """The looks of about a second, up to `t_ns` (CLOCK_MONOTONIC), and the threads that they found at work.

    All that wanted the GIL or held it, but for more than the MOST_THREADS busiest.
    """

    t_ns: int
    looks: int
    threads: tuple[PulseThread, ...]


class PulseCounter:
    """Counts looks; gives a line when a second of them is full."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._began_ns: int | None = None
        self._looks = 0
        self._wants: Counter[int] = Counter()
        self._holds: Counter[int] = Counter()

    def add(self, row: GilRow) -> str | None:
        """Count a look. The line is to be printed at once."""
        self._names.update(zip(row.appeared, row.names, strict=True))
        self._began_ns = row.t_ns if self._began_ns is None else self._began_ns
        self._looks += 1
        if row.holder is not None:
            self._holds[row.holder] += 1
        for tid in (*row.waiting, *row.runnable):
            self._wants[tid] += row.cold_weight if tid in row.cold else 1
        if row.t_ns - self._began_ns < EVERY_NS:
            return None
        return self._line(row.t_ns)

    def _line(self, t_ns: int) -> str:
        busiest = (self._wants + self._holds).most_common(MOST_THREADS)
        threads = [(tid, self._names.get(tid, "?"), self._wants[tid], self._holds[tid]) for tid, _ in busiest]
        line = json.dumps({_KEY: {"t_ns": t_ns, "looks": self._looks, "threads": threads}})
        self._looks, self._began_ns = 0, t_ns
        self._wants.clear()
        self._holds.clear()
        return line


def latest(log: Path) -> GilPulse | None:
    """Read the newest pulse that a sampler's log holds; None while there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines[:-1]):  # what comes after the last newline is not written out yet
        try:
            told: Mapping[str, Any] = json.loads(line)[_KEY]
            threads = tuple(PulseThread(*one) for one in told["threads"])
            return GilPulse(int(told["t_ns"]), int(told["looks"]), threads)
        except (ValueError, KeyError, TypeError):
            continue
    return None
