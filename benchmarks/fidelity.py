"""The RPC layer held against the original's own: CPU per submit and streamed response, latency, idle cost, loop loss.

    PYTHONPATH=. python benchmarks/fidelity.py [--blocks 8] [--only submit,paced,stream,latency,idle,loop]

The original's figures (fidelity_original.py) come from a transcription of its layer, measured on this kind of machine;
the method is the same: two processes, this one calls, the other (fidelity_server.py) serves. `submit` appends to a
deque. Every call carries requests of its own, with ids below 128k. Cases come in shuffled order, once a block; CPU is
process_time, scaled by a fixed loop run before and after each block. `ratio` is our median over the original's.
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
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from common import REFERENCE_LOOP_MS, fixed_loop_ms, spread
from fidelity_original import IDLE_PERCENT, LATENCY_MS, LOSSES, PACED, STREAMS, SUBMITS, Loss, Submit

from harness.reference.rpc.client import RPCClient
from harness.reference.rpc.socket import Receiving
from harness.reference.types import GenerationRequest, SamplingParams, request_class

SERVER = Path(__file__).with_name("fidelity_server.py")
TOP_ID = 128_000
PACED_RPS = 192
PAIR_S = 0.3  # the shortest window of the loop section


class Meter:
    """CPU of both processes, the server's context switches and the machine's speed, from the making to `read`."""

    def __init__(self, client: RPCClient) -> None:
        self._client = client
        self._loop_ms = fixed_loop_ms()
        self._server = client.method("usage").remote()
        self._began, self._client_ns = time.monotonic(), time.process_time_ns()

    def read(self, count: int, *, scaled: bool = True) -> tuple[float, float, float, float]:
        """Return us of CPU on server and client, voluntary and involuntary switches of the server, per request."""
        client_ns = time.process_time_ns() - self._client_ns
        server = [now - then for now, then in zip(self._client.method("usage").remote(), self._server, strict=True)]
        factor = 2 * REFERENCE_LOOP_MS / (self._loop_ms + fixed_loop_ms()) if scaled else 1.0
        return server[0] * factor / 1e3 / count, client_ns * factor / 1e3 / count, server[1] / count, server[2] / count


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


def _requests(wire: str, isl: int, count: int) -> list[GenerationRequest]:
    """Make requests; those of the wire format int32 hold an array, so that packing them is a copy of bytes."""
    kind = request_class(wire)
    made = []
    for n in range(count):
        ids = random.choices(range(256, TOP_ID), k=isl)
        prompt: Any = array("i", ids) if wire == "int32" else ids
        made.append(kind(prompt, SamplingParams(max_tokens=64), streaming=True, arrival_time=0.0).set_id(n))
    return made


def _count(case: Submit) -> int:
    """Say how many requests a block has: enough that asking for the counters does not show."""
    if case.isl == 40000:
        return 64
    return 1920 if case.batch > 1 and case.isl <= 1024 else 480


def _calls(requests: Sequence[GenerationRequest], batch: int) -> list[list[GenerationRequest]]:
    return [list(requests[n : n + batch]) for n in range(0, len(requests), batch)]


def _send(client: RPCClient, requests: list[GenerationRequest]) -> None:
    name, argument = ("submit", requests[0]) if len(requests) == 1 else ("submit_batch", requests)
    client.method(name, argument).remote(need_response=False)


def _await_served(client: RPCClient, count: int) -> None:
    while client.method("received").remote() < count:
        time.sleep(0.02)


def _submit_block(client: RPCClient, case: Submit) -> tuple[float, float, float, float]:
    made = _calls(_requests(case.wire, case.isl, _count(case)), case.batch)
    count = sum(len(call) for call in made)
    before, meter = client.method("received").remote(), Meter(client)
    for call in made:
        _send(client, call)
    _await_served(client, before + count)
    return meter.read(count)


def submits(blocks: int) -> None:
    found: dict[Submit, list[tuple[float, float, float, float]]] = defaultdict(list)
    with layer() as client:
        for _ in range(blocks):
            for case in random.sample(SUBMITS, len(SUBMITS)):
                found[case].append(_submit_block(client, case))
    print("CPU per submitted request, back to back, us scaled: median (least-most) and ratio to the original's median;")
    print("voluntary / involuntary context switches of the server per request, and the original's")
    print(
        f"{'wire':>6}{'ISL':>7}{'a call':>8}{'server':>22}{'ratio':>7}{'client':>22}{'ratio':>7}   switches (original)"
    )
    for case in SUBMITS:
        server, client_side, voluntary, involuntary = zip(*found[case], strict=True)
        cells = [
            f"{spread(side, 0):>22}{statistics.median(side) / original:>7.2f}"
            for side, original in ((server, case.server_us), (client_side, case.client_us))
        ]
        switches = f"{statistics.median(voluntary):.2f} / {statistics.median(involuntary):.2f}"
        print(
            f"{case.wire:>6}{case.isl:>7}{case.batch:>8}{''.join(cells)}   {switches}"
            f" ({case.voluntary} / {case.involuntary})"
        )


def _offer(client: RPCClient, calls: Sequence[list[GenerationRequest]], rate: float, seconds: float) -> int:
    """Send calls, the next as it is due, for so long; return how many requests were sent."""
    batch = len(calls[0])
    due = time.monotonic()
    end, sent = due + seconds, 0
    for call in cycle(calls):
        if due >= end:
            break
        _send(client, call)
        sent += batch
        due += batch / rate
        time.sleep(max(0.0, due - time.monotonic()))
    return sent


def paced(blocks: int) -> None:
    """Submits at a pace that leaves the layer idle between them; the idle CPU of both sides taken off."""
    found: dict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
    with layer() as client:
        for _ in range(blocks):
            for case in random.sample(list(PACED), len(PACED)):
                wire, isl, batch = case
                calls = _calls(_requests(wire, isl, 8 * batch), batch)
                meter = Meter(client)
                time.sleep(2)
                idle_us = meter.read(1)
                before, meter = client.method("received").remote(), Meter(client)
                sent = _offer(client, calls, PACED_RPS, 2)
                _await_served(client, before + sent)
                sides = meter.read(1)
                found[case].append(((sides[0] - idle_us[0]) / sent, (sides[1] - idle_us[1]) / sent))
    print(f"\nCPU per request at {PACED_RPS} requests/s, us scaled, idle CPU taken off (the original's: not scaled)")
    for case, originals in PACED.items():
        columns = list(zip(*found[case], strict=True))
        text = "  ".join(
            f"{name} {spread(side, 0):>16} original {original} ratio {statistics.median(side) / original:.2f}"
            for name, side, original in zip(("server", "client"), columns, originals, strict=True)
        )
        print(f"  {case[0]:>5} {case[1]:>5} {case[2]:>3} a call  {text}")


def streams(blocks: int) -> None:
    """Per response of a streamed list, lists sent back to back."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)

    async def consume(client: RPCClient, size: int, lists: int) -> None:
        async for _ in client.method("responses", size, lists).remote_streaming():
            pass

    with layer() as client:
        for _ in range(blocks):
            for size in random.sample(list(STREAMS), len(STREAMS)):
                lists, meter = max(4, 16384 // size), Meter(client)
                asyncio.run(consume(client, size, lists))
                found[size].append(meter.read(lists * size)[:2])
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
    print("\nidle cost, % of a core")
    for receive, originals in IDLE_PERCENT.items():
        with layer(receive) as client:
            meter = Meter(client)
            time.sleep(5)
            sides = meter.read(1, scaled=False)
        for name, us, original in zip(("server", "client"), sides, originals, strict=False):
            print(f"  {receive:<6} {name}  {us / 5e4:.1f}  original {original if original is not None else '-'}")


def loop(blocks: int) -> None:
    """What submits take from a pure-Python loop in the server, as the fall of its CPU share."""
    print("\nshare of its CPU that a loop in the server loses, %, and what was served per s, median (least-most)")
    print("  (busy: it never releases the GIL; releasing: 1.2 ms of Python, then a 0.2 ms wait)")
    for kind, receive in (("busy", "poll"), ("releasing", "poll"), ("releasing", "event")):
        with layer(receive) as client:
            client.method("start_loop", kind).remote()
            for case in LOSSES:
                if (case.loop, case.receive) != (kind, receive):
                    continue
                pairs = [_loss(client, case) for _ in range(max(4, blocks))]
                lost, served = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
                beside = f", served {case.served:g}" if case.served is not None else ""
                print(
                    f"  {kind:<9} {receive:<5} {case.wire:>5} {case.isl:>4} {case.batch:>2} a call, {case.rate:>3}/s: "
                    f"{spread(lost):>18}  served {spread(served, 0):>14}   original {case.lost_percent}{beside}",
                    flush=True,
                )


def _loss(client: RPCClient, case: Loss) -> tuple[float, float]:
    calls = _calls(_requests(case.wire, case.isl, 4 * case.batch), case.batch)
    quiet = _loop_share(client, lambda: time.sleep(PAIR_S))
    before = client.method("received").remote()
    seconds = max(PAIR_S, case.batch / case.rate)
    sent = 0

    def offer() -> None:
        nonlocal sent
        sent = _offer(client, calls, case.rate, seconds)

    began = time.monotonic()
    loaded = _loop_share(client, offer)
    served = (client.method("received").remote() - before) / (time.monotonic() - began)
    _await_served(client, before + sent)
    return (1 - loaded / quiet) * 100, served


def _loop_share(client: RPCClient, work: Callable[[], None]) -> float:
    """Return the share of a core that the loop burned while `work` ran."""
    before, began = client.method("loop_cpu_ns").remote(), time.monotonic_ns()
    work()
    burned: int = client.method("loop_cpu_ns").remote() - before
    return burned / (time.monotonic_ns() - began)


SECTIONS = {"submit": submits, "paced": paced, "stream": streams, "latency": latency, "idle": idle, "loop": loop}


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
