"""Rank 0's side of the post-processing processes: it feeds each its requests' responses and collects the answers."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import zmq

from harness.reference import log
from harness.reference.child import Child
from harness.reference.frontend.chunks import AnswerForm
from harness.reference.rpc.envelope import SealBroken, seal, unseal
from harness.reference.rpc.socket import beside
from harness.reference.types import EngineResponse, ErrorResponse, Formatted

START_TIMEOUT_S = 60.0
POLL_MS = 1000
READY = "ready"
Output = Formatted | ErrorResponse


@dataclass(frozen=True, slots=True)
class Input:
    """A response to post-process; the form of its request's answer comes with the request's first response only."""

    response: EngineResponse
    form: AnswerForm | None


def input_address(rpc_address: str, number: int) -> str:
    return beside(rpc_address, f"postproc{number}")


def output_address(rpc_address: str) -> str:
    return beside(rpc_address, "postproc")


class PostprocPool:
    """`count` processes. A request belongs to the one of number client_id % count, which keeps its text so far.

    `add` and `flush` are for the one thread at a time that takes the responses; `deliver` is called on the thread
    `rpc_worker_postproc_collector`, and so is `on_failure`, when a process has ended that should not have.
    """

    def __init__(
        self,
        count: int,
        *,
        json_library: str,
        log_level: str,
        rpc_address: str,
        key: bytes,
        deliver: Callable[[Sequence[Output]], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._key = key
        self._deliver = deliver
        self._on_failure = on_failure
        self._context = zmq.Context()
        self._inputs = [self._bound(zmq.PUSH, input_address(rpc_address, number)) for number in range(count)]
        self._output = self._bound(zmq.PULL, output_address(rpc_address))
        self._batches: list[list[Input]] = [[] for _ in range(count)]
        task = {"rpc_address": rpc_address, "key": key.hex(), "json": json_library, "log_level": log_level}
        module = "harness.reference.postproc.process"
        self._children = [Child(module, {**task, "number": number}, number=number) for number in range(count)]
        self._starting = count
        self._all_ready = threading.Event()
        self._stopping = False
        self.refused_messages = 0
        self._collector = threading.Thread(target=self._collect, name="rpc_worker_postproc_collector", daemon=True)

    def _bound(self, kind: int, address: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(address)
        return socket

    @property
    def pids(self) -> dict[str, int]:
        return {f"postproc{number}": child.pid for number, child in enumerate(self._children)}

    def start(self) -> None:
        """Wait until every process is ready. Raises RuntimeError when one is not in time."""
        self._collector.start()
        if not self._all_ready.wait(START_TIMEOUT_S) or not all(child.running() for child in self._children):
            statuses = [child.status for child in self._children]
            raise RuntimeError(f"the post-processing processes did not start; their statuses are {statuses}")

    def add(self, response: EngineResponse, form: AnswerForm | None) -> None:
        """Put a response into the next message to its process."""
        self._batches[response.client_id % len(self._batches)].append(Input(response, form))

    def flush(self) -> None:
        """Send what was added: one message a process."""
        for number, batch in enumerate(self._batches):
            if batch:
                self._inputs[number].send(seal(batch, self._key))
                self._batches[number] = []

    def stop(self) -> None:
        self._stopping = True
        for child in self._children:
            child.ask_to_end()
        for child in self._children:
            child.wait()
        if self._collector.ident is not None:
            self._collector.join()
        for socket in (*self._inputs, self._output):
            socket.close(0)
        self._context.term()

    def _collect(self) -> None:
        look_again_s = 0.0
        while not self._stopping:
            if self._output.poll(POLL_MS):
                self._receive()
            if time.monotonic() >= look_again_s:
                look_again_s = time.monotonic() + POLL_MS / 1e3
                if not self._stopping and not all(child.running() for child in self._children):
                    log.error("a post-processing process has ended; rank 0 ends too")
                    self._all_ready.set()
                    self._on_failure()
                    return

    def _receive(self) -> None:
        try:
            message = unseal(self._output.recv(), self._key)
        except SealBroken as error:
            self.refused_messages += 1
            log.warning(str(error))
            return
        if message != READY:
            self._deliver(message)
            return
        self._starting -= 1
        if self._starting == 0:
            self._all_ready.set()
