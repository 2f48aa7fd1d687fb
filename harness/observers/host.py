"""CPU, run-queue delay and memory of the cell's processes and threads, read from /proc twice a second."""

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from contracts.arrow import RecordWriter
from contracts.clock import now_ns
from contracts.doubts import Doubt
from contracts.records import HOST, HostRow
from harness.observers.ticker import Ticker

EVERY_S = 0.5
PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class HostSampler:
    """A thread that writes host.arrow. Processes and names may be told at any time; gone ones are passed over."""

    def __init__(self, path: Path, *, proc: Path = PROC, every_s: float = EVERY_S) -> None:
        self._writer = RecordWriter(path, HOST)
        self._proc = proc
        self._lock = threading.Lock()
        self._roles: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._ticker = Ticker("host_sampler", self.sample, every_s)

    def start(self) -> None:
        self._ticker.start()

    def watch(self, processes: Mapping[str, int], names: Mapping[int, str]) -> None:
        """Add processes by role, and the names of their threads by native id."""
        with self._lock:
            self._roles.update({pid: role for role, pid in processes.items()})
            self._names.update(names)

    def stop(self) -> tuple[Doubt, ...]:
        return self._ticker.stop(self._writer.close)

    def sample(self) -> None:
        """Write one row for each process and each of its threads."""
        with self._lock:
            roles, names = dict(self._roles), dict(self._names)
        for pid, role in roles.items():
            rows: list[HostRow] = []
            with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
                rows = self._rows(pid, role, names)
            for row in rows:
                self._writer.append(row)
        self._writer.tick()

    def _rows(self, pid: int, role: str, names: Mapping[int, str]) -> list[HostRow]:
        process = self._proc / str(pid)
        rows: list[HostRow] = []
        total_cpu = total_wait = 0
        for task in sorted(int(entry.name) for entry in (process / "task").iterdir()):
            try:
                cpu, wait = self._schedstat(process / "task" / str(task))
                name = names.get(task) or (process / "task" / str(task) / "comm").read_text().rstrip("\n")
            except OSError:
                continue
            total_cpu += cpu
            total_wait += wait
            rows.append(HostRow(now_ns(), role, pid, task, name, cpu, wait, None))
        rss = int((process / "statm").read_text().split()[1]) * _PAGE
        cpu = self._process_cpu_ns(process)
        rows.append(HostRow(now_ns(), role, pid, None, role, max(cpu, total_cpu), total_wait, rss))
        return rows

    def _schedstat(self, task: Path) -> tuple[int, int]:
        """Return (time on a CPU, time runnable without one) in ns."""
        fields = (task / "schedstat").read_text().split()
        return int(fields[0]), int(fields[1])

    def _process_cpu_ns(self, process: Path) -> int:
        """CPU time of all threads, ended ones too (10 ms resolution)."""
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1e9)
