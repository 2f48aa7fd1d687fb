"""The gateway: `python -m loadgen.remote.gateway`, the master's end of the channel to load machines (contracts.remote).

It lives as long as a sweep, beside the harness (importing locust patches the interpreter, which the harness must not
have). It passes lines on, writes the records that workers send into the files that the harness names, measures the
distance of each worker's clock, and says who joined and who was lost. Exit status: 0, or 2 when it cannot listen.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, BinaryIO

import gevent
import locust  # noqa: F401 - it patches, so before anything that keeps references
from locust.exception import RPCError
from locust.rpc.protocol import Message

from contracts.clock import NS_PER_S
from contracts.errors import ToolError, UsageError
from contracts.load import LoadEvent
from contracts.masking import mask_text
from contracts.remote import KINDS, PROTOCOL, SECRET_NAME, GatewaySpec
from loadgen.lines import Lines
from loadgen.remote.wire import SecureServer

LOST_AFTER_S = 10.0
_FIRST_PINGS = 20
_FIRST_PING_S, _PING_S = 0.05, 1.0


@dataclass(slots=True)
class _Worker:
    number: int
    node: str
    host: str
    heard_ns: int
    offset_ns: int = 0
    best_rtt_ns: int | None = None
    pings: dict[int, int] = field(default_factory=dict)
    ping: int = 0
    run: int = -1
    files: dict[str, BinaryIO] = field(default_factory=dict)


class Gateway:
    """Speaks with the workers; `run` returns when the harness is gone or done."""

    def __init__(self, spec: GatewaySpec, secret: str, lines: Lines) -> None:
        self._spec = spec
        self._lines = lines
        self._server = SecureServer(spec.bind, spec.port, secret)
        self._workers: dict[str, _Worker] = {}
        self._numbers: dict[int, _Worker] = {}
        self._joined = 0

    def run(self) -> None:
        helpers = [gevent.spawn(self._listen), gevent.spawn(self._watch)]
        self._emit("bound", port=self._server.port)
        try:
            while (line := self._lines.read()) is not None:
                self._obey(json.loads(line))
        finally:
            gevent.killall(helpers)
            for worker in list(self._numbers.values()):
                self._send(worker.node, "bye", why="the master is done")
                self._close_files(worker)
            self._server.close()  # type: ignore[no-untyped-call]

    def _obey(self, word: Mapping[str, Any]) -> None:
        worker = self._numbers.get(int(word["worker"]))
        if worker is None:  # it was lost meanwhile, and that was said
            return
        run = int(word["run"])
        if word["do"] == "open":
            self._close_files(worker)
            worker.run = run
            paths: Mapping[str, str] = word["paths"]
            worker.files = {kind: open(paths[kind], "wb", buffering=0) for kind in KINDS}  # noqa: SIM115
            self._send(worker.node, "open", run=run, spec=word["spec"])
        elif word["do"] == "line":
            self._send(worker.node, "line", run=run, line=_on_clock(str(word["line"]), worker.offset_ns))
        else:
            self._send(worker.node, "close", run=run)

    def _listen(self) -> None:
        while True:
            try:
                node, message = self._server.recv_from_client()  # type: ignore[no-untyped-call]
            except RPCError:  # nobody without the secret gets here; one with another release may
                continue
            now_ns = monotonic_ns()
            try:
                self._hear(node, message.type, message.data, now_ns)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                print(f"a message {message.type!r} of {node!r} makes no sense: {error!r}", file=sys.stderr)

    def _hear(self, node: str, kind: str, data: Mapping[str, Any], now_ns: int) -> None:
        worker = self._workers.get(node)
        if kind == "hello":
            if worker is None:
                self._welcome(node, data, now_ns)
            return
        if worker is None:
            return
        worker.heard_ns = now_ns
        if kind == "pong":
            self._note_clock(worker, int(data["id"]), int(data["t_ns"]), now_ns)
        elif kind == "records":
            if int(data["run"]) == worker.run and data["kind"] in worker.files:
                worker.files[data["kind"]].write(data["data"])
        elif kind == "line":
            self._emit("line", worker=worker.number, run=int(data["run"]), line=str(data["line"]))
        elif kind == "closed":
            if int(data["run"]) == worker.run:
                self._close_files(worker)
            self._emit("closed", worker=worker.number, run=int(data["run"]), status=data["status"])
        elif kind == "leaving":
            self._lose(worker, "it was told to stop there")

    def _welcome(self, node: str, data: Mapping[str, Any], now_ns: int) -> None:
        if data.get("protocol") != PROTOCOL:
            self._send(node, "refused", why=f"it speaks protocol {data.get('protocol')}, the master {PROTOCOL}")
        elif self._joined == self._spec.workers:
            self._send(node, "refused", why=f"the master has its {self._joined} workers")
        else:
            worker = _Worker(self._joined, node, mask_text(str(data["host"]))[:100], now_ns)
            self._joined += 1
            self._workers[node] = self._numbers[worker.number] = worker
            self._send(node, "welcome")
            gevent.spawn(self._ping_forever, worker)

    def _ping_forever(self, worker: _Worker) -> None:
        while worker.node in self._workers:
            if worker.ping == _FIRST_PINGS:  # its clock is known well enough to begin
                self._emit("joined", worker=worker.number, host=worker.host)
            worker.ping += 1
            worker.pings[worker.ping] = monotonic_ns()
            self._send(worker.node, "ping", id=worker.ping)
            gevent.sleep(_FIRST_PING_S if worker.ping < _FIRST_PINGS else _PING_S)

    def _note_clock(self, worker: _Worker, number: int, theirs_ns: int, now_ns: int) -> None:
        """Take one round trip: the worker's clock was read somewhere between sending and receiving."""
        sent_ns = worker.pings.pop(number, None)
        if sent_ns is None:
            return
        rtt_ns = now_ns - sent_ns
        offset_ns = theirs_ns - (sent_ns + rtt_ns // 2)
        if worker.best_rtt_ns is None or rtt_ns <= worker.best_rtt_ns:
            worker.best_rtt_ns, worker.offset_ns = rtt_ns, offset_ns
        row = {"t_ns": sent_ns + rtt_ns // 2, "offset_ns": offset_ns, "rtt_ns": rtt_ns}
        self._emit("clock", worker=worker.number, **row)

    def _watch(self) -> None:
        """Give up those who have been silent for too long."""
        while True:
            gevent.sleep(1)
            now_ns = monotonic_ns()
            for worker in list(self._workers.values()):
                silent_s = (now_ns - worker.heard_ns) / NS_PER_S
                if silent_s > LOST_AFTER_S:
                    self._lose(worker, f"no word for {silent_s:.0f} s")

    def _lose(self, worker: _Worker, why: str) -> None:
        del self._workers[worker.node], self._numbers[worker.number]
        self._close_files(worker)
        self._emit("lost", worker=worker.number, why=why)

    def _close_files(self, worker: _Worker) -> None:
        for file in worker.files.values():
            file.close()
        worker.files = {}

    def _send(self, node: str, kind: str, **data: Any) -> None:
        self._server.send_to_client(Message(kind, data, node))  # type: ignore[no-untyped-call]

    def _emit(self, event: str, **data: Any) -> None:
        with contextlib.suppress(OSError):  # the harness is gone; the end of input says so too
            self._lines.emit(LoadEvent(event, data))


def _on_clock(line: str, offset_ns: int) -> str:
    """Put the times of a command for a load process on the worker's clock."""
    document = json.loads(line)
    for name in ("start_ns", "end_ns"):
        if document.get(name) is not None:
            document[name] += offset_ns
    return json.dumps(document)


def main() -> int:
    lines = Lines.take_over_stdio()
    text = lines.read()
    if text is None:
        return 0
    try:
        gateway = Gateway(GatewaySpec.from_json(text), os.environ.get(SECRET_NAME, ""), lines)
    except ToolError as error:
        lines.emit(LoadEvent("error", {"message": str(error)}))
        return UsageError.exit_status
    gateway.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
