"""What each thread of a process does, from /proc/PID/task/TID/syscall: runs, sleeps on the GIL's locks, or elsewhere.

The file of a blocked thread gives its system call's number and arguments; a futex call's first argument is the address
that the thread sleeps on. Files are kept open, so a look is one system call a thread.
"""

import contextlib
import os
from dataclasses import dataclass

from harness.observers.gil.memory import PROC, TargetGoneError

HOT_TICKS = 200
COLD_EVERY = 16
SHORTEST_RUN_NS = 1_000
_READ_BYTES = 48


@dataclass(slots=True)
class _Task:
    tid: int
    fd: int
    clock_fd: int
    hot_until: int
    in_gil: bool = False
    at_wait: tuple[int, int, int] = (0, 0, 0)
    clocks: tuple[int, int, int] = (-1, -1, -1)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.clock_fd)


@dataclass(slots=True)
class Look:
    """What one pass over the threads found; `on_counted` of the waiting sleep where the GIL counts its waiters."""

    waiting: list[int]
    running: list[int]
    cold: list[int]
    on_counted: int
    lost: bool


@dataclass(frozen=True, slots=True)
class WaitPlace:
    """The addresses [start, end) that mean waiting for the GIL; `counted` are those of its condition variables."""

    start: int
    end: int
    counted: tuple[tuple[int, int], ...]
    futex: int


class Tasks:
    """The threads of a process. Those seen at work within the last HOT_TICKS looks are looked at every time."""

    def __init__(self, pid: int, place: WaitPlace) -> None:
        try:
            self._folder = os.open(f"/proc/{pid}/task", os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise TargetGoneError(f"there is no process {pid}") from error
        self._place = place
        self._prefix = f"{place.futex} 0x".encode()
        self._tasks: dict[int, _Task] = {}
        self._hot: list[_Task] = []
        self._cold: list[_Task] = []
        self._tick = 0

    def __contains__(self, tid: int) -> bool:
        return tid in self._tasks

    def __len__(self) -> int:
        return len(self._tasks)

    def rescan(self) -> tuple[list[int], list[int]]:
        """Bring the list of threads up to date; return who appeared and who is gone. Raises TargetGoneError."""
        try:
            present = {int(entry) for entry in os.listdir(self._folder)}  # noqa: PTH208 - a descriptor
        except OSError as error:
            raise TargetGoneError("the target ended") from error
        if not present:
            raise TargetGoneError("the target ended")
        gone = [tid for tid in self._tasks if tid not in present]
        for tid in gone:
            self._tasks.pop(tid).close()
        appeared = []
        for tid in sorted(present - self._tasks.keys()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                clock_fd = os.open(f"{tid}/schedstat", os.O_RDONLY, dir_fd=self._folder)
                try:
                    fd = os.open(f"{tid}/syscall", os.O_RDONLY, dir_fd=self._folder)
                except OSError:
                    os.close(clock_fd)
                    raise
                self._tasks[tid] = _Task(tid, fd, clock_fd, self._tick + HOT_TICKS)
                appeared.append(tid)
        if gone or appeared:
            self._sort()
        return appeared, gone

    def _sort(self) -> None:
        self._hot = [task for task in self._tasks.values() if task.hot_until > self._tick]
        self._cold = [task for task in self._tasks.values() if task.hot_until <= self._tick]

    def wake(self, tid: int) -> None:
        """Look at this thread every time from now on: it was seen at work."""
        task = self._tasks.get(tid)
        if task is not None:
            self._warm(task)

    def _warm(self, task: _Task) -> None:
        cold = task.hot_until <= self._tick
        task.hot_until = self._tick + HOT_TICKS
        if cold:
            self._sort()

    def look(self) -> Look:
        """Look at the threads whose turn it is."""
        self._tick += 1
        found = Look([], [], [], 0, lost=False)
        for task in self._hot:
            self._look_at(task, found)
        for task in self._cold[self._tick % COLD_EVERY :: COLD_EVERY]:
            if self._look_at(task, found):
                found.cold.append(task.tid)
        if self._tick % HOT_TICKS == 0 or found.cold:
            self._sort()
        return found

    def _look_at(self, task: _Task, found: Look) -> bool:
        """Sort one thread into `found`; say whether it is at work, or wants to be."""
        try:
            line = os.pread(task.fd, _READ_BYTES, 0)
        except OSError:
            found.lost = True
            return False
        if line.startswith(b"running"):
            found.running.append(task.tid)
            task.hot_until = self._tick + HOT_TICKS
            return True
        task.in_gil = False
        if line.startswith(self._prefix):
            at = len(self._prefix)
            address = int(line[at : line.find(b" ", at)], 16)
            place = self._place
            if place.start <= address < place.end:
                task.in_gil = True
                task.hot_until = self._tick + HOT_TICKS
                found.waiting.append(task.tid)
                task.at_wait = _clocks(task)
                found.on_counted += any(start <= address < end for start, end in place.counted)
                return True
        return False

    def likeliest_woken(self, running: list[int], count: int) -> list[int]:
        """Choose those of the running that were woken from the GIL's locks and have not run since.

        First come those last seen asleep there, and of these the ones whose CPU clock has moved least since: what
        has taken the GIL and let go of it again, to run without, has a clock that moved. It moves when a thread leaves
        its core, or at the kernel's tick: one that has come onto a core and whose clock stands is still there.
        """
        if count >= len(running):
            return list(running)
        ranked = []
        for tid in running:
            task = self._tasks[tid]
            cpu_ns, _, runs = _clocks(task)
            moved_ns = cpu_ns - task.at_wait[0]
            on_core = runs > task.at_wait[2] and moved_ns < SHORTEST_RUN_NS
            ranked.append((not task.in_gil, on_core, moved_ns if task.in_gil else 0, tid))
        ranked.sort()
        return [tid for *_, tid in ranked[:count]]

    def clocks(self) -> list[tuple[int, int, int]]:
        """Return (thread, ns on a core, ns in the queue for one) of the threads that have run since the last call."""
        moved = []
        for task in self._tasks.values():
            now = _clocks(task)
            if now != task.clocks:
                task.clocks = now
                moved.append((task.tid, now[0], now[1]))
        return moved

    def close(self) -> None:
        for task in self._tasks.values():
            task.close()
        self._tasks.clear()
        os.close(self._folder)


def _clocks(task: _Task) -> tuple[int, int, int]:
    """Return the thread's ns on a core, ns in the queue for one, and how often it got one."""
    try:
        fields = os.pread(task.clock_fd, _READ_BYTES, 0).split()
        return int(fields[0]), int(fields[1]), int(fields[2])
    except (OSError, IndexError):
        return task.clocks


def native_ids(pid: int) -> dict[int, int]:
    """Map thread ids as the process itself sees them to ours; they differ across PID namespaces (containers)."""
    found = {}
    for entry in (PROC / str(pid) / "task").iterdir():
        with contextlib.suppress(OSError):
            found[inner_id(pid, int(entry.name))] = int(entry.name)
    return found


def inner_id(pid: int, tid: int) -> int:
    """Return a thread's id in its innermost PID namespace. Raises OSError when it has ended."""
    with open(PROC / str(pid) / "task" / str(tid) / "status", "rb") as status:
        for line in status:
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    return tid
