"""Exact tracing of a process's GIL: uprobes on the entry and the return of take_gil and drop_gil, through `perf`.

A thread holds the GIL from the return of take_gil to the entry of drop_gil. It waits for it inside take_gil, and inside
drop_gil too: asked to let go, it stays there until another thread has taken over (the interpreter's forced switch). A
probe takes time of its own, on every call of the target: what an uncontended call seems to take (the 5th percentile)
is taken off each call, and the target is slowed by a microsecond or two a probe. Needs root, perf, and a Python whose
symbols were left in.
"""

import os
import re
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from contracts.clock import NS_PER_S
from contracts.errors import UsageError

Spans = list[tuple[int, int]]
Events = dict[int, list[tuple[int, str]]]

_UNCONTENDED_NS = 10_000
_SETTLE_S = 0.5
_LINE = re.compile(r"^\s*(\d+)\s+(\d+)\.(\d+):\s+\w+:(\w+?)(?:__return)?:?\s*$")


@dataclass(frozen=True, slots=True)
class ExactTrace:
    """By thread, CLOCK_MONOTONIC ns: calls of take_gil and drop_gil, and holds, all inside `window`, in order."""

    window: tuple[int, int]
    takes: dict[int, Spans]
    drops: dict[int, Spans]
    holds: dict[int, Spans]

    @property
    def waits(self) -> dict[int, Spans]:
        """Give the spans in which each thread waited: those of takes and drops, in order."""
        tids = self.takes.keys() | self.drops.keys()
        return {tid: sorted([*self.takes.get(tid, ()), *self.drops.get(tid, ())]) for tid in tids}


def library(pid: int) -> str:
    """Return the file that holds the interpreter: its libpython, or the program. Raises UsageError."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
        match = re.search(r"(/\S*libpython\S+)", maps)
        return match[1] if match else str(Path(f"/proc/{pid}/exe").readlink())
    except OSError as error:
        raise UsageError(f"cannot look into process {pid}: {error.strerror}") from error


@contextmanager
def probes(path: str) -> Iterator[str]:
    """Put the four probes in place and give their group's name. Raises UsageError where that is not possible."""
    group = f"loadgen_gil_{os.getpid()}"
    words: list[str] = []
    for function in ("take_gil", "drop_gil"):
        words += ["--add", f"{group}:{function}={function}", "--add", f"{group}:{function}={function}%return"]
    try:
        try:
            done = subprocess.run(
                ["perf", "probe", "-f", "-x", path, *words], capture_output=True, text=True, check=False
            )
        except FileNotFoundError as error:
            raise UsageError("exact tracing needs perf: install linux-perf or linux-tools") from error
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["perf said nothing"])[-1][:200]
            raise UsageError(
                f"exact tracing of {path} is not possible ({said}): it takes root, and a Python with symbols"
            )
        yield group
    finally:
        with suppress(FileNotFoundError):
            subprocess.run(["perf", "probe", "-d", f"{group}:*"], capture_output=True, check=False)


@contextmanager
def recording(pid: int, group: str, data: Path) -> Iterator[None]:
    """Record the probes' events of a process while this is entered."""
    argv = ["perf", "record", "-q", "-e", f"{group}:*", "-k", "CLOCK_MONOTONIC", "-m", "8192", "-p", str(pid)]
    with subprocess.Popen([*argv, "-o", str(data)], stderr=subprocess.DEVNULL) as perf:
        try:
            time.sleep(_SETTLE_S)  # perf opens its events meanwhile
            yield
        finally:
            perf.send_signal(signal.SIGINT)


def read_events(data: Path) -> Events:
    """Read perf's events: per thread (CLOCK_MONOTONIC ns, event)."""
    argv = ["perf", "script", "-i", str(data), "-F", "tid,time,event", "--ns"]
    events: Events = defaultdict(list)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as script:
        assert script.stdout is not None
        for line in script.stdout:
            match = _LINE.match(line)
            if match:
                suffix = "_return" if "__return" in line else ""
                events[int(match[1])].append((int(match[2]) * NS_PER_S + int(match[3]), match[4] + suffix))
    return events


def trace_gil(pid: int, seconds: float) -> ExactTrace:
    """Trace a process for so long, or until it ends. Raises UsageError."""
    with tempfile.TemporaryDirectory(prefix="loadgen-gil-") as folder, probes(library(pid)) as group:
        data = Path(folder) / "perf.data"
        with recording(pid, group, data):
            begin_ns = time.monotonic_ns()
            end_ns = begin_ns + int(seconds * NS_PER_S)
            while (left_ns := end_ns - time.monotonic_ns()) > 0 and Path(f"/proc/{pid}").exists():
                time.sleep(min(0.1, left_ns / NS_PER_S))
            window = (begin_ns, time.monotonic_ns())
        return spans_of(read_events(data), window)


def spans_of(events: Events, window: tuple[int, int]) -> ExactTrace:
    """Turn events into spans inside the window, less what an uncontended call takes."""
    takes = {tid: _calls(one, "take_gil", window) for tid, one in events.items()}
    drops = {tid: _calls(one, "drop_gil", window) for tid, one in events.items()}
    take_ns, drop_ns = (_least([span for one in spans.values() for span in one]) for spans in (takes, drops))
    return ExactTrace(
        window=window,
        takes={tid: _clip(one, window, take_ns) for tid, one in takes.items()},
        drops={tid: _clip(one, window, drop_ns) for tid, one in drops.items()},
        holds={tid: _clip(_holds(one, window), window) for tid, one in events.items()},
    )


def _calls(events: list[tuple[int, str]], function: str, window: tuple[int, int]) -> Spans:
    """Pair a function's entries and returns; one open at an edge of the trace reaches to the window's edge."""
    found: Spans = []
    entered: int | None = None
    seen = False
    for t_ns, event in events:
        if event == function:
            entered = t_ns
        elif event == f"{function}_return":
            if entered is not None or not seen:
                found.append((entered if entered is not None else window[0], t_ns))
            entered = None
        else:
            continue
        seen = True
    if entered is not None:
        found.append((entered, window[1]))
    return found


def _holds(events: list[tuple[int, str]], window: tuple[int, int]) -> Spans:
    """From a return of take_gil to the next entry of drop_gil."""
    found: Spans = []
    since: int | None = None
    for t_ns, event in events:
        if event == "take_gil_return":
            since = t_ns
        elif event == "drop_gil":
            if since is not None:
                found.append((since, t_ns))
            since = None
    return found if since is None else [*found, (since, window[1])]


def _least(spans: Spans) -> int:
    lengths = sorted(end - start for start, end in spans)
    shortest = lengths[len(lengths) // 20] if lengths else 0
    return shortest if shortest < _UNCONTENDED_NS else 0


def _clip(spans: Spans, window: tuple[int, int], less_ns: int = 0) -> Spans:
    cut = [(max(start + less_ns, window[0]), min(end, window[1])) for start, end in spans]
    return [(start, end) for start, end in cut if end > start]
