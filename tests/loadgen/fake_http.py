"""An OpenAI-like server of known behaviour: which one is chosen by the request's model name. Prints its port.

Arguments: the host, or a unix socket's path; then a file with key and certificate, if it shall speak TLS.

`paced` streams max_tokens tokens, the first after 20 ms and then one each 5 ms; the others misbehave in one way each.
"""

import asyncio
import itertools
import json
import os
import ssl
import sys
from typing import Any

FIRST_S, GAP_S = 0.02, float(os.environ.get("GAP_S", "0.005"))
NUMBERS = itertools.count()


def token(chat: bool, number: int, text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish}
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    return {"id": f"cmpl-{number}", "choices": [choice]}


class Reply:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer

    def head(self, *lines: str, status: str = "200 OK", kind: str = "text/event-stream", chunked: bool = True) -> None:
        more = ["Transfer-Encoding: chunked"] if chunked else []
        self.writer.write("\r\n".join([f"HTTP/1.1 {status}", f"Content-Type: {kind}", *more, *lines, "", ""]).encode())

    def chunk(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, document: Any, end: bytes = b"\n\n", space: bytes = b" ") -> None:
        data = document if isinstance(document, bytes) else json.dumps(document, separators=(",", ":")).encode()
        self.chunk(b"data:" + space + data + end)

    def whole(self, status: str, document: Any, kind: str = "application/json") -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.head(f"Content-Length: {len(body)}", status=status, kind=kind, chunked=False)
        self.writer.write(body)


async def stream(
    reply: Reply,
    chat: bool,
    number: int,
    count: int,
    *,
    end: bytes = b"\n\n",
    space: bytes = b" ",
    usage: bool = True,
    done: bool = True,
    role: bool = False,
    close: bool = True,
) -> None:
    if role:
        opener = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        reply.event({"id": f"cmpl-{number}", "choices": [opener]}, end, space)
    await asyncio.sleep(FIRST_S)
    for n in range(count):
        if n:
            await asyncio.sleep(GAP_S)
        last = "length" if n == count - 1 else None
        reply.event(token(chat, number, "" if n == 1 else 'é " \\', last), end, space)
        await reply.writer.drain()
    if usage:
        reply.event({"id": f"cmpl-{number}", "choices": [], "usage": {"completion_tokens": count}}, end, space)
    if done:
        reply.event(b"[DONE]", end, space)
    if close:
        reply.chunk(b"")


async def answer(reply: Reply, case: str, chat: bool, count: int) -> bool:
    number = next(NUMBERS)
    if case == "paced":
        reply.head()
        await stream(reply, chat, number, count, role=chat)
    elif case == "crlf":
        reply.head()
        await stream(reply, chat, number, count, end=b"\r\n: a comment\r\n\r\n", space=b"")
    elif case == "no_usage":
        reply.head()
        await stream(reply, chat, number, count, usage=False, done=False)
    elif case == "until_close":
        reply.head("Connection: close", chunked=False)
        for _ in range(count):
            reply.writer.write(b"data: %s\n\n" % json.dumps(token(chat, number, "x")).encode())
        reply.writer.write(b"data: [DONE]\n\n")
        return False
    elif case == "closes_silently":
        reply.head()
        await stream(reply, chat, number, count)
        return False
    elif case == "status_429":
        reply.whole("429 Too Many Requests", {"error": {"message": "slow down", "type": "rate"}})
    elif case == "retry_later":
        reply.head("Content-Length: 4", "Retry-After: 7", status="429 Too Many Requests", chunked=False)
        reply.writer.write(b"slow")
    elif case == "status_503":
        reply.whole("503 Service Unavailable", b"overloaded", "text/plain")
    elif case == "status_204":
        reply.head(status="204 No Content", chunked=False)
    elif case == "error_body":
        reply.whole("200 OK", {"error": {"message": "no such model"}})
    elif case == "not_sse":
        reply.whole("200 OK", b"<html>hello</html>", "text/html")
    elif case == "bad_json":
        reply.head()
        reply.event(b'{"choices": [')
        reply.chunk(b"")
    elif case == "not_http":
        reply.writer.write(b"220 smtp ready\r\n")
        return False
    elif case == "error_in_stream":
        reply.head()
        reply.event(token(chat, number, "x"))
        await asyncio.sleep(GAP_S)
        reply.event({"error": {"message": "out of memory, Authorization: Bearer sk-secret-secret", "code": 500}})
        reply.event(b"[DONE]")
        reply.chunk(b"")
    elif case == "no_terminal":
        reply.head()
        reply.event(token(chat, number, "x"))
        reply.chunk(b"")
    elif case == "closed_early":
        reply.head()
        reply.event(token(chat, number, "x"))
        return False
    elif case == "empty":
        reply.head()
        reply.event(b"[DONE]")
        reply.chunk(b"")
    elif case == "endless":
        reply.head()
        while True:
            reply.event(token(chat, number, "x"))
            await reply.writer.drain()
            await asyncio.sleep(0.001)
    elif case == "endless_line":
        reply.head()
        reply.chunk(b"data: ")
        while True:
            reply.chunk(b"x" * 65536)
            await reply.writer.drain()
    elif case == "endless_refusal":
        reply.head(status="500 Oops", chunked=True)
        while True:
            reply.chunk(b"x" * 65536)
            await reply.writer.drain()
            await asyncio.sleep(0.001)
    elif case == "every_tenth":
        if number % 10:
            reply.whole("503 Service Unavailable", b"overloaded", "text/plain")
        else:
            reply.head()
            await stream(reply, chat, number, count)
    elif case == "stall":
        reply.head()
        reply.event(token(chat, number, "x"))
        await asyncio.sleep(60)
    else:
        raise AssertionError(case)
    return True


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            chat = b"/v1/chat/completions" in head
            assert body["stream"]
            assert body["ignore_eos"]
            if not chat:
                assert all(256 <= number < 32000 for number in body["prompt"])
            if not await answer(Reply(writer), body["model"], chat, body["max_tokens"]):
                break
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    place = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"
    tls = None
    if len(sys.argv) > 2:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(sys.argv[2])
    if place.startswith("/"):
        server = await asyncio.start_unix_server(serve, place, backlog=4096)
        print(place, flush=True)
    else:
        server = await asyncio.start_server(serve, place, 0, backlog=4096, ssl=tls)
        print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
