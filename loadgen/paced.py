"""A paced server of known truth: `python -m loadgen.paced TRUTH [--first-ms 200] [--gap-ms 50]`.

It answers streaming requests to /v1/completions with `max_tokens` tokens, the first a fixed time after the request
reached the kernel and the others a fixed gap apart, and notes when it handed each of them to the kernel: the truth is
what it did, not what it was asked to do. It prints its port, serves until its stdin closes, then writes TRUTH.

One thread on bare sockets: two queues hold what is due, each in order because every entry lies a constant ahead.
"""

import argparse
import contextlib
import os
import resource
import select
import signal
import socket
import sys
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns

import numpy as np

from contracts.clock import NS_PER_MS, NS_PER_S
from loadgen.transport.kernelclock import ANCILLARY_BYTES, KernelClock, stamp_arrivals

_READ_BYTES = 1 << 16
_REFRESH_NS = 100 * NS_PER_MS
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"cmpl-%d","object":"text_completion","created":1700000000,"model":"paced",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":%s,"stop_reason":null}]}\n\n'
)
_USAGE = b'data: {"id":"cmpl-%d","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d}}\n\n'


@dataclass(frozen=True, slots=True)
class Truth:
    """One request as the server served it: when it reached the kernel, and when each token was handed over (ns)."""

    arrival_ns: int
    sends_ns: "np.ndarray[tuple[int], np.dtype[np.int64]]"


def read_truth(path: Path) -> dict[str, Truth]:
    """Read what a paced server left, by the id that its events carried. Requests that it did not finish are absent."""
    numbers = np.fromfile(path, dtype=np.int64)
    found: dict[str, Truth] = {}
    at = 0
    while at < len(numbers):
        number, arrival_ns, count = (int(value) for value in numbers[at : at + 3])
        found[f"cmpl-{number}"] = Truth(arrival_ns, numbers[at + 3 : at + 3 + count])
        at += 3 + count
    return found


class _Client:
    """A connection and the request that it is on."""

    __slots__ = ("arrival_ns", "buffer", "count", "due_ns", "event", "need", "number", "sends", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""
        self.need = 0
        self.number = -1
        self.count = 0
        self.due_ns = 0
        self.arrival_ns = 0
        self.event = b""
        self.sends = array("q")


class PacedServer:
    """Everything that the process serves; `run` returns when stdin closes."""

    def __init__(self, truth: Path, first_ns: int, gap_ns: int, host: str = "127.0.0.1") -> None:
        self._truth = truth
        self._first_ns = first_ns
        self._gap_ns = gap_ns
        self._clock = KernelClock()
        self._listener = socket.create_server((host, 0), backlog=4096)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(0, select.EPOLLIN | select.EPOLLHUP)
        self._clients: dict[int, _Client] = {}
        self._firsts: deque[_Client] = deque()
        self._gaps: deque[_Client] = deque()
        self._numbers = 0
        self._over = array("q")
        self._stdin_open = True

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Serve; the kernel's timeouts are in us here, where epoll's own are in ms."""
        refresh_ns = 0
        while self._stdin_open:
            now_ns = monotonic_ns()
            if now_ns >= refresh_ns:
                self._clock.refresh()
                refresh_ns = now_ns + _REFRESH_NS
            left_ns = min(self._next_due_ns(), refresh_ns) - now_ns
            if left_ns > 0:
                select.select([self._epoll], [], [], left_ns / NS_PER_S)
            self._send_due()
            for fd, _ in self._epoll.poll(0):
                client = self._clients.get(fd)
                if client is not None:
                    self._read(client)
                elif fd == 0:
                    self._stdin_open = bool(os.read(0, 4096))
                else:
                    self._accept()
        with open(self._truth, "wb") as file:
            self._over.tofile(file)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stamp_arrivals(sock)
                self._clients[sock.fileno()] = _Client(sock)
                self._epoll.register(sock, select.EPOLLIN)

    def _read(self, client: _Client) -> None:
        try:
            data, ancillary, _, _ = client.sock.recvmsg(_READ_BYTES, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        client.buffer += data
        if not client.need:
            head, end, _ = client.buffer.partition(b"\r\n\r\n")
            if not end:
                return
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            client.need = len(head) + 4 + length
        if len(client.buffer) >= client.need:
            self._begin(client, self._clock.arrival_ns(ancillary) or monotonic_ns())

    def _begin(self, client: _Client, arrival_ns: int) -> None:
        count = client.buffer.partition(b'"max_tokens":')[2].split(b",", 1)[0]
        client.buffer = b""
        client.need = 0
        client.count = max(1, int(count))
        client.number = self._numbers
        self._numbers += 1
        client.arrival_ns = arrival_ns
        client.due_ns = arrival_ns + self._first_ns
        client.event = _chunk(_EVENT % (client.number, b"null"))
        client.sends = array("q")
        self._firsts.append(client)

    def _next_due_ns(self) -> int:
        due_ns = 1 << 62
        if self._firsts:
            due_ns = self._firsts[0].due_ns
        if self._gaps and self._gaps[0].due_ns < due_ns:
            due_ns = self._gaps[0].due_ns
        return due_ns

    def _send_due(self) -> None:
        """Send all that is due, oldest first, but look at the requests again after some hundred."""
        firsts, gaps, gap_ns = self._firsts, self._gaps, self._gap_ns
        for _ in range(500):
            queue = gaps
            if not gaps or (firsts and firsts[0].due_ns < gaps[0].due_ns):
                queue = firsts
            if not queue:
                return
            client = queue[0]
            now_ns = monotonic_ns()
            if client.due_ns > now_ns:
                return
            queue.popleft()
            sends = client.sends
            last = len(sends) + 1 == client.count
            data = _ending(client) if last else client.event
            try:
                client.sock.send(data if sends else _HEAD + data)
            except OSError:  # gone, or it does not read: the truth of such a request is of no use
                self._drop(client)
                continue
            sends.append(now_ns)
            if last:
                self._over.extend((client.number, client.arrival_ns, len(sends)))
                self._over.extend(sends)
            else:
                client.due_ns += gap_ns
                gaps.append(client)

    def _drop(self, client: _Client) -> None:
        """Close a connection; what of it is still queued fails to send and ends there."""
        fd = client.sock.fileno()
        if fd >= 0:
            self._epoll.unregister(fd)
            del self._clients[fd]
            client.sock.close()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _ending(client: _Client) -> bytes:
    last = _chunk(_EVENT % (client.number, b'"length"')) + _chunk(_USAGE % (client.number, client.count))
    return last + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until stdin closes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", type=Path, help="where the server's own times go")
    parser.add_argument("--first-ms", type=float, default=200.0, help="request to first token (%(default)g)")
    parser.add_argument("--gap-ms", type=float, default=50.0, help="token to token (%(default)g)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us closes our stdin
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = PacedServer(
        options.truth, int(options.first_ms * NS_PER_MS), int(options.gap_ms * NS_PER_MS), options.host
    )
    print(server.port, flush=True)
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
