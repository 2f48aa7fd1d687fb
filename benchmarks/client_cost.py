"""What the client costs: CPU microseconds per chunk and per request, as ratios to a raw asyncio reader.

    .venv/bin/python benchmarks/client_cost.py [--users 256] [--seconds 4] [--repeats 3] [--gap-ms 50]

Both drives run against a paced server on loopback which sends each user one token per gap, all users in one burst, as
an engine's step does. The raw reader (same Python, plain asyncio protocol, no records, no JSON) meets the same server
in the same run; the order within a repeat is shuffled. Two output lengths give two equations for the two costs. CPU
time is of the client process alone, from its first request to its last; times of the records are not looked at.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common import end_with

from contracts.direct import ENTRY, LENGTH, RUNNING, SUBMIT, SUBMIT_HEAD, TAG, TOKENS, FrameReader, frame
from contracts.load import LoadSpec, WorkloadSpec
from loadgen.started import LoadProcess

ROOT = Path(__file__).parents[1]
ISL, SHORT_OSL, LONG_OSL = 256, 4, 64
EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":%s,"stop_reason":null}],"usage":%s}\n\n'
)


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


TOKEN = chunked(EVENT % (b"null", b"null"))
RESPONSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def last_token(count: int) -> bytes:
    usage = b'data: {"id":"cmpl-0","choices":[],"usage":{"completion_tokens":%d}}\n\n' % count
    return chunked(EVENT % (b'"length"', b"null")) + chunked(usage) + chunked(b"data: [DONE]\n\n") + chunked(b"")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run used: CPU seconds of the client, chunks and requests it received."""

    cpu_s: float
    chunks: int
    requests: int


class HttpServer(asyncio.Protocol):
    def __init__(self, active: set["HttpServer"]) -> None:
        self.active, self.left, self.count, self.need = active, 0, 0, 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        self.active.discard(self)

    def data_received(self, data: bytes) -> None:
        if self.need == 0:
            head, _, body = data.partition(b"\r\n\r\n")
            self.need = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]) - len(body)
            self.count = self.left = int(data.split(b'"max_tokens":')[1].split(b",")[0])
        else:
            self.need -= len(data)
        if self.need == 0:
            self.transport.write(RESPONSE_HEAD)
            self.active.add(self)

    def step(self) -> None:
        self.left -= 1
        self.transport.write(TOKEN if self.left else last_token(self.count))
        if not self.left:
            self.active.discard(self)


