"""The RPC layer held against the original's own: CPU per submit and streamed response, latency, idle cost, loop loss.

    PYTHONPATH=. python benchmarks/fidelity.py [--blocks 8] [--only submit,stream,latency,idle,loop]

The reference figures come from a transcription of the original's layer, measured on this kind of machine; the method is
the same: two processes, this one calls, the other (fidelity_server.py) serves. `submit` appends to a deque. Cases come
in shuffled order, once a block; CPU is process_time, scaled by a fixed loop run before and after each block. `ratio` is
our median over the original's.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common import scale, spread

from harness.reference.rpc.client import RPCClient
from harness.reference.rpc.socket import Receiving
from harness.reference.types import GenerationRequest, SamplingParams, request_class

SERVER = Path(__file__).with_name("fidelity_server.py")


@dataclass(frozen=True, slots=True)
class Submit:
    """`wire` list or int32, ISL, requests per call; the original's medians in us on the server and on the client."""

    wire: str
    isl: int
    batch: int
    server_us: float
    client_us: float


SUBMITS = (
    Submit("list", 128, 1, 324, 338), Submit("list", 1024, 1, 343, 357), Submit("list", 4096, 1, 540, 471),
    Submit("list", 40000, 1, 2995, 1750), Submit("int32", 1024, 1, 280, 323), Submit("int32", 4096, 1, 319, 383),
    Submit("int32", 40000, 1, 868, 764), Submit("list", 128, 32, 50, 33), Submit("list", 1024, 32, 139, 68),
    Submit("list", 4096, 32, 362, 198), Submit("list", 40000, 32, 2646, 1684), Submit("int32", 1024, 32, 41, 31),
    Submit("int32", 4096, 32, 79, 77), Submit("int32", 40000, 32, 616, 480),
)  # fmt: skip
STREAMS = {64: (5.5, 6.5), 256: (3.7, 4.2), 2048: (3.7, 3.7)}
LATENCY_MS = {"poll": (6.6, 12.4), "event": (2.1, 4.0)}
IDLE_PERCENT = {"poll": (5.3, 3.1), "event": (0.4, 0.4)}
LOOP_LOST_PERCENT = {
    ("busy", 1, 100): 6.3, ("busy", 1, 300): 9.7, ("busy", 32, 300): 3.0,
    ("releasing", 1, 100): 6.3, ("releasing", 1, 300): 13.9, ("releasing", 32, 300): 5.5,
}  # fmt: skip


@contextmanager
def layer(receive: str = "poll") -> Iterator[RPCClient]:
    """Start the served process and connect to it."""
    key = os.urandom(32)
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/rpc"
        server = subprocess.Popen([sys.executable, str(SERVER)], stdin=subprocess.PIPE, text=True)
        assert server.stdin is not None
        server.stdin.write(json.dumps({"address": address, "key": key.hex(), "receive": receive}) + "\n")
        server.stdin.close()
        while not Path(folder, "rpc").exists():
            time.sleep(0.01)
        client = RPCClient(address, key, receive=Receiving(by_event=receive == "event", poll_s=0.01))
        try:
            client.method("received").remote()
            yield client
            client.method("shutdown").remote()
        finally:
            client.close()
            server.wait()


def _requests(case: Submit) -> list[GenerationRequest]:
    prompt = [random.randrange(256, 32_000) for _ in range(case.isl)]
    kind = request_class(case.wire)
    params = SamplingParams(max_tokens=64)
    return [kind(list(prompt), params, streaming=True, arrival_time=0.0).set_id(n) for n in range(case.batch)]


def _send(client: RPCClient, requests: list[GenerationRequest]) -> None:
    name, argument = ("submit", requests[0]) if len(requests) == 1 else ("submit_batch", requests)
    client.method(name, argument).remote(need_response=False)


