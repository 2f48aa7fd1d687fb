"""Mutated streams into the readers of responses: never an exception, never a wait, never more than they were given.

LOADGEN_FUZZ_ROUNDS says how many a test (3,000); with `pytest -s` each says what it saw.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from loadgen.transport.http import _ERROR_BODY_BYTES, HttpConnection
from loadgen.transport.kernelclock import KernelClock
from loadgen.transport.openai import StreamReading
from loadgen.transport.target import HttpTarget

ROUNDS = int(os.environ.get("LOADGEN_FUZZ_ROUNDS", "3000"))
TEXTS = ["a", " b", "é", '"', "\\", "\n", "\r\n", ""]


def document(endpoint: str, chance: random.Random) -> bytes:
    text = chance.choice(TEXTS)
    if endpoint == "responses":
        return json.dumps({"type": "response.output_text.delta", "delta": text}).encode()
    body = {"text": text} if endpoint == "completions" else {"delta": {"content": text}}
    choice = {"index": 0, **body, "finish_reason": chance.choice([None, None, None, "stop"])}
    return json.dumps({"id": "x", "choices": [choice]}, separators=chance.choice([None, (",", ":")])).encode()


def stream(endpoint: str, chance: random.Random) -> bytes:
    end = chance.choice([b"\n\n", b"\r\n\r\n", b"\r\r"])
    events = [b"data: " + document(endpoint, chance) + end for _ in range(chance.randrange(1, 6))]
    return b"".join(events) + chance.choice([b"", b"data: [DONE]" + end])


def mutate(data: bytes, chance: random.Random) -> bytes:
    held = bytearray(data)
    for _ in range(chance.randrange(0, 5)):
        place = chance.randrange(len(held) + 1)
        action = chance.randrange(4)
        if action == 0:
            held[place:place] = bytes(chance.choices(b'\r\n:{}[]",\\\0\xff data', k=chance.randrange(1, 4)))
        elif action == 1:
            del held[place : place + chance.randrange(1, 8)]
        elif action == 2 and place < len(held):
            held[place] = chance.randrange(256)
        else:
            held[place:place] = held[: chance.randrange(1, 40)]
    return bytes(held)


@pytest.mark.parametrize("endpoint", ["completions", "chat", "responses"])
def test_no_mutation_of_a_stream_raises_and_no_split_of_it_changes_what_is_seen(endpoint: str) -> None:
    chance = random.Random(f"{endpoint} 1")
    counts: Counter[str] = Counter()
    for _ in range(ROUNDS):
        data = mutate(stream(endpoint, chance), chance)
        seen = []
        for most in (len(data) or 1, chance.randrange(1, 9)):
            reading = StreamReading(endpoint, lambda _: None)
            reading.response.status = 200
            place = 0
            while place < len(data):
                size = most if most == len(data) else chance.randrange(1, most + 1)
                reading.feed(1 + place, data[place : place + size])
                place += size
            outcome = reading.outcome(1)
            assert len(outcome.chunk_ns) <= len(data)
            seen.append((outcome.error_kind, len(outcome.chunk_ns), outcome.finish_reason, outcome.output_tokens))
        assert seen[0] == seen[1], data
        counts[seen[0][0] or "well"] += 1
    assert counts.total() == ROUNDS
    print(f"\n{endpoint}: {dict(counts.most_common())}")


class Wire:
    """A socket and a reactor in one that hold what the test gives them."""

    clock = KernelClock()

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.closed = False
        self.recvmsg: Callable[..., Any] = lambda *_: (self.pieces.pop(0), [], 0, None)

    def remove(self, _: int) -> None: ...

    def fileno(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


def reply(endpoint: str, chance: random.Random) -> bytes:
    """Make a whole response: any status, chunked, sized or until the end of the connection."""
    body = stream(endpoint, chance)
    status = chance.choice([b"200 OK"] * 6 + [b"500 Oops", b"204 No Content", b"100 Continue"])
    framing = chance.randrange(4)
    if framing == 0:
        head, framed = b"Content-Length: %d\r\n" % len(body), body
    elif framing == 1:
        head, framed = b"Connection: close\r\n", body
    else:
        pieces = [body[place : place + 40] for place in range(0, len(body), 40)]
        head = b"Transfer-Encoding: chunked\r\n"
        framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    return b"HTTP/1.1 %s\r\nContent-Type: text/event-stream\r\n%s\r\n%s" % (status, head, framed)


@pytest.mark.parametrize("endpoint", ["completions", "chat", "responses"])
def test_no_mutation_of_a_response_raises_or_is_left_open_when_the_connection_ends(endpoint: str) -> None:
    chance = random.Random(f"{endpoint} 2")
    counts: Counter[str] = Counter()
    for _ in range(ROUNDS):
        data = mutate(reply(endpoint, chance), chance)
        wire = Wire()
        connection = HttpConnection(HttpTarget("host", "/", ()), wire, 1, 1)  # type: ignore[arg-type]
        reading = StreamReading(endpoint, lambda _: None, None, connection.cancel)
        response = reading.response
        begin_reading(connection, wire, response)
        most = chance.choice([4, 64, len(data) or 1])
        place = 0
        while place < len(data) and not wire.closed:
            size = chance.randrange(1, most + 1)
            wire.pieces.append(data[place : place + size])
            connection._on_readable()
            place += size
        if not wire.closed:
            wire.pieces.append(b"")
            connection._on_readable()
        assert response.done.is_set(), data
        assert wire.closed, data
        assert response.received_bytes <= len(data)
        assert len(response.error_body) <= _ERROR_BODY_BYTES + most
        outcome = reading.outcome(1)
        assert len(outcome.chunk_ns) <= len(data)
        counts[outcome.error_kind or "well"] += 1
    assert counts.total() == ROUNDS
    print(f"\n{endpoint} over HTTP: {dict(counts.most_common())}")


def begin_reading(connection: HttpConnection, wire: Wire, response: Any) -> None:
    """Put a connection where it stands after it has sent a request."""
    import httptools

    connection._socket, connection._recvmsg = wire, wire.recvmsg
    connection._parser = httptools.HttpResponseParser(connection)
    connection._response = response
