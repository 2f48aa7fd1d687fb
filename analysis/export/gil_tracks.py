"""The wait sampler's looks as states over time: who holds the GIL, and what each thread does about it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.gil.looks import NOBODY, UNKNOWN
from analysis.gil.steps import LONGEST_GAP_NS
from contracts.records import GilRow

HOLDS, WAITS, RUNS = "holds", "waits", "runs"


@dataclass(frozen=True, slots=True)
class State:
    """What was seen in consecutive looks, from `start_ns` to `end_ns`.

    Of a thread `name` is HOLDS, WAITS (for the GIL, or woken from there and without a core yet) or RUNS (on a core, or
    queued for one, without the GIL), and `holder` who held it meanwhile. Of the GIL `name` is the holder. `function`
    is the holder's innermost.
    """

    name: str
    start_ns: int
    end_ns: int
    function: str | None
    holder: str | None = None


def names_of(rows: Sequence[GilRow]) -> dict[int, str]:
    """Give the threads' last names by the kernel's id, in the order in which they were first seen."""
    names: dict[int, str] = {}
    for row in rows:
        names.update(zip(row.appeared, row.names, strict=True))
    return names


def holder_states(rows: Sequence[GilRow], names: dict[int, str]) -> list[State]:
    """Say who held the GIL when; nothing where nobody did."""
    seen = [(place, State(_holder(row, names), 0, 0, row.function)) for place, row in enumerate(rows) if row.locked]
    return list(_joined(seen, _edges(rows)))


def thread_states(rows: Sequence[GilRow], names: dict[int, str]) -> dict[int, list[State]]:
    """Say what each thread did when; nothing where it was blocked elsewhere.

    A thread that slept for long is looked at rarely, and so drawn for that look alone.
    """
    seen: defaultdict[int, list[tuple[int, State]]] = defaultdict(list)
    for place, row in enumerate(rows):
        found = dict.fromkeys(row.running, State(RUNS, 0, 0, None))
        if row.holder is not None:
            found[row.holder] = State(HOLDS, 0, 0, row.function)
        for tid in (*row.waiting, *row.runnable):
            found[tid] = State(WAITS, 0, 0, row.function, _holder(row, names) if row.locked else NOBODY)
        for tid, state in found.items():
            seen[tid].append((place, state))
    edges = _edges(rows)
    return {tid: list(_joined(states, edges)) for tid, states in seen.items()}


def _holder(row: GilRow, names: dict[int, str]) -> str:
    return UNKNOWN if row.holder is None else names.get(row.holder, UNKNOWN)


@dataclass(frozen=True, slots=True)
class _Edges:
    """For each look the span that it stands for (ns): half-way to its neighbours, less where there are none near."""

    start_ns: list[int]
    end_ns: list[int]


def _edges(rows: Sequence[GilRow]) -> _Edges:
    t_ns = np.asarray([row.t_ns for row in rows], dtype=np.int64)
    if len(t_ns) < 2:
        return _Edges(t_ns.tolist(), t_ns.tolist())
    gaps = np.diff(t_ns)
    usual = int(np.median(gaps))
    halves = np.where(gaps > LONGEST_GAP_NS, usual, gaps) // 2
    near = gaps <= LONGEST_GAP_NS
    ends = t_ns[:-1] + halves
    starts = np.where(near, ends, t_ns[1:] - halves)
    return _Edges([int(t_ns[0]), *starts.tolist()], [*ends.tolist(), int(t_ns[-1])])


def _joined(seen: Sequence[tuple[int, State]], edges: _Edges) -> Iterator[State]:
    """Make one state of looks that follow each other and saw the same."""
    open_: State | None = None
    for place, state in seen:
        start, end = edges.start_ns[place], edges.end_ns[place]
        same = open_ is not None and (open_.name, open_.function, open_.holder) == (
            state.name, state.function, state.holder,
        )  # fmt: skip
        if open_ is not None and same and open_.end_ns == start:
            open_ = State(open_.name, open_.start_ns, end, open_.function, open_.holder)
            continue
        if open_ is not None:
            yield open_
        open_ = State(state.name, start, end, state.function, state.holder)
    if open_ is not None:
        yield open_
