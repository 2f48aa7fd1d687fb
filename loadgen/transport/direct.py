"""Client of the direct drive: one unix socket carries all requests of a process; one greenlet takes its frames apart.

A frame's arrival is stamped once; each of its entries costs about a microsecond. A request's own greenlet is woken
once, when the request is over. Times are CLOCK_MONOTONIC ns. Works without Locust and without patching.
"""

import contextlib
from itertools import count
from time import monotonic_ns
from typing import Any

import gevent
from gevent import socket
from gevent.event import Event
from gevent.lock import RLock

from contracts.clock import NS_PER_S
from contracts.direct import (
    ABORT,
    CANCELLED,
    ENTRY,
    FAILED,
    FINISH_NAMES,
    SUBMIT,
    SUBMIT_HEAD,
    TAG,
    TOKENS,
    FrameError,
    FrameReader,
    frame,
)
from loadgen import kinds
from loadgen.outcome import FirstToken, Outcome, Trouble
from loadgen.transport.http import connect_kind

_READ_BYTES = 1 << 18
_TAGS = 1 << 32


class Flight:
    """One request on its way. Read it after `DirectLink.wait` has returned.

    `tokens` holds the token ids as little-endian int32 in the order of arrival, if the link was told to keep them.
    """

    __slots__ = (
        "chunk_ns", "chunk_tokens", "client_id", "cut_after", "done", "end_ns", "error", "error_kind", "finish",
        "on_first", "sent_ns", "tag", "tokens",
    )  # fmt: skip

    def __init__(self, tag: int, on_first: FirstToken, cut_after: int | None, *, keep_tokens: bool) -> None:
        self.tag = tag
        self.cut_after = cut_after
        self.on_first = on_first
        self.done = Event()
        self.sent_ns = 0
        self.end_ns = 0
        self.client_id: int | None = None
        self.chunk_ns: list[int] = []
        self.chunk_tokens: list[int] = []
        self.finish = 0
        self.error_kind: str | None = None
        self.error: str | None = None
        self.tokens: bytearray | None = bytearray() if keep_tokens else None

    def outcome(self, max_tokens: int) -> Outcome:
        """Judge the request, which must be over."""
        kind, error = self.error_kind, self.error
        count_tokens = sum(self.chunk_tokens)
        if kind is None and self.finish == CANCELLED:
            kind, error = kinds.CANCELLED, "the server cancelled the request"
        elif kind is None and count_tokens == 0 and max_tokens > 0:
            kind, error = kinds.EMPTY, "ended well, but without a token"
        return Outcome(
            sent_ns=self.sent_ns,
            end_ns=self.end_ns,
            first_byte_ns=self.chunk_ns[0] if self.chunk_ns else None,
            chunk_ns=self.chunk_ns,
            chunk_tokens=self.chunk_tokens,
            server_id=None if self.client_id is None else str(self.client_id),
            finish_reason=FINISH_NAMES.get(self.finish),
            output_tokens=count_tokens,
            output_tokens_source="wire",
            error_kind=kind,
            error=error,
            received_bytes=4 * count_tokens,
            arrival_clock="user" if self.chunk_ns else None,
        )


