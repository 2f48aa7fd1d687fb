"""What became of one request, whichever drive carried it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

FirstToken = Callable[[int], None]
"""Called once per request with (first token's arrival - sent), in ns, at the moment the first token arrives."""

Cancel = Callable[[str, str], None]
"""Ends a running request as a failure of the given kind, with a message. Harmless once the request is over."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The client's view of one request that is over; the fields are those of `contracts.records.RequestRow`.

    Times are CLOCK_MONOTONIC ns. When the request never left this process `sent_ns` is when it was tried.
    """

    sent_ns: int
    end_ns: int
    first_byte_ns: int | None = None
    chunk_ns: Sequence[int] = ()
    chunk_tokens: Sequence[int] | None = ()
    server_id: str | None = None
    status: int | None = None
    finish_reason: str | None = None
    output_tokens: int = 0
    output_tokens_source: str = "chunks"
    error_kind: str | None = None
    error: str | None = None
    received_bytes: int = 0
    arrival_clock: str | None = None
    merged_chunks: int | None = None
    client_lag_ns: int | None = None
    first_answer_ns: int | None = None


class Trouble(Exception):  # noqa: N818 - a kind of failure of one request, not an error of the program
    """A request failed on its way; `kind` is from the closed list in `loadgen.kinds`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