def _submit_block(client: RPCClient, case: Submit) -> tuple[float, float]:
    """Return scaled us of CPU per request: server, client."""
    made = _requests(case)
    calls = max(1, (64 if case.isl == 40000 else 480) // case.batch)
    before, factor = client.method("received").remote(), scale()
    server_ns, client_ns = client.method("cpu_ns").remote(), time.process_time_ns()
    for _ in range(calls):
        _send(client, made)
    client_ns = time.process_time_ns() - client_ns
    while client.method("received").remote() < before + calls * case.batch:
        time.sleep(0.02)
    server_ns = client.method("cpu_ns").remote() - server_ns
    factor = (factor + scale()) / 2 / 1e3 / (calls * case.batch)
    return server_ns * factor, client_ns * factor


def submits(blocks: int) -> None:
    found: dict[Submit, list[tuple[float, float]]] = defaultdict(list)
    with layer() as client:
        for _ in range(blocks):
            for case in random.sample(SUBMITS, len(SUBMITS)):
                found[case].append(_submit_block(client, case))
    print("CPU per submitted request, back to back, us scaled: median (least-most)")
    print(f"{'wire':>6}{'ISL':>7}{'a call':>8}{'server':>22}{'ratio':>7}{'client':>22}{'ratio':>7}")
    for case in SUBMITS:
        sides = list(zip(*found[case], strict=True))
        cells = [
            f"{spread(side, 0):>22}{statistics.median(side) / original:>7.2f}"
            for side, original in zip(sides, (case.server_us, case.client_us), strict=True)
        ]
        print(f"{case.wire:>6}{case.isl:>7}{case.batch:>8}{''.join(cells)}")


def streams(blocks: int) -> None:
    """Per response of a streamed list, lists sent back to back."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)

    async def consume(client: RPCClient, size: int, lists: int) -> None:
        async for _ in client.method("responses", size, lists).remote_streaming():
            pass

    with layer() as client:
        for _ in range(blocks):
            for size in random.sample(list(STREAMS), len(STREAMS)):
                lists, factor = max(4, 8192 // size), scale()
                server_ns, client_ns = client.method("cpu_ns").remote(), time.process_time_ns()
                asyncio.run(consume(client, size, lists))
                client_ns = time.process_time_ns() - client_ns
                server_ns = client.method("cpu_ns").remote() - server_ns
                factor = (factor + scale()) / 2 / 1e3 / (lists * size)
                found[size].append((server_ns * factor, client_ns * factor))
    print("\nCPU per streamed response, us scaled")
    for size, originals in STREAMS.items():
        for name, side, original in zip(("server", "client"), zip(*found[size], strict=True), originals, strict=True):
            print(f"  lists of {size:<5} {name}  {spread(side, 2):>20}  ratio {statistics.median(side) / original:.2f}")


def latency(blocks: int) -> None:
    """A single call on an idle layer until it is enqueued."""
    print("\nidle latency, call to enqueued, ms")
    for receive, originals in LATENCY_MS.items():
        with layer(receive) as client:
            values = []
            for _ in range(25 * blocks):
                began = time.monotonic()
                client.method("stamp").remote(need_response=False)
                time.sleep(0.02 + random.random() / 50)
                values.append((client.method("last_stamp").remote() - began) * 1e3)
                time.sleep(random.random() / 50)
        values.sort()
        for name, value, original in zip(
            ("p50", "p99"), (values[len(values) // 2], values[int(len(values) * 0.99)]), originals, strict=True
        ):
            print(f"  {receive:<6}{name}  {value:.1f}  original {original}")


def idle(_: int) -> None:
    print("\nidle cost, % of a core (server, client)")
    for receive, originals in IDLE_PERCENT.items():
        with layer(receive) as client:
            server_ns, client_ns = client.method("cpu_ns").remote(), time.process_time_ns()
            time.sleep(5)
            client_ns = time.process_time_ns() - client_ns
            server_ns = client.method("cpu_ns").remote() - server_ns
        print(f"  {receive:<6} {server_ns / 5e7:.1f}, {client_ns / 5e7:.1f}  original {originals[0]}, {originals[1]}")


def loop(blocks: int) -> None:
    """What submits take from a pure-Python loop in the server, as the fall of its CPU share; ISL 1024, lists."""
    print("\nshare of its CPU that a loop in the server loses, %, and what was served per s")
    print("  (busy: it never releases the GIL; releasing: 1.2 ms of Python, then a 0.2 ms wait)")
    for kind in ("busy", "releasing"):
        with layer() as client:
            client.method("start_loop", kind).remote()
            for (which, batch, rate), original in LOOP_LOST_PERCENT.items():
                if which != kind:
                    continue
                pairs = [_loss(client, batch, rate) for _ in range(max(4, blocks))]
                lost, served = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
                print(
                    f"  {kind:<10} {batch:>2} a call, {rate:>3}/s offered: {spread(lost):>18}  original {original:>5}"
                    f"  served {spread(served, 0)}"
                )


def _loss(client: RPCClient, batch: int, rate: int) -> tuple[float, float]:
    made = _requests(Submit("list", 1024, batch, 1, 1))
    quiet = _loop_share(client, lambda: time.sleep(0.5))
    before = client.method("received").remote()
    seconds = max(0.6, 2 * batch / rate)

    def offer() -> None:
        due = time.monotonic()
        for _ in range(max(1, round(rate * seconds / batch))):
            _send(client, made)
            due += batch / rate
            time.sleep(max(0.0, due - time.monotonic()))

    loaded = _loop_share(client, offer)
    served = client.method("received").remote() - before
    time.sleep(0.3)
    return (1 - loaded / quiet) * 100, served / seconds


def _loop_share(client: RPCClient, work: Callable[[], None]) -> float:
    """Return the share of a core that the loop burned while `work` ran."""
    before, began = client.method("loop_cpu_ns").remote(), time.monotonic_ns()
    work()
    burned: int = client.method("loop_cpu_ns").remote() - before
    return burned / (time.monotonic_ns() - began)


SECTIONS = {"submit": submits, "stream": streams, "latency": latency, "idle": idle, "loop": loop}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--only", default=",".join(SECTIONS), metavar="NAME,NAME")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(SECTIONS):
        print(f"error: no section {', '.join(unknown)}; there are: {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    for name in names:
        SECTIONS[name](options.blocks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
