"""Streaming HTTP/1.1 over gevent whose arrival path runs in the event loop: a user is woken once, at the end.

A read takes what the kernel has and is stamped once, with the kernel's own time of arrival where it tells one. No read
waits for a full buffer, which is what makes line readers report several tokens "at once" and the first one late. What
goes on to `Response.on_body` comes through httptools, but for the common case by far: a read that is exactly one chunk
of a chunked body, whose frame is checked here. Nothing here needs the interpreter to be patched. Times are
CLOCK_MONOTONIC ns.
"""

import errno
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

import httptools
from gevent import socket
from gevent.event import Event

from contracts.clock import NS_PER_S
from loadgen import kinds
from loadgen.outcome import Trouble
from loadgen.transport.kernelclock import ANCILLARY_BYTES, TIMESPEC, stamp_arrivals
from loadgen.transport.reactor import Reactor
from loadgen.transport.target import HttpTarget
from loadgen.transport.tls import TlsLayer

_READ_BYTES = 1 << 15
_MAX_HEAD_BYTES = 1 << 18
_ERROR_BODY_BYTES = 2048
_FRAMED_BYTES = 4096
_LF, _CR, _QUOTE, _BACKSLASH = b'\n\r"\\'  # as numbers: looking for a number in bytes is the fastest there is
_UNPACK_STAMP = TIMESPEC.unpack


class Response:
    """One response as it arrives. Read it after `HttpConnection.wait` has returned.

    `end_ns` is the end of the response, or when it was given up; `error_kind` is of the transport alone. `stamped`:
    the kernel was asked for arrival times; `unstamped_reads` had none that could be, and were stamped when seen.
    `lag_ns` is the longest time from a stamped arrival to its being seen. `retry_after` is the header of that name.

    `prefix` and `suffix` are what the reader of the body has learned an ordinary chunk to be, its CR LF included,
    around a text without quotes, backslashes and line ends. Such a chunk is noted in `plain_ns` and goes no further.
    The reader keeps `prefix` empty while such a chunk might mean anything else.
    """

    __slots__ = (
        "chunked", "done", "end_ns", "error", "error_body", "error_kind", "first_byte_ns", "lag_ns",
        "on_body", "plain_ns", "prefix", "received_bytes", "retry_after", "sent_ns", "sized", "stamped", "status",
        "suffix", "unstamped_reads",
    )  # fmt: skip

    def __init__(self, on_body: Callable[[int, bytes], None]) -> None:
        self.on_body = on_body
        self.prefix = self.suffix = b""
        self.plain_ns: list[int] = []
        self.done = Event()
        self.sent_ns = 0
        self.first_byte_ns: int | None = None
        self.end_ns = 0
        self.status: int | None = None
        self.sized = False
        self.chunked = False
        self.received_bytes = 0
        self.stamped = False
        self.unstamped_reads = 0
        self.lag_ns = 0
        self.retry_after: bytes | None = None
        self.error_body = bytearray()
        self.error_kind: str | None = None
        self.error: str | None = None

    @property
    def arrival_clock(self) -> str | None:
        """Say whose clock the arrivals are by: kernel, user (when they were seen) or mixed; None before any."""
        if self.first_byte_ns is None:
            return None
        if not self.stamped:
            return "user"
        return "mixed" if self.unstamped_reads else "kernel"


