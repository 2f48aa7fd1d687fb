"""Mutated streams into the reader of responses: never an exception, never more than it was given."""

import json
import random

import pytest

from loadgen.openai import StreamReading

ROUNDS = 3000
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