class DirectServer(asyncio.Protocol):
    def __init__(self, active: set["DirectServer"]) -> None:
        self.running: dict[int, int] = {}
        self.frames = FrameReader()
        active.add(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for _, body in self.frames.feed(data):
            tag, count, _ = SUBMIT_HEAD.unpack_from(body)
            self.running[tag] = count

    def step(self) -> None:
        entries = []
        for tag, left in list(self.running.items()):
            entries.append(ENTRY.pack(tag, tag, 1, RUNNING if left > 1 else LENGTH, 0))
            self.running[tag] = left - 1
            if left == 1:
                del self.running[tag]
        if entries:
            self.transport.write(frame(TOKENS, TAG.pack(len(entries)), *entries, bytes(4 * len(entries))))


async def serve(kind: str, path: str, gap_s: float) -> None:
    loop, active = asyncio.get_running_loop(), set[Any]()
    if kind == "http":
        server = await loop.create_server(lambda: HttpServer(active), "127.0.0.1", 0, backlog=4096)
        print(server.sockets[0].getsockname()[1], flush=True)
    else:
        await loop.create_unix_server(lambda: DirectServer(active), path)
        print(path, flush=True)
    while True:
        await asyncio.sleep(gap_s)
        for each in list(active):
            each.step()


class RawHttp(asyncio.Protocol):
    """Receives bytes, sees where a response ends, sends the next request. Nothing else."""

    def __init__(self, raw: "Raw", user: int) -> None:
        self.raw = raw
        ids = b",".join(b"%5d" % (256 + (user + k) % 30_000) for k in range(ISL))
        body = b'{"model":"m","stream":true,"max_tokens":%d,"prompt":[%s]}' % (raw.osl, ids)
        self.request = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n0\r\n\r\n") and self.raw.one_more_done():
            self.transport.write(self.request)


class RawDirect(asyncio.Protocol):
    """Receives frames, looks at every entry, sends the next request where one ended. Nothing else."""

    def __init__(self, raw: "Raw") -> None:
        self.raw, self.frames, self.prompt = raw, FrameReader(), struct.pack(f"<{ISL}i", *range(ISL))

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        for tag in range(self.raw.users):
            self.submit(tag)

    def submit(self, tag: int) -> None:
        self.transport.write(frame(SUBMIT, SUBMIT_HEAD.pack(tag, self.raw.osl, 1), self.prompt))

    def data_received(self, data: bytes) -> None:
        for _, body in self.frames.feed(data):
            (count,) = TAG.unpack_from(body)
            for tag, _, _, finish, _ in ENTRY.iter_unpack(memoryview(body)[4 : 4 + count * ENTRY.size]):
                if finish and self.raw.one_more_done():
                    self.submit(tag)


class Raw:
    def __init__(self, users: int, osl: int, seconds: float) -> None:
        self.users, self.osl, self.requests, self.running = users, osl, 0, users
        self.over = asyncio.Event()
        self.deadline = time.monotonic() + seconds

    def one_more_done(self) -> bool:
        """Count a response; say whether its user goes on."""
        self.requests += 1
        if time.monotonic() < self.deadline:
            return True
        self.running -= 1
        if not self.running:
            self.over.set()
        return False


async def read_raw(kind: str, target: str, users: int, osl: int, seconds: float) -> None:
    raw, loop, started = Raw(users, osl, seconds), asyncio.get_running_loop(), time.process_time()
    if kind == "http":
        for user in range(users):
            await loop.create_connection(partial(RawHttp, raw, user), "127.0.0.1", int(target))
    else:
        await loop.create_unix_connection(lambda: RawDirect(raw), target)
    await raw.over.wait()
    cost = {"cpu_s": time.process_time() - started, "chunks": raw.requests * osl, "requests": raw.requests}
    print(json.dumps(cost), flush=True)


def run_raw(kind: str, target: str, users: int, osl: int, seconds: float) -> Cost:
    words = [sys.executable, __file__, "raw", kind, target, users, osl, seconds]
    return Cost(**json.loads(subprocess.check_output([str(word) for word in words], env=environment())))


def run_ours(kind: str, target: str, users: int, osl: int, seconds: float) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        spec = LoadSpec(
            drive={"direct": "rpc"}.get(kind, kind),
            target=f"http://127.0.0.1:{target}" if kind == "http" else target,
            endpoint="completions",
            model="m",
            worker=0,
            users=users,
            first_user=0,
            spawn_rate=10_000,
            quota=None,
            drain_s=60,
            connect_timeout_s=5,
            read_timeout_s=60,
            workload=WorkloadSpec(ISL, osl, isl_spread=0, osl_spread=0),
            requests_path=f"{folder}/requests.arrow",
            client_path=f"{folder}/client.arrow",
        )
        with LoadProcess(spec) as process:
            process.tell("start")
            process.until("ramped")
            process.tell("steady", start_ns=0, end_ns=time.monotonic_ns() + int(seconds * 1e9))
            event = process.until("done")
    if event["failed"]:
        raise SystemExit(f"{event['failed']} requests failed: the figures would be of failures")
    return Cost(event["cpu_s"], event["completed"] * osl, event["completed"])


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@contextlib.contextmanager
def server(kind: str, gap_s: float) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "serve", kind, f"{folder}/socket", str(gap_s)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().strip()
            finally:
                process.kill()


def solve(short: Cost, long: Cost) -> tuple[float, float]:
    """Give microseconds per chunk and per request, from two runs of different output lengths."""
    by_chunk = (long.cpu_s * short.requests - short.cpu_s * long.requests) / (
        long.chunks * short.requests - short.chunks * long.requests
    )
    return by_chunk * 1e6, (short.cpu_s - by_chunk * short.chunks) / short.requests * 1e6


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):7.2f} ({min(values):.2f} to {max(values):.2f})"


def compare(kind: str, users: int, seconds: float, repeats: int, gap_s: float) -> None:
    costs: dict[str, list[tuple[float, float]]] = {"raw": [], "ours": []}
    with server(kind, gap_s) as target:
        for _ in range(repeats):
            runs = [(name, osl) for name in costs for osl in (SHORT_OSL, LONG_OSL)]
            random.shuffle(runs)
            got = {
                (name, osl): {"raw": run_raw, "ours": run_ours}[name](kind, target, users, osl, seconds)
                for name, osl in runs
            }
            for name, found in costs.items():
                found.append(solve(got[name, SHORT_OSL], got[name, LONG_OSL]))
    for index, unit in enumerate(("chunk", "request")):
        raw, ours = ([pair[index] for pair in costs[name]] for name in ("raw", "ours"))
        ratios = [mine / theirs for mine, theirs in zip(ours, raw, strict=True)]
        print(f"{kind:7} us per {unit:8} raw {spread(raw)}   ours {spread(ours)}   ratio {spread(ratios)}", flush=True)


def main() -> int:
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(sys.argv[2], sys.argv[3], float(sys.argv[4])))
    elif sys.argv[1:2] == ["raw"]:
        asyncio.run(read_raw(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6])))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--users", type=int, default=256)
        parser.add_argument("--seconds", type=float, default=4.0)
        parser.add_argument("--repeats", type=int, default=3)
        parser.add_argument("--gap-ms", type=float, default=50.0)
        options = parser.parse_args()
        print(f"{options.users} users, {options.gap_ms:g} ms gaps; median (least to most) of {options.repeats} repeats")
        for kind in ("http", "direct"):
            compare(kind, options.users, options.seconds, options.repeats, options.gap_ms / 1000)
    return 0


if __name__ == "__main__":
    end_with(main)