class HttpConnection:
    """One user's connection, kept from request to request unless `keep_alive` is false. One request at a time."""

    def __init__(
        self,
        target: HttpTarget,
        reactor: Reactor,
        connect_timeout_s: float,
        read_timeout_s: float,
        *,
        keep_alive: bool = True,
    ) -> None:
        self._target = target
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._reactor = reactor
        self._clock = reactor.clock
        self._keep_alive = keep_alive
        self._socket: Any = None
        self._recvmsg: Any = None
        self._stamped = False
        self._tls: TlsLayer | None = None
        self._parser: Any = None
        self._response: Response | None = None
        self._request = b""
        self._reused = False
        self._keep = False
        self._chunk_over = False  # the parser stands behind a chunk that is complete
        self._between = False  # and so do the bytes: whatever comes next begins with a chunk's size
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
            idle_s = (monotonic_ns() - max(self._now, response.sent_ns)) / NS_PER_S
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
        held, self._socket, self._recvmsg = self._socket, None, None
        if held is not None:
            self._reactor.remove(held.fileno())
            held.close()
        self._parser = self._tls = None
        self._between = False

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
                self._stamped = family != socket.AF_UNIX and stamp_arrivals(held)
                if family != socket.AF_UNIX:
                    held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                tls = self._shake_hands(held)
            except OSError as error:
                held.close()
                trouble = Trouble(connect_kind(error), f"{self._target.host}: {error}")
                continue
            except BaseException:  # the user was killed meanwhile
                held.close()
                raise
            held.settimeout(self._read_timeout_s)
            self._tls = tls
            self._socket = held
            self._recvmsg = held._sock.recvmsg  # noqa: SLF001 - gevent's own may wait, which the event loop must not
            self._parser = httptools.HttpResponseParser(self)
            self._chunk_over = self._between = False
            self._reactor.add(held.fileno(), self._on_readable, patient=self._stamped)
            return
        raise trouble

    def _shake_hands(self, held: Any) -> TlsLayer | None:
        if self._target.tls is None:
            return None
        layer = TlsLayer(self._target.tls, self._target.server_name)
        layer.shake_hands(held)
        return layer

    def _transmit(self, response: Response) -> None:
        self._response = response
        self._keep = self._chunk_over = self._between = False
        response.stamped = self._stamped
        response.sent_ns = self._now = monotonic_ns()
        view = memoryview(self._request)
        try:
            if self._tls is not None:
                view = memoryview(self._tls.encrypt(self._request))
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
        recvmsg = self._recvmsg
        try:
            data, ancillary, _, _ = recvmsg(_READ_BYTES, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._now = monotonic_ns()
            self._end(kinds.CLOSED_EARLY, str(error))
            return
        seen_ns = monotonic_ns()
        response = self._response
        if response is None:
            self._on_idle(data)
            return
        now = seen_ns
        if ancillary:  # as KernelClock.arrival_ns has it, but a call costs too much here
            seconds, ns = _UNPACK_STAMP(ancillary[0][2])
            clock = self._clock
            now = seconds * NS_PER_S + ns + clock.offset_ns
            lag_ns = seen_ns - now
            if lag_ns < 0 or now < self._now:  # the wall clock was set meanwhile
                before_ns = self._now - now
                if self._tls is not None and response.first_byte_ns is None and 0 < before_ns < NS_PER_S:
                    now = self._now  # or this is TLS's own: a session ticket that came before the request went
                else:
                    now = seen_ns
                    response.unstamped_reads += 1
            else:
                if lag_ns > response.lag_ns:  # noqa: PLR1730 - a call again
                    response.lag_ns = lag_ns
                if lag_ns > clock.worst_lag_ns:  # noqa: PLR1730
                    clock.worst_lag_ns = lag_ns
        elif data:
            response.unstamped_reads += 1
        self._now = now
        size = len(data)
        response.received_bytes += size
        if self._between and size < _FRAMED_BYTES:
            head = _FRAMES[size]
            if data.startswith(head):
                start = len(head)
                prefix, suffix = response.prefix, response.suffix
                if prefix and data.startswith(prefix, start) and data.endswith(suffix):
                    text = data[start + len(prefix) : -len(suffix)]
                    if text and _QUOTE not in text and _BACKSLASH not in text and _LF not in text and _CR not in text:
                        response.plain_ns.append(now)
                        return
                if data.endswith(b"\r\n"):
                    response.on_body(now, data[start:-2])
                    return
        self._take(response, data)

    def _take(self, response: Response, data: bytes) -> None:
        """Take what is not simply one more chunk."""
        over = not data
        if self._tls is not None and data:
            try:
                data = self._tls.decrypt(data)
                reply = self._tls.take_reply()
                if reply:
                    self._socket._sock.send(reply)  # noqa: SLF001 - see _connect
            except OSError as error:
                self._end(kinds.BAD_STREAM, f"TLS: {error}")
                return
            over = self._tls.ended
        if data:
            self._parse(response, data)
        if over and self._response is response:
            self._at_end(response)

    def _parse(self, response: Response, data: bytes) -> None:
        if response.first_byte_ns is None:
            response.first_byte_ns = self._now
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(kinds.BAD_STREAM, f"not HTTP/1.1: {error}")
            return
        self._between = (
            self._chunk_over
            and self._tls is None
            and self._response is response
            and response.status == 200
            and data.endswith(b"\r\n")
        )
        if response.status is None and response.received_bytes > _MAX_HEAD_BYTES:
            self._end(kinds.BAD_STREAM, f"the response's head is larger than {_MAX_HEAD_BYTES} bytes")

    def _on_idle(self, data: bytes) -> None:
        """Close, for between requests only an end may come; but TLS sends its session tickets when it likes."""
        if self._tls is not None and data:
            try:
                if not self._tls.decrypt(data) and not self._tls.ended:
                    return
            except OSError:
                pass
        self.close()

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
        if kind is not None or not self._keep or not self._keep_alive:
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
        elif key == b"retry-after":
            response.retry_after = value

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

    def on_chunk_header(self) -> None:
        self._chunk_over = False

    def on_chunk_complete(self) -> None:
        self._chunk_over = True

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


def _frame(size: int) -> bytes:
    """Give what a chunk begins with that has so many bytes with all its frame; what nothing begins with if none has."""
    for digits in range(1, 8):
        head = b"%x\r\n" % max(0, size - digits - 4)
        if len(head) == digits + 2 and size > digits + 4:
            return head
    return b"\0"


_FRAMES = [_frame(size) for size in range(_FRAMED_BYTES)]
