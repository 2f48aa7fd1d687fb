"""The executor loop's own account of its GIL wait, turn by turn: the value that outside samplers are checked against.

A thread's wall time is CPU time, time runnable without a core, and time blocked. The loop blocks deliberately in two
places, the wait for a step and the wait for work when it is idle, and says so here; what is left of its blocked time is
the wait for the GIL (and for the few locks that it shares with threads which hold them only while they run):

    gil_wait = wall - cpu - run queue - deliberate waits

CPU time is CLOCK_THREAD_CPUTIME_ID, run-queue time the second field of the thread's schedstat; both are exact. The GIL
is kept while they are read: a probe that gave it up would add a point at which it can be lost, and measure itself.
`benchmarks/probe_cost.py` measures what the probe costs.
"""

import ctypes
import os
import threading
import time

_LINE_BYTES = 128
_pread = ctypes.PyDLL(None).pread  # PyDLL calls keep the GIL, os.pread gives it up
_pread.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
_pread.restype = ctypes.c_ssize_t


class GilProbe:
    """For the executor loop's thread alone; create it on that thread."""

    def __init__(self) -> None:
        self._schedstat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._line = ctypes.create_string_buffer(_LINE_BYTES)
        self._deliberate_ns = 0
        self._wall_ns, self._cpu_ns, self._queue_ns = self._read()

    def _read(self) -> tuple[int, int, int]:
        _pread(self._schedstat, self._line, _LINE_BYTES, 0)
        queue_ns = int(self._line.value.split()[1])
        return time.monotonic_ns(), time.thread_time_ns(), queue_ns

    def waited(self, seconds: float) -> None:
        """Note a deliberate wait of this turn."""
        self._deliberate_ns += max(0, round(seconds * 1e9))

    def turn(self) -> float:
        """End a turn; return the GIL wait since the last end, ms (never below 0)."""
        wall_ns, cpu_ns, queue_ns = self._read()
        elapsed = wall_ns - self._wall_ns
        other = (cpu_ns - self._cpu_ns) + (queue_ns - self._queue_ns) + self._deliberate_ns
        self._wall_ns, self._cpu_ns, self._queue_ns = wall_ns, cpu_ns, queue_ns
        self._deliberate_ns = 0
        return max(0, elapsed - other) / 1e6

    def close(self) -> None:
        os.close(self._schedstat)
