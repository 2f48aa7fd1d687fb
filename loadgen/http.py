"""Streaming HTTP/1.1 over gevent whose arrival path runs in the event loop: a user is woken once, at the end.

A read takes what the kernel has, is stamped once, and goes through httptools to `Response.on_body`. No read waits for
a full buffer, which is what makes line readers report several tokens "at once" and the first one late. Nothing here
needs the interpreter to be patched. Times are CLOCK_MONOTONIC ns.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any
from urllib.parse import urlsplit

import httptools
from gevent import get_hub, socket
from gevent.event import Event

from contracts.clock import NS_PER_S
from contracts.errors import UsageError
from loadgen import kinds
from loadgen.outcome import Trouble

_READ_BYTES = 1 << 16
_MAX_HEAD_BYTES = 1 << 18
_ERROR_BODY_BYTES = 2048
_READ = 1  # libev's EV_READ, as gevent's loop.io takes it


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Where requests go, resolved once: 2,048 users asking a resolver would measure the resolver."""

    host: str
    path: str
    addresses: tuple[tuple[int, Any], ...]

    @classmethod
    def resolve(cls, base_url: str, path: str) -> "HttpTarget":
        """Resolve a base URL (a path in it is kept, and its final /v1 not doubled). Raises UsageError."""
        parts = urlsplit(base_url)
        try:
            port = parts.port or 80
        except ValueError as error:
            raise UsageError(f"cannot use the URL {base_url!r}: {error}") from error
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"cannot use the URL {base_url!r}: it must begin with http:// and name a host")
        try:
            found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UsageError(f"cannot resolve {parts.hostname!r} of {base_url!r}: {error}") from error
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(f"{host}:{port}", prefix + path, tuple((family, address) for family, _, _, _, address in found))

    def head(self, authorization: str | None = None) -> bytes:
        """Render the request's head up to the value of Content-Length."""
        secret = f"Authorization: {authorization}\r\n" if authorization else ""
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.host}\r\nAccept: text/event-stream\r\n"
            f"Content-Type: application/json\r\n{secret}Content-Length: "
        ).encode()


class Response:
    """One response as it arrives. Read it after `HttpConnection.wait` has returned.

    `end_ns` is the end of the response, or when it was given up; `error_kind` is of the transport alone.
    """

    __slots__ = (
        "chunked", "done", "end_ns", "error", "error_body", "error_kind", "first_byte_ns", "last_ns",
        "on_body", "received_bytes", "sent_ns", "sized", "status",
    )  # fmt: skip

    def __init__(self, on_body: Callable[[int, bytes], None]) -> None:
        self.on_body = on_body
        self.done = Event()
        self.sent_ns = 0
        self.first_byte_ns: int | None = None
        self.last_ns = 0
        self.end_ns = 0
        self.status: int | None = None
        self.sized = False
        self.chunked = False
        self.received_bytes = 0
        self.error_body = bytearray()
        self.error_kind: str | None = None
        self.error: str | None = None


