"""Load processes on other machines: the gateway to them, who has joined it, and what is known of their clocks."""

import contextlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from contracts.arrow import write_rows
from contracts.errors import LoadError, UsageError
from contracts.folder import CellFolder
from contracts.load import LoadEvent, LoadSpec
from contracts.records import CLOCKS, ClockRow
from contracts.remote import SECRET_NAME, GatewaySpec
from harness.loadlink import Heard
from harness.process import Child, Guard, last_lines

JOIN_LIMIT_S = 600.0
BOUND_LIMIT_S = 60.0
GOODBYE_S = 5.0


@dataclass(frozen=True, slots=True)
class WorkersFrom:
    """How many workers on other machines a load waits for, where they are to call, and the secret they must know."""

    count: int
    bind: str
    port: int
    secret: str = field(repr=False)


@dataclass(slots=True, eq=False)
class RemoteWorker:
    """A worker that has joined: its machine's name, its present load, and every round trip to its clock."""

    number: int
    host: str
    clocks: list[ClockRow] = field(default_factory=list)
    run: int = -1
    heard: Heard | None = None
    lost: str | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class RemoteWorkers:
    """Runs the gateway for as long as it is open. Used by one thread; a listener thread hears for it."""

    def __init__(self, guard: Guard, plan: WorkersFrom, log: Path) -> None:
        self._plan = plan
        self._log = log
        self._workers: dict[int, RemoteWorker] = {}
        self._clocks: dict[int, list[ClockRow]] = {}
        self._news: queue.Queue[LoadEvent | None] = queue.Queue()
        self._runs = 0
        env = {**os.environ, SECRET_NAME: plan.secret}
        self._child = Child(guard, [sys.executable, "-m", "loadgen.remote.gateway"], log=log, env=env, pipes=True)
        threading.Thread(target=self._listen, name="gateway_listener", daemon=True).start()
        self._say(GatewaySpec(plan.bind, plan.port, plan.count).to_json())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say goodbye to all."""
        assert self._child.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.popen.stdin.close()
        with contextlib.suppress(Exception):
            self._child.popen.wait(GOODBYE_S)
        self._child.stop(0.2)

    @property
    def present(self) -> list[RemoteWorker]:
        """Those that have joined and were not lost, by number."""
        return [worker for _, worker in sorted(self._workers.items()) if worker.lost is None]

    def gather(self, bound: Callable[[str], None], joined: Callable[[str, int], None]) -> None:
        """Wait until all are there; `bound` hears the address, `joined` each machine's name and how many there are.

        Raises UsageError when the gateway cannot listen there, or when they do not come in time.
        """
        deadline = time.monotonic() + BOUND_LIMIT_S
        while len(self._workers) < self._plan.count:
            try:
                news = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise UsageError(
                    f"only {len(self._workers)} of {self._plan.count} workers came within {JOIN_LIMIT_S:g} s"
                ) from None
            if news is None:
                raise LoadError(f"the gateway ended:\n{last_lines(self._log)}")
            if news.event == "error":
                raise UsageError(str(news.data["message"]))
            if news.event == "bound":
                deadline = time.monotonic() + JOIN_LIMIT_S
                bound(f"{self._plan.bind}:{news.data['port']}")
            elif news.event == "joined":
                worker = RemoteWorker(int(news.data["worker"]), str(news.data["host"]))
                worker.clocks = self._clocks.setdefault(worker.number, [])
                self._workers[worker.number] = worker
                joined(worker.host, len(self._workers))

    def open(self, worker: RemoteWorker, spec: LoadSpec, folder: CellFolder, heard: Heard) -> "RemoteLoad":
        """Start a load process on a worker; its files grow in the cell's folder as it sends them."""
        self._runs += 1
        worker.run, worker.heard, worker.ended = self._runs, heard, threading.Event()
        log = folder.client_log.with_name(f"client-{spec.worker}.log")
        paths = {"requests": spec.requests_path, "client": spec.client_path, "log": str(log)}
        self.command("open", worker, spec=spec.to_json(), paths=paths)
        return RemoteLoad(self, worker)

    def command(self, do: str, worker: RemoteWorker, **data: Any) -> None:
        self._say(json.dumps({"do": do, "worker": worker.number, "run": worker.run, **data}))

    def write_clocks(self, path: Path, numbers: Mapping[int, int]) -> None:
        """Write the round trips so far of a cell's workers (number there -> load process) beside its records."""
        rows = [
            ClockRow(process, row.t_ns, row.offset_ns, row.rtt_ns)
            for number, process in numbers.items()
            for row in list(self._workers[number].clocks)
        ]
        write_rows(path, CLOCKS, rows)

    def _say(self, line: str) -> None:
        assert self._child.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone; the listener says so
            self._child.popen.stdin.write(line + "\n")
            self._child.popen.stdin.flush()

    def _listen(self) -> None:
        assert self._child.popen.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self._child.popen.stdout:
                self._take(LoadEvent.from_line(line))
        self._news.put(None)
        for worker in list(self._workers.values()):
            self._lose(worker, "the gateway ended")

    def _take(self, news: LoadEvent) -> None:
        data = news.data
        if news.event == "clock":
            row = ClockRow(int(data["worker"]), int(data["t_ns"]), int(data["offset_ns"]), int(data["rtt_ns"]))
            self._clocks.setdefault(row.worker, []).append(row)
            return
        worker = self._workers.get(int(data["worker"])) if "worker" in data else None
        if news.event == "lost" and worker is not None:
            self._lose(worker, str(data["why"]))
        elif news.event in ("line", "closed") and worker is not None:
            if worker.run != data["run"] or worker.heard is None:
                return
            if news.event == "closed":
                worker.ended.set()
                worker.heard(None)
                return
            with contextlib.suppress(ValueError, KeyError, TypeError):
                worker.heard(LoadEvent.from_line(data["line"]))
        else:
            self._news.put(news)

    def _lose(self, worker: RemoteWorker, why: str) -> None:
        worker.lost = why
        worker.ended.set()
        if worker.heard is not None:
            worker.heard(None)


class RemoteLoad:
    """A load process on another machine (harness.loadlink.LoadLink)."""

    pid: int | None = None
    expendable = True

    def __init__(self, workers: RemoteWorkers, worker: RemoteWorker) -> None:
        self._workers = workers
        self._worker = worker

    def tell(self, line: str) -> None:
        self._workers.command("line", self._worker, line=line)

    def why_ended(self) -> str:
        return f"on {self._worker.host}: {self._worker.lost or 'its load process ended'}"

    def hang_up(self) -> None:
        if self._worker.lost is None:
            self._workers.command("close", self._worker)

    def stop(self, deadline_s: float) -> str | None:
        """Wait until its last records are here; a machine that does not answer is left to itself."""
        answered = self._worker.ended.wait(max(0.05, deadline_s - time.monotonic()))
        if self._worker.lost is not None:
            return self.why_ended()
        return None if answered else f"on {self._worker.host}: its last records did not come"
