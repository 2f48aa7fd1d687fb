"""The wait sampler: at random moments, who holds the GIL, who wants it, who runs without it.

A look is one read of the GIL struct, a few of the holder's frame, and one of each busy thread's syscall file; nothing
stops. Time is cut into slots of 1/rate, and each has its look at a random place, all places alike: a fixed rate would
beat against the interpreter's 5 ms switch interval, and fully random moments would bunch and tell less. A look that is
due before the last one is over is counted as missed and not made up for.

A waiter that was woken and has no core yet reads as running. The condition variable's own count of its waiters tells
how many such there are: what it counts beyond the threads asleep on it.
"""

import contextlib
import os
import random
import resource
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from contracts.clock import NS_PER_S, now_ns
from contracts.errors import UsageError
from contracts.records import GilRow
from harness.observers.gil.frames import Frames
from harness.observers.gil.layout import GilLayout, locate
from harness.observers.gil.memory import Identity, TargetGoneError, TargetMemory
from harness.observers.gil.names import WAIT_S, ThreadNames
from harness.observers.gil.offsets import INTERVAL, SWITCH_NUMBER
from harness.observers.gil.tasks import COLD_EVERY, Look, Tasks, WaitPlace, inner_id

RATE_HZ = 200.0
RESCAN_S = 0.1
CLOCK_S = 0.5
_SHORTEST_SLEEP_NS = 20_000
_U32, _I32, _U64 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<Q")
_WAITER = 3  # bits that the count of waiters is shifted by


