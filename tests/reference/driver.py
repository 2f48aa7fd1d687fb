"""A reference stack as a subprocess, and an asyncio client of its direct drive that keeps every token."""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from contracts import direct as wire
from harness.reference.engine.device import expected_tokens
from harness.reference.rpc.envelope import RPCRequest, seal

FAST = {"REFSTACK_DEVICE_BASE_MS": "0.5", "REFSTACK_DEVICE_CALLS": "4", "REFSTACK_RPC_POLL_MS": "1"}


@dataclass
class Stack:
    process: "subprocess.Popen[str]"
    url: str
    socket: Path
    pids: dict[str, int]
    folder: Path

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


@contextlib.contextmanager
def running_stack(*prefix: str, **env: str) -> Iterator[Stack]:
    """Start a stack (by the command `prefix`, if given); whatever the test does, it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        folder = Path(name)
        log = open(folder / "server.log", "w+")  # noqa: SIM115 - closed below, after the process ended
        serve = [sys.executable, "-m", "harness.reference.serve", "--port", "0"]
        process = subprocess.Popen(
            [*prefix, *serve, "--direct-socket", str(folder / "direct")],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": name, **env},
            text=True,
        )
        try:
            yield _ready(process, folder)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            log.close()


def _ready(process: "subprocess.Popen[str]", folder: Path) -> Stack:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for line in (folder / "server.log").read_text().splitlines():
            if line.startswith("READY "):
                ready = json.loads(line[6:])
                return Stack(process, ready["url"], folder / "direct", ready["pids"], folder)
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError((folder / "server.log").read_text())


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    finish: int = wire.RUNNING
    error: str | None = None
    client_id: int | None = None
    parts: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)


class DirectClient:
    """Submits over the direct drive and files each token under its request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = wire.FrameReader()
        self._answers: dict[int, Answer] = {}
        self._tag = 0
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def connect(cls, path: Path) -> "DirectClient":
        return cls(*await asyncio.open_unix_connection(str(path)))

    @property
    def tokens(self) -> int:
        return sum(len(answer.tokens) for answer in self._answers.values())

    def submit(self, prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = True) -> tuple[int, Answer]:
        self._tag += 1
        answer = self._answers[self._tag] = Answer()
        body = wire.SUBMIT_HEAD.pack(self._tag, max_tokens, ignore_eos)
        ids = b"".join(token.to_bytes(4, "little", signed=True) for token in prompt)
        self._writer.write(wire.frame(wire.SUBMIT, body, ids))
        return self._tag, answer

    def abort(self, tag: int) -> None:
        self._writer.write(wire.frame(wire.ABORT, wire.TAG.pack(tag)))

    async def ask(self, prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = True) -> Answer:
        _, answer = self.submit(prompt, max_tokens, ignore_eos=ignore_eos)
        await asyncio.wait_for(answer.done.wait(), 60)
        return answer

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        await self._listening

    async def _listen(self) -> None:
        while data := await self._reader.read(1 << 16):
            for kind, body in self._frames.feed(data):
                self._file(kind, body)

    def _file(self, kind: int, body: bytes) -> None:
        if kind == wire.FAILED:
            answer = self._answers[wire.TAG.unpack_from(body)[0]]
            answer.error = body[wire.TAG.size :].decode()
            answer.done.set()
            return
        assert kind == wire.TOKENS
        (count,) = wire.TAG.unpack_from(body)
        at = wire.TAG.size + count * wire.ENTRY.size
        for tag, client_id, tokens, finish, _ in wire.ENTRY.iter_unpack(body[wire.TAG.size : at]):
            answer = self._answers[tag]
            assert answer.finish == wire.RUNNING, "a response after the last one"
            answer.client_id = client_id
            answer.parts += 1
            for _ in range(tokens):
                answer.tokens.append(int.from_bytes(body[at : at + 4], "little", signed=True))
                at += 4
            answer.finish = finish
            if finish != wire.RUNNING:
                answer.done.set()
        assert at == len(body)


def random_prompt(rng: random.Random, longest: int = 300) -> list[int]:
    return [rng.randrange(256, 32_000) for _ in range(rng.randint(1, longest))]


def get(stack: Stack, path: str) -> Any:
    with urllib.request.urlopen(stack.url + path, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def settled(stack: Stack) -> dict[str, Any]:
    """Wait until nothing is in flight any more; return what the server says then."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        info: dict[str, Any] = get(stack, "/server_info")
        if info["active_requests"] == 0 and info["in_flight"] == 0:
            return info
        time.sleep(0.02)
    raise AssertionError("requests stayed in flight")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_and_await_the_end_of(stack: Stack, pids: Sequence[int]) -> None:
    """Kill the server alone; the processes that it had started must end by themselves."""
    stack.process.kill()
    stack.process.wait()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in pids)


async def random_shapes(
    path: Path, count: int, rng: random.Random, expected: Callable[..., list[int]] = expected_tokens
) -> int:
    """Send `count` requests, some refused, some aborted; each must get exactly its own tokens, in order, once.

    Return how many tokens came.
    """

    async def one(client: DirectClient, gate: asyncio.Semaphore) -> None:
        async with gate:
            prompt, length = random_prompt(rng), rng.randint(1, 24)
            kind = rng.random()
            if kind < 0.02:
                answer = await client.ask([], length)
                assert answer.error is not None
                assert "no tokens" in answer.error
            elif kind < 0.06:
                tag, answer = client.submit(prompt, 5000)
                await asyncio.sleep(rng.random() * 0.02)
                client.abort(tag)
                await asyncio.wait_for(answer.done.wait(), 60)
                assert answer.finish == wire.CANCELLED
                assert answer.tokens == expected(prompt, len(answer.tokens))
            else:
                ignore_eos = rng.random() < 0.5
                answer = await client.ask(prompt, length, ignore_eos=ignore_eos)
                assert answer.error is None
                assert answer.tokens == expected(prompt, length, ignore_eos=ignore_eos)

    client = await DirectClient.connect(path)
    gate = asyncio.Semaphore(200)
    await asyncio.gather(*(one(client, gate) for _ in range(count)))
    await client.close()
    return client.tokens


def altered(key: bytes) -> list[bytes]:
    """A real request with its seal, cut and changed in every way that a wire might; and what is no message at all."""
    sealed = seal(RPCRequest("shutdown", (), {}, need_response=False), key)
    cuts = [sealed[:length] for length in (0, 1, 31, 32, 33, len(sealed) // 2, len(sealed) - 1)]
    flips = [bytes([*sealed[:at], sealed[at] ^ 1, *sealed[at + 1 :]]) for at in (0, len(sealed) // 2, len(sealed) - 1)]
    foreign = seal(RPCRequest("shutdown", (), {}, need_response=False), b"another key" * 3)
    return [*cuts, *flips, sealed + b"\0", sealed[1:], foreign]


def send_all(address: str, messages: list[bytes]) -> None:
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(address)
    for message in messages:
        stranger.send(message)
    stranger.close()  # lingers until all is sent
    context.term()


def until(what: Any, count: int) -> None:
    deadline = threading.Event()
    for _ in range(1000):
        if what() >= count:
            break
        deadline.wait(0.01)
    assert what() == count
