"""The Trace Event Format that Chrome and Perfetto read: complete slices, async slices, counters and names.

Times are whole microseconds since an origin, so that slices that touch still do after a reader's arithmetic. Perfetto
finds a thread by its number alone when it names it, so numbers of threads must not be those of processes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NS_PER_US = 1000


@dataclass(slots=True)
class TraceEvents:
    """Events in the order in which they were added; `origin_ns` is the moment 0."""

    origin_ns: int
    events: list[dict[str, Any]] = field(default_factory=list)

    def name_process(self, pid: int, name: str) -> None:
        self.events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}})
        self.events.append({"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}})

    def name_thread(self, pid: int, tid: int, name: str) -> None:
        self.events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}})
        self.events.append(
            {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
        )

    def slice(self, pid: int, tid: int, name: str, start_ns: int, end_ns: int, args: Mapping[str, Any]) -> None:
        """Add a slice of a thread's track; those of one track must not overlap, or lie inside each other."""
        start = self._us(start_ns)
        event = {"ph": "X", "pid": pid, "tid": tid, "cat": "loadgen", "name": name, "ts": start}
        self.events.append(event | {"dur": self._us(end_ns) - start, "args": dict(args)})

    def begin(self, pid: int, track: int, name: str, t_ns: int, args: Mapping[str, Any]) -> None:
        """Open an async slice inside those that are open on the track, which are told apart by its number."""
        event = {"ph": "b", "pid": pid, "tid": pid, "cat": "request", "id": hex(track), "name": name}
        self.events.append(event | {"ts": self._us(t_ns), "args": dict(args)})

    def end(self, pid: int, track: int, name: str, t_ns: int) -> None:
        """Close the async slice that was opened last on the track."""
        event = {"ph": "e", "pid": pid, "tid": pid, "cat": "request", "id": hex(track), "name": name}
        self.events.append(event | {"ts": self._us(t_ns)})

    def counter(self, pid: int, name: str, unit: str, t_ns: int, value: float) -> None:
        """Add a counter's value from this moment on; Perfetto calls its track `NAME UNIT`."""
        self.events.append(
            {"ph": "C", "pid": pid, "tid": pid, "name": name, "ts": self._us(t_ns), "args": {unit: value}}
        )

    def _us(self, t_ns: int) -> int:
        return (int(t_ns) - self.origin_ns + NS_PER_US // 2) // NS_PER_US
