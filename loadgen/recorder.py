"""What a load process writes down: a row a request, a row about itself ten times a second, and the running counts."""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns, process_time_ns

import gevent

from contracts.arrow import RecordWriter
from contracts.clock import NS_PER_MS, NS_PER_S
from contracts.masking import mask_text
from contracts.records import CLIENT, REQUESTS, ClientRow, RequestRow
from loadgen import kinds
from loadgen.failing import FailingRule
from loadgen.outcome import Cancel, Outcome
from loadgen.transport.kernelclock import KernelClock
from loadgen.workload.synthetic import Draw

_SAMPLE_NS = 100 * NS_PER_MS
_SHOWN_TTFTS = 200
_ERROR_CHARS = 1000


class Ticket:
    """A request between its beginning and its row."""

    __slots__ = ("_recorder", "began_ns", "cancel", "seq")

    def __init__(self, recorder: "Recorder", seq: int) -> None:
        self._recorder = recorder
        self.seq = seq
        self.began_ns = monotonic_ns()
        self.cancel: Cancel | None = None

    def end(self, draw: Draw, outcome: Outcome, scheduled_ns: int | None = None) -> None:
        """Write the row. Every ticket must come to this, whatever became of the request."""
        self._recorder.end(self, draw, outcome, scheduled_ns)


class Recorder:
    """Owns the two record files of a load process. All calls come from greenlets of one thread."""

    def __init__(
        self,
        worker: int,
        requests_path: Path,
        client_path: Path,
        on_end: Callable[[RequestRow], None],
        clock: KernelClock | None = None,
        rule: FailingRule | None = None,
    ) -> None:
        self._clock = clock
        self._rule = rule or FailingRule(0)
        self._worker = worker
        self._on_end = on_end
        self._open: dict[int, Ticket] = {}
        self._seq = 0
        self._shown_ttfts: list[float] = []
        self._first_tokens = 0
        self._random = random.Random(0)  # noqa: S311 - which TTFTs are shown, not a secret
        self.completed = 0
        self.failed = 0
        self.unfinished = 0
        self.aborted = 0
        with contextlib.ExitStack() as stack:
            self._requests = stack.enter_context(RecordWriter(requests_path, REQUESTS))
            self._client = stack.enter_context(RecordWriter(client_path, CLIENT))
            self._files = stack.pop_all()

    @property
    def in_flight(self) -> int:
        """Count the requests that have begun (connecting included) and are not over."""
        return len(self._open)

    def begin(self) -> Ticket:
        ticket = Ticket(self, self._seq)
        self._open[self._seq] = ticket
        self._seq += 1
        return ticket

    def first_token(self, ttft_ns: int) -> None:
        self._rule.alive()
        self._first_tokens += 1
        if len(self._shown_ttfts) < _SHOWN_TTFTS:
            self._shown_ttfts.append(ttft_ns / NS_PER_MS)
            return
        place = self._random.randrange(self._first_tokens)  # so that each has the same chance to be among those kept
        if place < _SHOWN_TTFTS:
            self._shown_ttfts[place] = ttft_ns / NS_PER_MS

    def take_first_tokens(self) -> tuple[int, list[float]]:
        """Give how many first tokens came since the last call, and at most 200 of their TTFTs (ms), drawn evenly.

        For a live display only.
        """
        taken = self._first_tokens, [round(value, 3) for value in self._shown_ttfts]
        self._first_tokens, self._shown_ttfts = 0, []
        return taken

    def end(self, ticket: Ticket, draw: Draw, outcome: Outcome, scheduled_ns: int | None) -> None:
        """Write the ticket's row and count it."""
        del self._open[ticket.seq]
        if outcome.error_kind is None:
            self.completed += 1
        elif outcome.error_kind == kinds.ABORTED:
            self.aborted += 1
        else:
            self.failed += 1
            self.unfinished += outcome.error_kind == kinds.UNFINISHED
        self._rule.ended(outcome.error_kind, outcome.error, outcome.end_ns)
        row = _row(self._worker, ticket.seq, draw, outcome, scheduled_ns)
        self._requests.append(row)
        self._on_end(row)

    def failing(self) -> str | None:
        """Say what fails, masked, if everything does (loadgen.failing)."""
        oldest = next(iter(self._open.values()), None)
        verdict = self._rule.verdict(monotonic_ns(), None if oldest is None else oldest.began_ns)
        return None if verdict is None else mask_text(verdict)[:_ERROR_CHARS]

    def cancel_all(self, kind: str, message: str) -> None:
        """End every request in flight as a failure of this kind; their users write the rows when they wake."""
        for ticket in list(self._open.values()):
            if ticket.cancel is not None:
                ticket.cancel(kind, message)

    def sample_forever(self) -> None:
        """Write a client row every 100 ms, with how late this greenlet woke; read the clocks, flush each second."""
        due_ns = monotonic_ns() + _SAMPLE_NS
        while True:
            gevent.sleep(max(0, due_ns - monotonic_ns()) / NS_PER_S)
            now_ns = monotonic_ns()
            self._client.append(
                ClientRow(
                    worker=self._worker,
                    t_ns=now_ns,
                    lag_ns=max(0, now_ns - due_ns),
                    cpu_ns=process_time_ns(),
                    in_flight=self.in_flight,
                    completed=self.completed,
                    failed=self.failed,
                    arrival_lag_ns=self._look_at_clock(),
                )
            )
            self._requests.tick()
            due_ns = max(due_ns + _SAMPLE_NS, now_ns)

    def _look_at_clock(self) -> int | None:
        if self._clock is None:
            return None
        self._clock.refresh()
        return self._clock.take_worst_lag_ns()

    def close(self) -> None:
        """Flush and close both files."""
        self._files.close()


def _row(worker: int, seq: int, draw: Draw, outcome: Outcome, scheduled_ns: int | None) -> RequestRow:
    place = draw.place
    return RequestRow(
        worker=worker,
        seq=seq,
        user=draw.user,
        server_id=outcome.server_id,
        prompt_tokens=draw.prompt_tokens,
        max_tokens=draw.max_tokens,
        scheduled_ns=scheduled_ns,
        sent_ns=outcome.sent_ns,
        first_byte_ns=outcome.first_byte_ns,
        chunk_ns=outcome.chunk_ns,
        chunk_tokens=outcome.chunk_tokens,
        end_ns=outcome.end_ns,
        status=outcome.status,
        finish_reason=outcome.finish_reason,
        output_tokens=outcome.output_tokens,
        output_tokens_source=outcome.output_tokens_source,
        error_kind=outcome.error_kind,
        error=None if outcome.error is None else mask_text(outcome.error)[:_ERROR_CHARS],
        arrival_clock=outcome.arrival_clock,
        merged_chunks=outcome.merged_chunks,
        client_lag_ns=outcome.client_lag_ns,
        first_answer_ns=outcome.first_answer_ns,
        session=place.session,
        turn=place.turn,
        shared_prefix=place.shared_prefix,
        trace_line=place.trace_line,
    )
