"""A load machine's end: `python -m loadgen.remote.worker HOST PORT`, which `loadgen worker` becomes (contracts.remote).

For every load it starts a fresh load process, passes lines on in both directions, and sends its record files as they
grow, twice a second: what it dies with is what it had not sent. Exit status: 0 when the master says goodbye, 1 when it
is lost, 2 when it refuses us, 130 on Ctrl-C.
"""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns
from typing import Any, BinaryIO

import gevent
import locust  # noqa: F401 - it patches, so before anything that keeps references
from gevent.event import AsyncResult
from locust.exception import RPCError
from locust.rpc.protocol import Message

from contracts.clock import NS_PER_S
from contracts.errors import ToolError
from contracts.load import LoadEvent, LoadSpec
from contracts.remote import KINDS, PROTOCOL, SECRET_NAME
from loadgen.lines import Lines
from loadgen.remote.wire import SecureClient

_SEND_EVERY_S = 0.5
_PIECE_BYTES = 4 << 20
_HELLO_EVERY_S = 1.0
_STILL_NOTHING = 10
_MASTER_LOST_S = 15.0
_GRACE_S = 10.0


class _Run:
    """One load process, its files and what was sent of them."""

    def __init__(self, worker: "Worker", number: int, spec: LoadSpec) -> None:
        self.number = number
        self._worker = worker
        self._folder = Path(tempfile.mkdtemp(prefix="loadgen-worker-"))
        self._paths = {kind: self._folder / kind for kind in KINDS}
        self._files: dict[str, BinaryIO] = {}
        here = replace(spec, requests_path=str(self._paths["requests"]), client_path=str(self._paths["client"]))
        with open(self._paths["log"], "wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "loadgen.process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._lines = Lines(self._child.stdout.fileno(), self._child.stdin.fileno())
        self.say(here.to_json())
        self._greenlets = [gevent.spawn(self._hear), gevent.spawn(self._send_forever)]

    def say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it is gone; its silence says so
            self._lines.write(line)

    def _hear(self) -> None:
        while (line := self._lines.read()) is not None:
            with contextlib.suppress(ValueError, KeyError):
                if LoadEvent.from_line(line).event in ("done", "error"):  # its files are closed: send them first
                    self.send_records()
            self._worker.send("line", run=self.number, line=line)
        status = self._child.wait()
        self.send_records()
        self._worker.send("closed", run=self.number, status=status)

    def _send_forever(self) -> None:
        while True:
            gevent.sleep(_SEND_EVERY_S)
            self.send_records()

    def send_records(self) -> None:
        """Send what the files have grown by."""
        self._take_files()
        for kind, file in self._files.items():
            while data := file.read(_PIECE_BYTES):
                self._worker.send("records", run=self.number, kind=kind, data=data)

    def _take_files(self) -> None:
        """Open what is there. Once that is all, the folder goes: whatever ends us then, nothing stays behind."""
        if len(self._files) == len(self._paths):
            return
        for kind in self._paths.keys() - self._files.keys():
            with contextlib.suppress(FileNotFoundError):
                self._files[kind] = open(self._paths[kind], "rb", buffering=0)  # noqa: SIM115 - closed with the run
        if len(self._files) == len(self._paths):
            shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """End the load process, gently and then not, and remove its files."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
        gevent.joinall(self._greenlets[:1], timeout=_GRACE_S)
        gevent.killall(self._greenlets)
        self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()
        for file in self._files.values():
            file.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Worker:
    """Speaks with the master; `serve` returns the exit status."""

    def __init__(self, host: str, port: int, secret: str) -> None:
        self._place = f"{host}:{port}"
        self._node = f"{socket.gethostname()}_{uuid.uuid4().hex}"
        self._client = SecureClient(host, port, self._node, secret)
        self._run: _Run | None = None
        self._heard_ns: int | None = None
        self._over: Any = AsyncResult()

    def serve(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            gevent.signal_handler(number, self._over.set, (130, None))
        helpers = [gevent.spawn(self._listen), gevent.spawn(self._watch)]
        status, why = self._over.get()
        gevent.killall(helpers)
        if self._run is not None:
            self._run.close()
        if status == 130:
            self.send("leaving")
        self._client.close()  # type: ignore[no-untyped-call]
        if why:
            print(f"loadgen worker: {why}", file=sys.stderr)
        return int(status)

    def send(self, what: str, /, **data: Any) -> None:
        with contextlib.suppress(RPCError):
            self._client.send(Message(what, data, self._node))  # type: ignore[no-untyped-call]

    def _watch(self) -> None:
        """Say hello until welcomed; afterwards see that the master is still there."""
        print(f"loadgen worker: asking {self._place} for work", file=sys.stderr)
        for turn in itertools.count():
            if self._heard_ns is not None:
                break
            if turn == _STILL_NOTHING:
                print("loadgen worker: no answer yet. Is the master up, and the secret the same?", file=sys.stderr)
            self.send("hello", protocol=PROTOCOL, host=socket.gethostname())
            gevent.sleep(_HELLO_EVERY_S)
        while True:
            gevent.sleep(_HELLO_EVERY_S)
            if monotonic_ns() - (self._heard_ns or 0) > _MASTER_LOST_S * NS_PER_S:
                self._over.set((1, f"the master at {self._place} has been silent for {_MASTER_LOST_S:g} s"))
                return

    def _listen(self) -> None:
        while True:
            try:
                message = self._client.recv()  # type: ignore[no-untyped-call]
            except RPCError:
                continue
            self._heard_ns = now_ns = monotonic_ns()
            self._obey(message.type, message.data, now_ns)

    def _obey(self, kind: str, data: Mapping[str, Any], now_ns: int) -> None:
        if kind == "ping":
            self.send("pong", id=data["id"], t_ns=now_ns)
        elif kind == "welcome":
            print(f"loadgen worker: {self._place} has taken this machine in", file=sys.stderr)
        elif kind == "open":
            if self._run is not None:
                self._run.close()
            self._run = None
            try:
                self._run = _Run(self, int(data["run"]), LoadSpec.from_json(data["spec"]))
            except (OSError, TypeError, ValueError, KeyError) as error:
                why = f"{socket.gethostname()} cannot start this load ({error!r}): has it the master's release?"
                self.send("line", run=data["run"], line=LoadEvent("error", {"message": why}).to_line().strip())
        elif kind in ("line", "close"):
            run = self._run
            if run is not None and run.number == data["run"]:
                if kind == "line":
                    run.say(data["line"])
                else:
                    self._run = None
                    gevent.spawn(run.close)
        elif kind == "refused":
            self._over.set((2, f"{self._place} refused this worker: {data['why']}"))
        elif kind == "bye":
            self._over.set((0, str(data["why"])))


def main() -> int:
    host, port = sys.argv[1], int(sys.argv[2])
    try:
        worker = Worker(host, port, os.environ.get(SECRET_NAME, ""))
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return worker.serve()


if __name__ == "__main__":
    sys.exit(main())
