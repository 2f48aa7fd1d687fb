"""Nsight Systems' view of a Python server's GIL, read from `nsys export --type sqlite`.

With `-t python-gil` nsys writes "Holding GIL" and "Waiting for GIL" ranges of each thread into NVTX_EVENTS, under a
domain whose row (event type 75) is named "GIL Trace"; its number differs from trace to trace. Other NVTX ranges of the
same threads say what they were doing; those whose text matches `step` mark the turns of the executor loop. Texts stand
in the row or, by `textId`, in StringIds; the low 24 bits of `globalTid` are the thread, the 24 above them the process.
"""

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from contracts.errors import FormatError, UsageError

HOLDING, WAITING, DOMAIN = "Holding GIL", "Waiting for GIL", "GIL Trace"
STEP = r"_forward_step (?P<iteration>\d+)"
_PUSH_POP, _START_END, _DOMAIN_CREATE = 59, 60, 75
_BITS = 1 << 24

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Ranges of one thread that do not overlap, in order: ns of the trace's clock, and what each is (may be empty)."""

    start_ns: Ints
    end_ns: Ints
    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, ranges: list[tuple[int, int]]) -> "Spans":
        ordered = sorted(ranges)
        return cls(np.array([one for one, _ in ordered], np.int64), np.array([two for _, two in ordered], np.int64))

    def covering(self, t_ns: Ints) -> Ints:
        """Give for each moment the place of the range that covers it, or -1."""
        place: Ints = np.searchsorted(self.start_ns, t_ns, side="right").astype(np.int64) - 1
        if len(self.start_ns):
            place[t_ns >= self.end_ns[np.maximum(place, 0)]] = -1
        return place

    def total_ns(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Give how long these ranges cover each of the spans from `start_ns` to `end_ns`."""
        if not len(self.start_ns):
            return np.zeros(len(start_ns), np.int64)
        edges = np.stack([self.start_ns, self.end_ns], axis=1).ravel()
        covered = np.concatenate([[0], np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0))])
        at = [np.interp(side, edges, covered) for side in (start_ns, end_ns)]
        return np.asarray(np.round(at[1] - at[0]), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the executor loop, from its mark to the next."""

    iteration: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class GilTrace:
    """One process: by thread its holds, waits and the innermost NVTX range it was in; the executor loop's turns."""

    pid: int
    names: dict[int, str]
    holds: dict[int, Spans]
    waits: dict[int, Spans]
    doing: dict[int, Spans]
    executor: int
    turns: tuple[Turn, ...]


def read_trace(path: Path, *, pid: int | None = None, step: str = STEP) -> GilTrace:
    """Read the process with the executor loop (or `pid`). Raises UsageError, FormatError with what is missing."""
    try:
        pattern = re.compile(step)
    except re.error as error:
        raise UsageError(f"--step {step!r} is not a regular expression: {error}") from error
    if not path.is_file():
        raise UsageError(f"{path} does not exist: make it with nsys export --type sqlite")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return _read(database, path, pid, pattern)
    except sqlite3.DatabaseError as error:
        raise FormatError(f"{path} is no SQLite export of nsys: {error}") from error


def _read(database: sqlite3.Connection, path: Path, pid: int | None, pattern: re.Pattern[str]) -> GilTrace:
    if not _has_table(database, "NVTX_EVENTS"):
        raise FormatError(f"{path} has no NVTX_EVENTS: profile with nsys -t nvtx,python-gil, then export to sqlite")
    domain = _gil_domain(database, path)
    by_process: dict[int, dict[int, list[tuple[int, int, str]]]] = defaultdict(lambda: defaultdict(list))
    gil: dict[int, dict[int, dict[str, list[tuple[int, int]]]]] = defaultdict(lambda: defaultdict(dict))
    for start, end, tid, which, text in _ranges(database):
        process, thread = tid // _BITS % _BITS, tid % _BITS
        if which == domain and text in (HOLDING, WAITING):
            gil[process][thread].setdefault(text, []).append((start, end))
        elif which != domain:
            by_process[process][thread].append((start, end, text))
    if not gil:
        raise FormatError(f"{path} has no range of the GIL: profile with nsys -t python-gil")
    loops = {process: _executor(threads, pattern) for process, threads in by_process.items() if process in gil}
    chosen = _choose(path, pid, {process: loop for process, loop in loops.items() if loop is not None}, set(gil))
    executor, turns = loops[chosen] or (0, ())
    threads = gil[chosen]
    names = {tid: name for (process, tid), name in _thread_names(database).items() if process == chosen}
    return GilTrace(
        pid=chosen,
        names={tid: names.get(tid, f"thread {tid}") for tid in threads} | {executor: "executor_loop"},
        holds={tid: Spans.of(ranges.get(HOLDING, [])) for tid, ranges in threads.items()},
        waits={tid: Spans.of(ranges.get(WAITING, [])) for tid, ranges in threads.items()},
        doing={tid: innermost(by_process[chosen][tid]) for tid in threads},
        executor=executor,
        turns=turns,
    )


def _has_table(database: sqlite3.Connection, name: str) -> bool:
    found = database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,))
    return found.fetchone() is not None