class GilSampler:
    """Looks at one process until it ends or the caller has had enough. Raises UsageError when it may not, or cannot."""

    def __init__(self, pid: int, *, rate_hz: float = RATE_HZ, seed: int = 0, names: bool = True) -> None:
        self._rate_hz = rate_hz
        self._random = random.Random(seed)  # noqa: S311 - a schedule, not a secret
        self.ended: str | None = None
        """Why the looks ended before the caller wanted it: the target's end."""
        try:
            identity = self.identity = Identity.of(pid)
        except TargetGoneError as error:
            raise UsageError(str(error)) from error
        _allow_files()
        self._names = ThreadNames(pid, ask=names)
        self._memory = TargetMemory(pid)
        try:
            self.layout = locate(pid, self._memory)
            self._tasks = Tasks(pid, _place(self.layout))
        except TargetGoneError as error:
            self._memory.close()
            raise UsageError(str(error)) from error
        except BaseException:
            self._memory.close()
            raise
        if not identity.alive():
            self.close()
            raise UsageError(f"process {pid} ended while it was being looked into")
        self._frames = Frames(self._memory, self.layout.offsets)
        self._holders: dict[int, int | None] = {}
        self._outer: dict[int, int] = {}
        self.missed = 0
        """Looks that came due and were not taken."""
        self._begin_ns, self._slot = now_ns(), -1
        self._rescan_at_ns = self._clock_at_ns = 0
        self._cpu_before_ns = time.process_time_ns()
        self.threads = 0

    def rows(self, duration_s: float | None, *, stop: Callable[[], bool] = lambda: False) -> Iterator[GilRow]:
        """Yield a row a look, for so long (None: until `stop` says so or the target ends)."""
        wake_on_time()
        begin = now_ns()
        end = None if duration_s is None else begin + round(duration_s * NS_PER_S)
        self.begin(begin)
        while not stop():
            now = now_ns()
            due = self.next_due(now)
            if end is not None and due >= end:
                time.sleep(max(end - now, 0) / NS_PER_S)
                return
            if due - now > _SHORTEST_SLEEP_NS:
                time.sleep((due - now) / NS_PER_S)
            try:
                row = self.look()
            except TargetGoneError as error:
                self.ended = str(error)
                return
            if row is None:
                self.missed += 1
            else:
                yield row

    def begin(self, now_ns: int) -> None:
        """Have the slots of looks begin now."""
        self._begin_ns, self._slot = now_ns, -1

    def next_due(self, now_ns: int) -> int:
        """Go on to the next slot whose look is not past, and say when it is due; those passed over are missed."""
        slot_ns = NS_PER_S / self._rate_hz
        while True:
            self._slot += 1
            due = self._begin_ns + round((self._slot + self._random.random()) * slot_ns)
            if due >= now_ns:
                return due
            self.missed += 1

    def look(self) -> GilRow | None:
        """Take one look; None when the GIL could not be read. Raises TargetGoneError."""
        t_ns = now_ns()
        names: dict[int, str] = {}
        gone: list[int] = []
        if t_ns >= self._rescan_at_ns:
            names, gone = self._rescan(t_ns)
        layout = self.layout
        try:
            t_ns = now_ns()
            gil = self._memory.read(layout.gil, layout.shape.size)
        except ValueError:
            return None
        locked = _I32.unpack_from(gil, layout.offsets.gil_locked)[0] == 1
        state = _U64.unpack_from(gil, layout.offsets.gil_last_holder)[0]
        holder = function = None
        sleeps = False
        if locked:
            function = self._frames.function(state)
            holder = self._tid(state)
        found = self._tasks.look()
        if holder is not None:
            self._tasks.wake(holder)
            if holder in found.running:
                found.running.remove(holder)
            else:
                sleeps = holder not in found.waiting
        if found.lost:
            self._rescan_at_ns = 0
        runnable = self._woken(gil, found)
        clocks: list[tuple[int, int, int]] = []
        if t_ns >= self._clock_at_ns:
            self._clock_at_ns = t_ns + round(CLOCK_S * NS_PER_S)
            clocks = self._tasks.clocks()
        return GilRow(
            t_ns=t_ns,
            locked=locked,
            holder=holder,
            holder_sleeps=sleeps,
            function=function,
            waiting=found.waiting,
            runnable=runnable,
            running=[tid for tid in found.running if tid not in runnable] if runnable else found.running,
            cold=found.cold,
            cold_weight=COLD_EVERY,
            clocked=[tid for tid, _, _ in clocks],
            cpu_clock_ns=[cpu for _, cpu, _ in clocks],
            queue_clock_ns=[queue for _, _, queue in clocks],
            switches=_U64.unpack_from(gil, SWITCH_NUMBER)[0],
            missed=self.missed,
            cpu_ns=time.process_time_ns() - self._cpu_before_ns,
            appeared=list(names),
            names=list(names.values()),
            gone=gone,
            interval_us=_U64.unpack_from(gil, INTERVAL)[0],
        )

    def _woken(self, gil: bytes, found: Look) -> list[int]:
        """Choose the threads that were woken from the GIL's condition variables and have not run yet.

        As many of the running as are counted there beyond the sleepers, first those last seen asleep there.
        """
        place = self.layout.shape.waiter_count
        if place is None or not found.running:
            return []
        shape = self.layout.shape
        counted = sum(_U32.unpack_from(gil, cond + place)[0] >> _WAITER for cond in (shape.cond, shape.switch_cond))
        more = counted - found.on_counted
        if more <= 0:
            return []
        return self._tasks.likeliest_woken(found.running, more)

    def _rescan(self, t_ns: int) -> tuple[dict[int, str], list[int]]:
        self._rescan_at_ns = t_ns + round(RESCAN_S * NS_PER_S)
        appeared, gone = self._tasks.rescan()
        self.threads = len(self._tasks)
        if appeared or gone:
            self._holders.clear()
            self._names.gone(gone)
            for tid in gone:
                self._outer = {inner: outer for inner, outer in self._outer.items() if outer != tid}
            for tid in appeared:
                self._note_inner(tid)
        return self._names.poll() | self._names.appeared(appeared), gone

    def _note_inner(self, tid: int) -> None:
        try:
            inner = inner_id(self.layout.pid, tid)
        except OSError:
            return
        if inner != tid:
            self._outer[inner] = tid

    def _tid(self, state: int) -> int | None:
        """Turn a thread state's address into a thread id; None for one that is not a thread of the target (yet)."""
        if state in self._holders:
            return self._holders[state]
        try:
            inner = self._memory.u64(state + self.layout.offsets.native_thread_id)
        except ValueError:
            return None
        tid = self._outer.get(inner, inner)
        if tid not in self._tasks:
            self._rescan_at_ns = 0
            return None
        self._holders[state] = tid
        return tid

    def ask_names(self) -> None:
        """Ask for the threads' names, so that `settle_names` later has less to wait for."""
        self._names.begin()

    def settle_names(self, limit_s: float = WAIT_S) -> dict[int, str]:
        """Wait until the threads' names are known, so that a short observation has them from its start; give them."""
        return self._names.settle(limit_s)

    def close(self) -> None:
        self._names.close()
        self._tasks.close()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _place(layout: GilLayout) -> WaitPlace:
    gil, shape = layout.gil, layout.shape
    conds = ((gil + shape.cond, gil + shape.mutex), (gil + shape.switch_cond, gil + shape.switch_mutex))
    return WaitPlace(gil + shape.cond, gil + shape.size, conds, shape.futex)


def wake_on_time() -> None:
    """Have a look happen when it is due, where that is permitted; call it when the looks begin, not before.

    What came until then took its time, and must not take it from those we watch.
    By default the kernel wakes us together with others' timers, whose owners we watch; and on a full machine it lets
    us run when a core is free, which is when some thread of the target waits. Both would make the looks choosy.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1")
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _allow_files() -> None:
    """Take as many open files as are allowed: two thousand threads are two thousand files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
