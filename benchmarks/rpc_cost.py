"""CPU that one submit costs in the RPC layer, on both sides, held against the original's own layer.

    PYTHONPATH=. python benchmarks/rpc_cost.py [--blocks 8]

Two processes: this one calls, the other serves; `submit` appends to a deque and nothing else, as in the measurement
that the reference figures come from. Back to back, fire and forget; every case once a block, in shuffled order. In
us of CPU per request, scaled by a fixed loop run beside each block; `original` is that measurement's median.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import scale, spread

from harness.reference.rpc.client import RPCClient
from harness.reference.rpc.server import RPCServer
from harness.reference.rpc.socket import receiving
from harness.reference.settings import ReferenceSettings
from harness.reference.types import GenerationRequest, SamplingParams

METHODS = frozenset({"submit", "submit_batch", "received", "cpu_ns", "shutdown"})


@dataclass(frozen=True, slots=True)
class Case:
    """ISL and how many requests go in one call; the original's medians in us on the server and the client."""

    isl: int
    batch: int
    server_us: float
    client_us: float


CASES = (
    Case(128, 1, 324, 338), Case(1024, 1, 343, 357), Case(4096, 1, 540, 471), Case(40000, 1, 2995, 1750),
    Case(128, 32, 50, 33), Case(1024, 32, 139, 68), Case(4096, 32, 362, 198), Case(40000, 32, 2646, 1684),
)  # fmt: skip


class Sink:
    """The served object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[GenerationRequest] = deque(maxlen=4096)
        self._count = 0
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

    def cpu_ns(self) -> int:
        return time.process_time_ns()

    def shutdown(self) -> None:
        self.over.set()


def serve(address: str, key: bytes) -> None:
    settings = ReferenceSettings()
    sink = Sink()
    server = RPCServer(sink, METHODS, address, key, tasks=settings.rpc_tasks, receive=receiving(settings))
    server.start()
    sink.over.wait()
    server.stop()


def run_block(client: RPCClient, case: Case, requests: int) -> tuple[float, float]:
    """Return scaled us of CPU per request: server, client."""
    prompt = [random.randrange(256, 32_000) for _ in range(case.isl)]
    made = [
        GenerationRequest(list(prompt), SamplingParams(max_tokens=64), streaming=True, arrival_time=0.0).set_id(n)
        for n in range(case.batch)
    ]
    factor = scale()
    before: int = client.method("received").remote()
    server_before: int = client.method("cpu_ns").remote()
    client_before = time.process_time_ns()
    calls = max(1, requests // case.batch)
    for _ in range(calls):
        name, argument = ("submit", made[0]) if case.batch == 1 else ("submit_batch", made)
        client.method(name, argument).remote(need_response=False)
    client_ns = time.process_time_ns() - client_before
    while client.method("received").remote() < before + calls * case.batch:
        time.sleep(0.02)
    server_ns: int = client.method("cpu_ns").remote() - server_before
    factor = (factor + scale()) / 2
    count = calls * case.batch
    return server_ns / 1e3 / count * factor, client_ns / 1e3 / count * factor


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--serve":
        task = json.loads(sys.stdin.readline())
        serve(task["address"], bytes.fromhex(task["key"]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=8)
    options = parser.parse_args()
    key = os.urandom(32)
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/rpc"
        server = subprocess.Popen([sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, text=True)
        assert server.stdin is not None
        server.stdin.write(json.dumps({"address": address, "key": key.hex()}) + "\n")
        server.stdin.flush()
        while not Path(folder, "rpc").exists():
            time.sleep(0.01)
        client = RPCClient(address, key, receive=receiving(ReferenceSettings()))
        found: dict[Case, list[tuple[float, float]]] = defaultdict(list)
        for _ in range(options.blocks):
            for case in random.sample(CASES, len(CASES)):
                found[case].append(run_block(client, case, 64 if case.isl == 40000 else 480))
        client.method("shutdown").remote()
        client.close()
        server.wait()
        server.stdin.close()
    print("us of CPU per request, scaled: median (least-most), and over the original's median")
    print(f"{'ISL':>6}{'batch':>7}{'server':>24}{'/ original':>12}{'client':>24}{'/ original':>12}")
    for case in CASES:
        print(_line(case, found[case]))


def _line(case: Case, pairs: list[tuple[float, float]]) -> str:
    columns: list[Any] = [f"{case.isl:>6}{case.batch:>7}"]
    for values, original in (
        ([pair[0] for pair in pairs], case.server_us),
        ([pair[1] for pair in pairs], case.client_us),
    ):
        middle = sorted(values)[len(values) // 2]
        columns.append(f"{spread(values, 0):>24}{middle / original:>12.2f}")
    return "".join(columns)


if __name__ == "__main__":
    main()