def _text_of(database: sqlite3.Connection) -> tuple[str, str]:
    """Give the column and the join that tell an event's text; small exports have no StringIds."""
    if _has_table(database, "StringIds"):
        return "COALESCE(e.text, s.value)", "LEFT JOIN StringIds s ON s.id = e.textId"
    return "e.text", ""


def _gil_domain(database: sqlite3.Connection, path: Path) -> int:
    text, join = _text_of(database)
    rows = database.execute(
        f"SELECT e.domainId FROM NVTX_EVENTS e {join} WHERE e.eventType = ? AND {text} = ?",  # noqa: S608 - our words
        (_DOMAIN_CREATE, DOMAIN),
    )
    found = rows.fetchone()
    if found is None:
        raise FormatError(f'{path} has no domain "{DOMAIN}": profile with nsys -t python-gil')
    return int(found[0])


def _ranges(database: sqlite3.Connection) -> Iterator[tuple[int, int, int, int, str]]:
    text, join = _text_of(database)
    rows = database.execute(
        f"SELECT e.start, e.end, e.globalTid, e.domainId, {text} FROM NVTX_EVENTS e {join} "  # noqa: S608 - our words
        "WHERE e.eventType IN (?, ?) AND e.end IS NOT NULL AND e.globalTid IS NOT NULL ORDER BY e.start",
        (_PUSH_POP, _START_END),
    )
    for start, end, tid, domain, words in rows:
        if words is not None and end > start:
            yield int(start), int(end), int(tid), int(domain), str(words)


def _thread_names(database: sqlite3.Connection) -> dict[tuple[int, int], str]:
    if not (_has_table(database, "ThreadNames") and _has_table(database, "StringIds")):
        return {}
    rows = database.execute("SELECT t.globalTid, s.value FROM ThreadNames t JOIN StringIds s ON s.id = t.nameId")
    return {(tid // _BITS % _BITS, tid % _BITS): str(name) for tid, name in rows}


def _executor(
    threads: dict[int, list[tuple[int, int, str]]], pattern: re.Pattern[str]
) -> tuple[int, tuple[Turn, ...]] | None:
    """Find the thread with the marks of turns; a turn lasts from one mark's start to the next one's."""
    best: tuple[int, list[tuple[int, int]]] | None = None
    for tid, ranges in threads.items():
        marks: list[tuple[int, int]] = []
        for start, _, text in ranges:
            match = pattern.search(text)
            if match is not None:
                told = match.groupdict().get("iteration")
                marks.append((start, int(told) if told else len(marks)))
        if len(marks) > 1 and (best is None or len(marks) > len(best[1])):
            best = tid, sorted(marks)
    if best is None:
        return None
    tid, marks = best
    turns = pairwise(marks)
    return tid, tuple(Turn(iteration, start, end) for (start, iteration), (end, _) in turns)


def _choose(path: Path, pid: int | None, loops: dict[int, tuple[int, tuple[Turn, ...]]], present: set[int]) -> int:
    if pid is not None:
        if pid not in present:
            raise UsageError(f"--pid {pid}: {path} has the GIL of {', '.join(map(str, sorted(present)))}")
        if pid not in loops:
            raise UsageError(f"--pid {pid}: no NVTX range of it marks turns of an executor loop; see --step")
        return pid
    if not loops:
        raise UsageError(f"{path} has no NVTX range that marks turns of an executor loop; name them by --step REGEX")
    return min(loops)


def innermost(ranges: list[tuple[int, int, str]]) -> Spans:
    """Flatten one thread's nested ranges into consecutive ones, each with the text of the innermost."""
    starts: list[int] = []
    ends: list[int] = []
    texts: list[str] = []

    def note(start: int, end: int, text: str) -> None:
        if end > start:
            starts.append(start)
            ends.append(end)
            texts.append(text)

    stack: list[tuple[int, str]] = []
    now = 0
    for start, end, text in [*sorted(ranges, key=lambda one: (one[0], -one[1])), (1 << 62, 1 << 62, "")]:
        while stack and stack[-1][0] <= start:
            until, name = stack.pop()
            note(now, until, name)
            now = max(now, until)
        if stack:
            note(now, start, stack[-1][1])
        now = max(now, start)
        stack.append((end, text))
    return Spans(np.array(starts, np.int64), np.array(ends, np.int64), tuple(texts))