class HttpConnection:
    """One user's connection, kept alive from request to request. One request at a time."""

    def __init__(self, target: HttpTarget, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._target = target
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._socket: Any = None
        self._fd = -1
        self._watcher: Any = None
        self._parser: Any = None
        self._response: Response | None = None
        self._request = b""
        self._reused = False
        self._keep = False
        self._now = 0

    def send(self, request: bytes, response: Response) -> None:
        """Connect if need be and hand the request to the kernel; the response then arrives by itself.

        Raises Trouble when no connection can be made; whatever happens later is told by `wait`.
        """
        response.sent_ns = monotonic_ns()
        self._reused = self._socket is not None
        if self._socket is None:
            self._connect()
        self._request = request
        self._transmit(response)

    def wait(self, response: Response) -> None:
        """Sleep until the response is over, for better or worse."""
        left_s = self._read_timeout_s
        while not response.done.wait(left_s):
            idle_s = (monotonic_ns() - max(response.last_ns, response.sent_ns)) / NS_PER_S
            left_s = self._read_timeout_s - idle_s
            if left_s <= 0:
                self._end(kinds.READ_TIMEOUT, f"no byte for {idle_s:.1f} s")
        if response.error_kind is not None and self._may_retry(response):
            self._connect()
            self._reused = False
            response.done.clear()
            response.error_kind = response.error = None
            self._transmit(response)
            self.wait(response)

    def cancel(self, kind: str, message: str) -> None:
        """End the request in flight, if there is one, as a failure of this kind."""
        self._end(kind, message)

    def close(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            watcher.close()
        held, self._socket, self._fd = self._socket, None, -1
        if held is not None:
            held.close()
        self._parser = None

    def _may_retry(self, response: Response) -> bool:
        """Tell a kept connection that the server had closed before it saw the request: no failure of the request."""
        return self._reused and response.error_kind == kinds.CLOSED_EARLY and response.first_byte_ns is None

    def _connect(self) -> None:
        trouble = Trouble(kinds.CONNECT_FAILED, "the host has no address")
        for family, address in self._target.addresses:
            held = socket.socket(family, socket.SOCK_STREAM)
            try:
                held.settimeout(self._connect_timeout_s)
                held.connect(address)
                held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                held.close()
                trouble = Trouble(connect_kind(error), f"{self._target.host}: {error}")
                continue
            except BaseException:  # the user was killed meanwhile
                held.close()
                raise
            held.settimeout(self._read_timeout_s)
            self._socket = held
            self._fd = held.fileno()
            self._parser = httptools.HttpResponseParser(self)
            self._watcher = get_hub().loop.io(self._fd, _READ)
            self._watcher.start(self._on_readable)
            return
        raise trouble

    def _transmit(self, response: Response) -> None:
        self._response = response
        self._keep = False
        view = memoryview(self._request)
        response.sent_ns = response.last_ns = monotonic_ns()
        try:
            while view and self._response is response:
                view = view[self._socket.send(view) :]
        except TimeoutError:
            self._end(kinds.READ_TIMEOUT, "the server stopped reading the request")
        except OSError as error:
            self._end(kinds.CLOSED_EARLY, f"while sending: {error}")
        if view:  # answered before it was asked in full: the rest must not be taken for the next request
            self.close()

    def _on_readable(self) -> None:
        """Run in the event loop: take what is there, stamp it once, parse it."""
        try:
            data = os.read(self._fd, _READ_BYTES)  # gevent's own recv may wait, which the event loop must not
        except BlockingIOError:
            return
        except OSError as error:
            self._now = monotonic_ns()
            self._end(kinds.CLOSED_EARLY, str(error))
            return
        self._now = now = monotonic_ns()
        response = self._response
        if response is None:  # between requests only an end is to be expected
            self.close()
            return
        if not data:
            self._at_end(response)
            return
        if response.first_byte_ns is None:
            response.first_byte_ns = now
        response.last_ns = now
        response.received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(kinds.BAD_STREAM, f"not HTTP/1.1: {error}")
            return
        if response.status is None and response.received_bytes > _MAX_HEAD_BYTES:
            self._end(kinds.BAD_STREAM, f"the response's head is larger than {_MAX_HEAD_BYTES} bytes")

    def _at_end(self, response: Response) -> None:
        until_close = response.status is not None and not response.sized and not response.chunked
        if until_close:
            self._end(None, None)
        else:
            self._end(kinds.CLOSED_EARLY, f"closed after {response.received_bytes} bytes of the response")

    def _end(self, kind: str | None, message: str | None) -> None:
        response, self._response = self._response, None
        if response is None:
            return
        if kind is not None or not self._keep:
            self.close()
        response.end_ns = monotonic_ns() if kind is not None else self._now
        response.error_kind = kind
        response.error = message
        response.done.set()

    # What httptools calls while it parses.

    def on_header(self, name: bytes, value: bytes) -> None:
        response = self._response
        if response is None:
            return
        key = name.lower()
        if key == b"content-length":
            response.sized = True
        elif key == b"transfer-encoding":
            response.chunked = b"chunked" in value.lower()

    def on_headers_complete(self) -> None:
        response = self._response
        if response is not None and self._parser is not None:
            status = self._parser.get_status_code()
            if status >= 200:
                response.status = status

    def on_body(self, data: bytes) -> None:
        response = self._response
        if response is None:
            return
        if response.status == 200:
            response.on_body(self._now, data)
        elif len(response.error_body) < _ERROR_BODY_BYTES:
            response.error_body += data

    def on_message_complete(self) -> None:
        response = self._response
        if response is not None and response.status is not None:
            self._keep = self._parser.should_keep_alive()
            self._end(None, None)


def connect_kind(error: OSError) -> str:
    """Give the kind of failure for what a connect raised."""
    if isinstance(error, TimeoutError):
        return kinds.CONNECT_TIMEOUT
    if isinstance(error, ConnectionRefusedError) or error.errno == errno.ENOENT:
        return kinds.CONNECT_REFUSED
    return kinds.CONNECT_FAILED
