"""HTTP requests of random shapes against a stack, over plain asyncio: each must get exactly its own answer."""

import asyncio
import base64
import json
import os
import random
from array import array
from collections.abc import Callable
from typing import Any

from driver import DirectClient, Stack, get, random_prompt

from harness.reference import tokens
from harness.reference.engine.device import expected_tokens

LONG = {"max_tokens": 60_000, "ignore_eos": True}
EACH = 8
FIRST = 7777
PATHS = {False: "/v1/completions", True: "/v1/chat/completions"}
Expected = Callable[[list[int], int], list[int]]


async def exchange(url: str, path: str, body: dict[str, Any], *, leave_after: int | None = None) -> tuple[int, bytes]:
    """Post and read the answer to its end, or go away after `leave_after` bytes of it."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        if leave_after is not None:
            await reader.read(leave_after)
            return 0, b""
        answer = await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()
    head_bytes, _, content = answer.partition(b"\r\n\r\n")
    status = int(head_bytes.split()[1])
    return status, _joined(content) if b"transfer-encoding: chunked" in head_bytes.lower() else content


def _joined(content: bytes) -> bytes:
    whole = b""
    while content:
        size, _, content = content.partition(b"\r\n")
        length = int(size, 16)
        whole, content = whole + content[:length], content[length + 2 :]
    return whole


def events_of(content: bytes) -> list[Any]:
    """Return a finished stream's events; the last must be [DONE]."""
    *events, done, rest = content.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def check_streamed(content: bytes, text: str, usage: dict[str, int], *, chat: bool) -> None:
    *events, last = events_of(content)
    assert last["usage"] == usage
    assert last["choices"] == []
    assert len({event["id"] for event in [*events, last]}) == 1
    choices = [event["choices"][0] for event in events]
    if chat:
        opener, *choices = choices
        assert opener["delta"] == {"role": "assistant", "content": None}
        assert "".join(choice["delta"]["content"] for choice in choices) == text
    else:
        assert "".join(choice["text"] for choice in choices) == text
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]


def check_whole(content: bytes, text: str, usage: dict[str, int], *, chat: bool) -> None:
    answer = json.loads(content)
    (choice,) = answer["choices"]
    assert answer["usage"] == usage
    assert choice["finish_reason"] == "length"
    assert (choice["message"]["content"] if chat else choice["text"]) == text


def generation_only(prompt: list[int], length: int, *, chat: bool, packed: bool, stream: bool) -> dict[str, Any]:
    """Build the body that an orchestrator sends to a generation server."""
    body: dict[str, Any] = {"max_tokens": length, "ignore_eos": True, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    if not chat:
        body["prompt"] = prompt
    else:
        body["messages"] = [{"role": "user", "content": "the last of a long history"}]
        if packed:
            body["prompt_token_ids_b64"] = base64.b64encode(array("i", prompt).tobytes()).decode()
        else:
            body["prompt_token_ids"] = prompt
    body["disaggregated_params"] = {
        "request_type": "generation_only",
        "first_gen_tokens": [FIRST],
        "ctx_request_id": 1,
        "encoded_opaque_state": base64.b64encode(bytes(range(256)) * 4).decode(),
        "draft_tokens": None,
        "disagg_request_id": 2**60,
    }
    return body


def usage_of(prompt: list[int], length: int) -> dict[str, int]:
    return {"prompt_tokens": len(prompt), "completion_tokens": length, "total_tokens": len(prompt) + length}


async def http_shapes(
    url: str, count: int, rng: random.Random, expected: Expected = expected_tokens, *, handed_over: bool = True
) -> None:
    """Send `count` requests, streamed and whole, some refused, some left; each must get exactly its own answer.

    With `handed_over`, some are generation-only.
    """

    async def one(gate: asyncio.Semaphore) -> None:
        async with gate:
            chat, stream, prompt, length = (
                rng.random() < 0.5,
                rng.random() < 0.5,
                random_prompt(rng),
                rng.randint(1, 24),
            )
            body: dict[str, Any] = {"max_tokens": length, "ignore_eos": True, "stream": stream}
            body |= {"messages": [{"role": "user"}], "prompt_token_ids": prompt} if chat else {"prompt": prompt}
            kind = rng.random()
            if kind < 0.05:
                status, content = await exchange(url, PATHS[chat], {**body, "max_tokens": 10_000_000})
                assert status == (200 if stream else 400)
                assert "max_seq_len" in json.loads(content.removeprefix(b"data: "))["error"]["message"]
                return
            if kind < 0.1:
                await exchange(url, PATHS[chat], {**body, "max_tokens": 5000, "stream": True}, leave_after=300)
                return
            body |= {"stream_options": {"include_usage": True}} if stream else {}
            answer = expected(prompt, length)
            if handed_over and kind < 0.3:
                body = generation_only(prompt, length, chat=chat, packed=kind < 0.2, stream=stream)
                answer[0] = FIRST
            status, content = await exchange(url, PATHS[chat], body)
            assert status == 200, content
            text = tokens.decode(answer)
            usage = usage_of(prompt, length)
            (check_streamed if stream else check_whole)(content, text, usage, chat=chat)

    gate = asyncio.Semaphore(40)
    await asyncio.gather(*(one(gate) for _ in range(count)))


async def in_flight_when(stack: Stack, signalled: int, number: int, reason: str) -> None:
    """Have requests of all kinds in flight, signal a process, and check that each is answered with an error."""
    direct = await DirectClient.connect(stack.socket)
    held = [direct.submit([1, 2, n], 60_000)[1] for n in range(EACH)]
    bodies = [(chat, stream) for chat in (False, True) for stream in (False, True) for _ in range(EACH)]
    posts = [
        asyncio.create_task(
            exchange(
                stack.url,
                PATHS[chat],
                {**LONG, "stream": stream, "prompt": [1, 2], "messages": [{"role": "user", "content": "x"}]},
            )
        )
        for chat, stream in bodies
    ]
    while (await asyncio.to_thread(get, stack, "/server_info"))["in_flight"] < len(held) + len(posts):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    os.kill(signalled, number)
    for (_, stream), (status, content) in zip(bodies, await asyncio.gather(*posts), strict=True):
        assert status == (200 if stream else 503)
        last = content.decode().rstrip("\n").rpartition("\n\n")[2].removeprefix("data: ")
        error = json.loads(last)["error"]
        assert reason in error["message"]
        assert error["code"] == 503
    for answer in held:
        await asyncio.wait_for(answer.done.wait(), 20)
        assert answer.error is not None
        assert reason in answer.error
    await direct.close()
