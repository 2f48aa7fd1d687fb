"""The two ways to put one request of the workload to a server and wait for its end."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Protocol

from contracts.errors import UsageError
from contracts.load import LoadSpec
from loadgen.limits import raise_file_limit
from loadgen.outcome import Cancel, FirstToken, Outcome, Trouble
from loadgen.transport.direct import DirectLink
from loadgen.transport.http import HttpConnection
from loadgen.transport.openai import StreamReading
from loadgen.transport.reactor import Reactor
from loadgen.transport.target import HttpTarget
from loadgen.workload.bodies import PATHS, BodyTemplate, endpoint_named
from loadgen.workload.prompts import Prompts
from loadgen.workload.synthetic import Draw

Sent = Callable[[Cancel], None]
"""Called once the request is with the kernel, with the means to cancel it."""


class Caller(Protocol):
    """One user's end of a drive."""

    def ask(self, draw: Draw, sent: Sent, on_first: FirstToken, cut_after: int | None = None) -> Outcome:
        """Send the request and sleep until it is over. A failure is an outcome, not an exception.

        With `cut_after` it is cancelled as soon as so many chunks carried a token.
        """

    def close(self) -> None: ...


class HttpCaller:
    """Streams from an OpenAI-compatible server over a connection of its own."""

    def __init__(self, prompts: Prompts, template: BodyTemplate, connection: HttpConnection, head: bytes) -> None:
        self._prompts = prompts
        self._template = template
        self._connection = connection
        self._head = head

    def ask(self, draw: Draw, sent: Sent, on_first: FirstToken, cut_after: int | None = None) -> Outcome:
        body = self._template.render(self._prompts, draw)
        reading = StreamReading(self._template.endpoint, on_first, cut_after, self._connection.cancel)
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

    def __init__(self, prompts: Prompts, link: DirectLink) -> None:
        self._prompts = prompts
        self._link = link

    def ask(self, draw: Draw, sent: Sent, on_first: FirstToken, cut_after: int | None = None) -> Outcome:
        tried_ns = monotonic_ns()
        try:
            flight = self._link.submit(
                self._prompts.int32(draw.pieces), draw.max_tokens, on_first=on_first, cut_after=cut_after
            )
        except Trouble as trouble:
            return _failed(tried_ns, trouble)
        sent(lambda kind, message: self._link.cancel(flight, kind, message))
        self._link.wait(flight)
        return flight.outcome(draw.max_tokens)

    def close(self) -> None:
        """Leave the link open: it is the process's."""


MakeCaller = Callable[[], Caller]


@dataclass(frozen=True, slots=True)
class Drive:
    """A drive made ready: what makes a user's caller, what its requests are called, and what ends it."""

    make_caller: MakeCaller
    name: str
    close: Callable[[], None] = lambda: None


def open_drive(spec: LoadSpec, prompts: Prompts, reactor: Reactor) -> Drive:
    """Make the drive that the spec names ready, file limit and all. Raises UsageError."""
    if spec.drive == "rpc":
        raise_file_limit(0)
        link = DirectLink(spec.target, spec.connect_timeout_s, spec.read_timeout_s)
        return Drive(direct_callers(prompts, link), "submit", link.close)
    if spec.drive != "http":
        raise UsageError(f"unknown drive {spec.drive!r}; use rpc or http")
    raise_file_limit(spec.most_users or spec.users)
    endpoint = endpoint_named(spec.endpoint)
    prompts.prepare(endpoint)
    key = os.environ.get("OPENAI_API_KEY")
    target = HttpTarget.resolve(spec.target, PATHS[endpoint], verify=spec.tls_verify)
    head = target.head(f"Bearer {key}" if key else None, spec.headers, keep_alive=spec.keep_alive)
    template = BodyTemplate(endpoint, spec.model, spec.extra_body)

    def make_caller() -> Caller:
        connection = HttpConnection(
            target, reactor, spec.connect_timeout_s, spec.read_timeout_s, keep_alive=spec.keep_alive
        )
        return HttpCaller(prompts, template, connection, head)

    return Drive(make_caller, PATHS[endpoint])


def direct_callers(prompts: Prompts, link: DirectLink) -> MakeCaller:
    """Give what makes one direct caller a user; they share the link."""
    return lambda: DirectCaller(prompts, link)


def _failed(tried_ns: int, trouble: Trouble) -> Outcome:
    return Outcome(tried_ns, monotonic_ns(), chunk_tokens=None, error_kind=trouble.kind, error=trouble.message)
