"""Starting fake servers and load processes, and talking to the latter as the harness does."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from contracts.arrow import read_table
from contracts.load import LoadEvent, LoadSpec, WorkloadSpec
from contracts.records import CLIENT, REQUESTS

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@contextlib.contextmanager
def server(script: str, *arguments: object) -> Iterator[str]:
    """Run a fake server; give the first line that it prints."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def spec(folder: Path, **changes: Any) -> LoadSpec:
    values = {
        "drive": "http", "target": "", "endpoint": "completions", "model": "paced", "worker": 0, "users": 8,
        "first_user": 0, "spawn_rate": 1000.0, "quota": None, "drain_s": 10.0, "connect_timeout_s": 2.0,
        "read_timeout_s": 5.0, "workload": WorkloadSpec(isl=20, osl=8, seed=3),
        "requests_path": str(folder / "requests.arrow"), "client_path": str(folder / "client.arrow"),
    }  # fmt: skip
    return LoadSpec(**{**values, **changes})


class Load:
    """A load process and the events it has told so far."""

    def __init__(self, load_spec: LoadSpec | str, **environment: str) -> None:
        self.spec = load_spec
        self.events: list[LoadEvent] = []
        self._buffer = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loadgen.process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, cwd=ROOT, env={**os.environ, **environment}, bufsize=0,
        )  # fmt: skip
        self.tell_line(load_spec if isinstance(load_spec, str) else load_spec.to_json())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()

    def tell_line(self, line: str) -> None:
        self.process.stdin.write(line.encode() + b"\n")

    def tell(self, do: str, **data: Any) -> None:
        self.tell_line(json.dumps({"do": do, **data}))

    def next_event(self, timeout_s: float = 60) -> LoadEvent | None:
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
            assert ready, f"no event in {timeout_s} s after {self.events}"
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        self.events.append(LoadEvent.from_line(line.decode()))
        return self.events[-1]

    def until(self, name: str) -> Mapping[str, Any]:
        while (event := self.next_event()) is not None:
            if event.event == name:
                return event.data
        raise AssertionError(f"ended before {name}: {self.events} {self.process.stderr.read().decode()}")

    def start(self) -> None:
        self.until("ready")
        self.tell("start")
        self.until("ramped")

    def end(self) -> tuple[int, str]:
        """Wait for the process's own end; give its exit status and what it wrote to stderr."""
        while self.next_event() is not None:
            pass
        status = self.process.wait(30)
        return status, self.process.stderr.read().decode()

    def run_for(self, seconds: float) -> Mapping[str, Any]:
        """Run ready, start, a window of so many seconds, drain; give the event `done`."""
        self.start()
        start_ns = time.monotonic_ns()
        self.tell("steady", start_ns=start_ns, end_ns=start_ns + int(seconds * 1e9))
        return self.until("done")

    def rows(self) -> list[dict[str, Any]]:
        return read_table(Path(self.spec.requests_path), REQUESTS).to_pylist()

    def client_rows(self) -> list[dict[str, Any]]:
        return read_table(Path(self.spec.client_path), CLIENT).to_pylist()
