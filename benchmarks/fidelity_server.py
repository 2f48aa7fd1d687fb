"""The served process of fidelity.py: our RPC server over an object that does nothing else; task on standard input."""

import json
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator

from harness.reference import log
from harness.reference.rpc.server import RPCServer
from harness.reference.rpc.socket import Receiving
from harness.reference.types import GenerationRequest, Response

METHODS = frozenset(
    {
        "submit", "submit_batch", "received", "usage", "responses", "stamp", "last_stamp", "start_loop", "loop_cpu_ns",
        "shutdown",
    }
)  # fmt: skip


class Sink:
    """What is served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[GenerationRequest] = deque(maxlen=4096)
        self._count = 0
        self._stamp = 0.0
        self._loop: threading.Thread | None = None
        self.over = threading.Event()

    def submit(self, request: GenerationRequest) -> None:
        with self._lock:
            self._queue.append(request)
            self._count += 1

    def submit_batch(self, requests: list[GenerationRequest]) -> None:
        for request in requests:
            self.submit(request)

    def received(self) -> int:
        return self._count

    def usage(self) -> tuple[int, int, int]:
        """Return CPU time in ns, voluntary and involuntary context switches of this process."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return time.process_time_ns(), used.ru_nvcsw, used.ru_nivcsw

    async def responses(self, size: int, lists: int) -> AsyncIterator[list[Response]]:
        made = [Response(n, [300 + n], n) for n in range(size)]
        for _ in range(lists):
            yield made

    def stamp(self) -> None:
        self._stamp = time.monotonic()

    def last_stamp(self) -> float:
        return self._stamp

    def start_loop(self, kind: str) -> None:
        self._loop = threading.Thread(target=self._run_loop, args=(kind == "releasing",), daemon=True)
        self._loop.start()

    def _run_loop(self, releasing: bool) -> None:
        x = 0
        while not self.over.is_set():
            end = time.monotonic() + 0.0012
            while time.monotonic() < end:
                x += 1
            if releasing:
                time.sleep(0.0002)

    def loop_cpu_ns(self) -> int:
        assert self._loop is not None
        assert self._loop.ident is not None
        return time.clock_gettime_ns(time.pthread_getcpuclockid(self._loop.ident))

    def shutdown(self) -> None:
        self.over.set()


def main() -> None:
    task = json.loads(sys.stdin.readline())
    log.set_level("warning")
    sink = Sink()
    receive = Receiving(by_event=task["receive"] == "event", poll_s=0.01)
    server = RPCServer(sink, METHODS, task["address"], bytes.fromhex(task["key"]), tasks=6, receive=receive)
    server.start()
    sink.over.wait()
    server.stop()


if __name__ == "__main__":
    main()
