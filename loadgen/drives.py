"""The two ways to put one request of the workload to a server and wait for its end."""

from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol

from loadgen.direct import DirectLink
from loadgen.http import HttpConnection, HttpTarget
from loadgen.openai import BodyTemplate, StreamReading
from loadgen.outcome import Cancel, FirstToken, Outcome, Trouble
from loadgen.workload import Draw, Workload

Sent = Callable[[Cancel], None]
"""Called once the request is with the kernel, with the means to cancel it."""


class Caller(Protocol):
    """One user's end of a drive."""

    def ask(self, draw: Draw, sent: Sent, on_first: FirstToken) -> Outcome:
        """Send the request and sleep until it is over. A failure is an outcome, not an exception."""

    def close(self) -> None: ...


class HttpCaller:
    """Streams from an OpenAI-compatible server over a connection of its own."""

    def __init__(self, workload: Workload, template: BodyTemplate, connection: HttpConnection, head: bytes) -> None:
        self._workload = workload
        self._template = template
        self._connection = connection
        self._head = head

    def ask(self, draw: Draw, sent: Sent, on_first: FirstToken) -> Outcome:
        body = self._template.render(self._workload, draw)
        reading = StreamReading(self._template.endpoint, on_first)
        try:
            self._connection.send(b"%s%d\r\n\r\n%s" % (self._head, len(body), body), reading.response)
            sent(self._connection.cancel)
            self._connection.wait(reading.response)
        except Trouble as trouble:
            return _failed(reading.response.sent_ns, trouble)
        return reading.outcome(draw.max_tokens)

    def close(self) -> None:
        self._connection.close()


class DirectCaller:
    """Submits over the link that all users of the process share."""

    def __init__(self, workload: Workload, link: DirectLink) -> None:
        self._workload = workload
        self._link = link

    def ask(self, draw: Draw, sent: Sent, on_first: FirstToken) -> Outcome:
        tried_ns = monotonic_ns()
        try:
            flight = self._link.submit(self._workload.int32(draw), draw.max_tokens, on_first=on_first)
        except Trouble as trouble:
            return _failed(tried_ns, trouble)
        sent(lambda kind, message: self._link.cancel(flight, kind, message))
        self._link.wait(flight)
        return flight.outcome(draw.max_tokens)

    def close(self) -> None:
        """Leave the link open: it is the process's."""


MakeCaller = Callable[[], Caller]


def http_callers(
    workload: Workload,
    template: BodyTemplate,
    target: HttpTarget,
    *,
    connect_timeout_s: float,
    read_timeout_s: float,
    authorization: str | None,
) -> MakeCaller:
    """Give what makes one HTTP caller a user."""
    head = target.head(authorization)
    return lambda: HttpCaller(workload, template, HttpConnection(target, connect_timeout_s, read_timeout_s), head)


def direct_callers(workload: Workload, link: DirectLink) -> MakeCaller:
    """Give what makes one direct caller a user; they share the link."""
    return lambda: DirectCaller(workload, link)


def _failed(tried_ns: int, trouble: Trouble) -> Outcome:
    return Outcome(tried_ns, monotonic_ns(), chunk_tokens=None, error_kind=trouble.kind, error=trouble.message)