class DirectLink:
    """The connection of one load process. Connects at the first request, and anew after a loss."""

    def __init__(
        self, path: str, connect_timeout_s: float, read_timeout_s: float, *, keep_tokens: bool = False
    ) -> None:
        self._path = path
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._keep_tokens = keep_tokens
        self._flights: dict[int, Flight] = {}
        self._tags = count()
        self._sending = RLock()
        self._socket: Any = None
        self._reader: Any = None

    def submit(
        self,
        prompt: bytes,
        max_tokens: int,
        *,
        ignore_eos: bool = True,
        on_first: FirstToken,
        cut_after: int | None = None,
    ) -> Flight:
        """Send a request (its prompt as int32 token ids); what comes back arrives by itself.

        With `cut_after` it is cancelled as soon as so many chunks have come.

        Raises Trouble when the connection cannot be made; whatever happens later is told by `wait`.
        """
        flight = Flight(next(self._tags) % _TAGS, on_first, cut_after, keep_tokens=self._keep_tokens)
        data = frame(SUBMIT, SUBMIT_HEAD.pack(flight.tag, max_tokens, ignore_eos), prompt)
        with self._sending:
            if self._socket is None:
                self._connect()
            held = self._socket
            self._flights[flight.tag] = flight
            flight.sent_ns = monotonic_ns()
            try:
                with gevent.Timeout(self._read_timeout_s, TimeoutError("the server stopped reading")):
                    held.sendall(data)
            except OSError as error:
                kind = kinds.READ_TIMEOUT if isinstance(error, TimeoutError) else kinds.CLOSED_EARLY
                self._lose(held, kind, f"{self._path}: while sending: {error}")
            except BaseException:  # this greenlet was killed, perhaps in the middle of a frame
                self._lose(held, kinds.CANCELLED, f"{self._path}: cut while sending")
                raise
        return flight

    def wait(self, flight: Flight) -> None:
        """Sleep until the request is over, for better or worse."""
        left_s = self._read_timeout_s
        while not flight.done.wait(left_s):
            last_ns = flight.chunk_ns[-1] if flight.chunk_ns else flight.sent_ns
            idle_s = (monotonic_ns() - last_ns) / NS_PER_S
            left_s = self._read_timeout_s - idle_s
            if left_s <= 0:
                self.cancel(flight, kinds.READ_TIMEOUT, f"no token for {idle_s:.1f} s")

    def cancel(self, flight: Flight, kind: str, message: str) -> None:
        """End a request as a failure of this kind and tell the server to abort it."""
        if self._flights.pop(flight.tag, None) is None:
            return
        _end(flight, monotonic_ns(), kind, message)
        if self._socket is not None:
            gevent.spawn(self._abort, self._socket, flight.tag)

    def close(self) -> None:
        """Close the connection; requests in flight fail as cancelled."""
        if self._socket is not None:
            self._lose(self._socket, kinds.CANCELLED, "the link was closed")

    def _connect(self) -> None:
        held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            held.settimeout(self._connect_timeout_s)
            held.connect(self._path)
            held.settimeout(None)
        except OSError as error:
            held.close()
            raise Trouble(connect_kind(error), f"{self._path}: {error}") from error
        except BaseException:  # this greenlet was killed meanwhile
            held.close()
            raise
        self._socket = held
        self._reader = gevent.spawn(self._read, held)

    def _abort(self, held: Any, tag: int) -> None:
        with self._sending, contextlib.suppress(OSError):  # the reader sees a loss too, and tells
            held.sendall(frame(ABORT, TAG.pack(tag)))

    def _read(self, held: Any) -> None:
        frames = FrameReader()
        try:
            while data := held.recv(_READ_BYTES):
                now_ns = monotonic_ns()
                for kind, body in frames.feed(data):
                    self._take(now_ns, kind, body)
        except FrameError as error:
            self._lose(held, kinds.BAD_STREAM, f"{self._path}: {error}")
        except OSError as error:
            self._lose(held, kinds.CLOSED_EARLY, f"{self._path}: {error}")
        else:
            self._lose(held, kinds.CLOSED_EARLY, f"{self._path}: the server closed the connection")

    def _take(self, now_ns: int, kind: int, body: bytes) -> None:
        if kind == TOKENS:
            self._take_tokens(now_ns, body)
        elif kind == FAILED:
            self._take_failure(now_ns, body)
        else:
            raise FrameError(f"frame of unknown kind {kind}")

    def _take_tokens(self, now_ns: int, body: bytes) -> None:
        if len(body) < TAG.size:
            raise FrameError("a TOKENS frame without its count")
        (entries,) = TAG.unpack_from(body)
        at = TAG.size + entries * ENTRY.size
        if at > len(body):
            raise FrameError(f"a TOKENS frame of {len(body)} bytes announces {entries} entries")
        flights = self._flights
        for tag, client_id, tokens, finish, _ in ENTRY.iter_unpack(memoryview(body)[TAG.size : at]):
            start, at = at, at + 4 * tokens
            flight = flights.get(tag)
            if flight is None:  # aborted meanwhile
                continue
            if tokens:
                times = flight.chunk_ns
                if not times:
                    flight.client_id = client_id
                    flight.on_first(now_ns - flight.sent_ns)
                times.append(now_ns)
                flight.chunk_tokens.append(tokens)
                if flight.tokens is not None:
                    flight.tokens += body[start:at]
            if finish:
                flight.client_id = client_id
                flight.finish = finish
                del flights[tag]
                _end(flight, now_ns, None, None)
            elif len(flight.chunk_ns) == flight.cut_after:
                self.cancel(flight, kinds.ABORTED, f"cut after {flight.cut_after} chunks, as the load was told to")
        if at != len(body):
            raise FrameError(f"a TOKENS frame of {len(body)} bytes whose entries need {at}")

    def _take_failure(self, now_ns: int, body: bytes) -> None:
        if len(body) < TAG.size:
            raise FrameError("a FAILED frame without its tag")
        (tag,) = TAG.unpack_from(body)
        flight = self._flights.pop(tag, None)
        if flight is not None:
            _end(flight, now_ns, kinds.SERVER_ERROR, body[TAG.size :].decode("utf-8", "replace"))

    def _lose(self, held: Any, kind: str, message: str) -> None:
        if self._socket is not held:
            return
        self._socket = None
        held.close()
        flights, self._flights = self._flights, {}
        now_ns = monotonic_ns()
        for flight in flights.values():
            _end(flight, now_ns, kind, message)


def _end(flight: Flight, now_ns: int, kind: str | None, message: str | None) -> None:
    flight.end_ns = now_ns
    flight.error_kind = kind
    flight.error = message
    flight.done.set()
