"""The load processes of one cell: started, told what to do, listened to."""

import contextlib
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import LoadError
from contracts.load import LoadEvent, LoadSpec
from harness.process import Child, Guard, last_lines


def shares_of(users: int, processes: int) -> list[int]:
    """Share users out over load processes."""
    return [users // processes + (n < users % processes) for n in range(processes)]


@dataclass(frozen=True, slots=True)
class LoadTally:
    """The load's counts over all its processes, from their latest progress.

    `failing` says in words that everything fails, once every process says so.
    """

    users: int = 0
    in_flight: int = 0
    completed: int = 0
    failed: int = 0
    unfinished: int = 0
    failing: str | None = None
    ttft_ms: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class _Heard:
    worker: int
    event: LoadEvent | None


class LoadCrew:
    """Speaks contracts.load's protocol with one process per spec. Used by one thread; Ctrl-C may interrupt any wait."""

    def __init__(self, guard: Guard, specs: Sequence[LoadSpec], *, log: Path, cpus: Sequence[int], nice: int) -> None:
        self._log = log
        self._heard: queue.Queue[_Heard] = queue.Queue()
        self._progress: dict[int, dict[str, Any]] = {}
        self._said: dict[str, set[int]] = {}
        self._children = [
            Child(guard, [sys.executable, "-m", "loadgen.process"], log=log, cpus=cpus, pipes=True) for _ in specs
        ]
        favoured = [child.favour(nice) for child in self._children] if nice else [False]
        self.favoured = all(favoured)
        for worker, (child, spec) in enumerate(zip(self._children, specs, strict=True)):
            threading.Thread(
                target=self._listen, args=(worker, child), name=f"load_listener_{worker}", daemon=True
            ).start()
            self._tell(child, spec.to_json())

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def tell(self, do: str, **data: Any) -> None:
        """Give every process the same command."""
        line = json.dumps({"do": do, **data})
        for child in self._children:
            self._tell(child, line)

    def change_users(self, users: int, ramp_s: float) -> None:
        """Change to so many users, evenly over `ramp_s`; every process says `ramped` again when it is so."""
        self._said.pop("ramped", None)
        for child, share in zip(self._children, shares_of(users, len(self._children)), strict=True):
            self._tell(child, json.dumps({"do": "users", "users": share, "ramp_s": ramp_s}))

    def _tell(self, child: Child, line: str) -> None:
        assert child.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone; its listener says so
            child.popen.stdin.write(line + "\n")
            child.popen.stdin.flush()

    def _listen(self, worker: int, child: Child) -> None:
        assert child.popen.stdout is not None
        with contextlib.suppress(ValueError):  # the pipe was closed under us at the end of the cell
            for line in child.popen.stdout:
                try:
                    self._heard.put(_Heard(worker, LoadEvent.from_line(line)))
                except (ValueError, KeyError, TypeError):
                    break
        self._heard.put(_Heard(worker, None))

    def tally(self) -> LoadTally:
        parts = list(self._progress.values())
        failing = [part.get("failing") for part in parts]
        return LoadTally(
            users=sum(part.get("users", 0) for part in parts),
            in_flight=sum(part.get("in_flight", 0) for part in parts),
            completed=sum(part.get("completed", 0) for part in parts),
            failed=sum(part.get("failed", 0) for part in parts),
            unfinished=sum(part.get("unfinished", 0) for part in parts),
            failing="; ".join(map(str, failing)) if len(parts) == len(self._children) and all(failing) else None,
            ttft_ms=[value for part in parts for value in part.get("ttft_ms", ())],
        )

    def wait_for(
        self,
        event: str,
        *,
        timeout_s: float,
        stage: str,
        each: Callable[[], None] = lambda: None,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Listen until every process has said `event` once, now or earlier, or until `enough()`.

        `each` is called at least twice a second.

        Raises LoadError when a process reports an error, dies or breaks the protocol, or when `timeout_s` is over.
        """
        deadline = time.monotonic() + timeout_s
        while len(self._said.get(event, ())) < len(self._children) and not enough():
            left = deadline - time.monotonic()
            if left <= 0:
                raise LoadError(f"{stage}: the load did not get there within {timeout_s:g} s (waited for {event!r})")
            with contextlib.suppress(queue.Empty):
                self._note(self._heard.get(timeout=min(left, 0.25)))
            each()

    def _note(self, heard: _Heard) -> None:
        if heard.event is None:
            if heard.worker in self._said.get("done", ()):
                return
            status = self._children[heard.worker].popen.poll()
            raise LoadError(f"load process {heard.worker} ended (status {status}):\n{last_lines(self._log)}")
        if heard.event.event == "error":
            raise LoadError(f"load process {heard.worker}: {heard.event.data.get('message', 'unknown error')}")
        self._said.setdefault(heard.event.event, set()).add(heard.worker)
        if heard.event.event in {"progress", "done"}:
            self._progress.setdefault(heard.worker, {}).update(heard.event.data)

    def stop(self, grace_s: float) -> None:
        """End the processes: a closed input tells them that we are gone."""
        for child in self._children:
            assert child.popen.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.popen.stdin.close()
        deadline = time.monotonic() + grace_s
        for child in self._children:
            with contextlib.suppress(Exception):
                child.popen.wait(max(0.05, deadline - time.monotonic()))
            child.stop(0.2)
