"""A direct-drive server of known behaviour: token k of a request is a function of its prompt. Prints a line when ready.

Usage: fake_direct.py SOCKET CASE [GAP_S]. In the case `paced`, every GAP_S seconds one frame carries the next one to
three tokens of every request; the other cases misbehave in one way each.
"""

import asyncio
import itertools
import random
import struct
import sys

from contracts.direct import (
    ABORT,
    CANCELLED,
    ENTRY,
    FAILED,
    LENGTH,
    RUNNING,
    SUBMIT,
    SUBMIT_HEAD,
    TAG,
    TOKENS,
    FrameReader,
    frame,
)


def expected_tokens(prompt: bytes, count: int) -> list[int]:
    """Give the tokens of a request, from its prompt's bytes."""
    total = sum(struct.unpack(f"<{len(prompt) // 4}i", prompt)) % 100_000
    return [(total + 7 * k) % 32_000 for k in range(count)]


class Request:
    def __init__(self, tag: int, client_id: int, tokens: list[int]) -> None:
        self.tag, self.client_id, self.tokens, self.at = tag, client_id, tokens, 0


def step(active: dict[int, Request], dice: random.Random) -> bytes:
    entries, tokens = [], []
    for request in list(active.values()):
        part = request.tokens[request.at : request.at + dice.randint(1, 3)]
        request.at += len(part)
        finish = LENGTH if request.at == len(request.tokens) else RUNNING
        entries.append(ENTRY.pack(request.tag, request.client_id, len(part), finish, 0))
        tokens += part
        if finish:
            del active[request.tag]
    return frame(TOKENS, TAG.pack(len(entries)), *entries, struct.pack(f"<{len(tokens)}i", *tokens))


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, case: str, gap_s: float) -> None:
    active, numbers, frames, dice = {}, itertools.count(1000), FrameReader(), random.Random(1)

    async def run_steps() -> None:
        while True:
            await asyncio.sleep(gap_s)
            if active:
                writer.write(step(active, dice))
                await writer.drain()

    steps = asyncio.create_task(run_steps())
    try:
        while data := await reader.read(1 << 18):
            for kind, body in frames.feed(data):
                if kind == ABORT:
                    active.pop(TAG.unpack(body)[0], None)
                    continue
                assert kind == SUBMIT
                tag, count, _ = SUBMIT_HEAD.unpack_from(body)
                client_id = next(numbers)
                if case == "paced":
                    active[tag] = Request(tag, client_id, expected_tokens(body[SUBMIT_HEAD.size :], count))
                elif case == "fails":
                    writer.write(frame(FAILED, TAG.pack(tag), b"no room"))
                elif case in ("empty", "cancels"):
                    finish = LENGTH if case == "empty" else CANCELLED
                    writer.write(frame(TOKENS, TAG.pack(1), ENTRY.pack(tag, client_id, 0, finish, 0)))
                elif case == "garbage":
                    writer.write(b"\xff" * 64)
                elif case == "lies":
                    writer.write(frame(TOKENS, TAG.pack(9), ENTRY.pack(tag, client_id, 0, RUNNING, 0)))
                elif case == "leaves":
                    return
                else:
                    assert case == "stalls"
    except ConnectionError:
        pass
    finally:
        steps.cancel()
        writer.close()


async def main() -> None:
    path, case, gap_s = sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0.005
    server = await asyncio.start_unix_server(lambda r, w: serve(r, w, case, gap_s), path)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
