"""One request as the HTTP loop sees it: an asynchronous stream of its responses, fed from another thread."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator

from harness.reference.frontend.chunks import AnswerForm, AnswerWriter
from harness.reference.frontend.truth import PerfLog
from harness.reference.proxy import RpcProxy
from harness.reference.settings import ReferenceSettings
from harness.reference.types import (
    AnyResponse,
    DisaggregatedParams,
    ErrorResponse,
    Formatted,
    Response,
    SamplingParams,
    request_class,
)

TURN_EVERY = 16  # responses of one request


class GenerationFailed(Exception):  # noqa: N818 - it names what happened
    """Rank 0 refused or lost the request, or it took longer than the stack's request timeout."""

    def __init__(self, message: str, http_status: int) -> None:
        super().__init__(message)
        self.http_status = http_status


class _Inbox:
    """Responses of one request. `put` is called on the proxy main loop's thread, all else on the HTTP loop.

    An error ends the request at once: what the HTTP loop has not read by then is not delivered. A loop that is far
    behind (a stop that finds thousands of tokens unread) could not get to the error in time otherwise.
    """

    __slots__ = ("_event", "_expired", "_failure", "_items", "_taken")

    def __init__(self) -> None:
        self._items: deque[AnyResponse] = deque()
        self._event = asyncio.Event()
        self._failure: ErrorResponse | None = None
        self._expired = False
        self._taken = 0

    def put(self, response: AnyResponse) -> None:
        if isinstance(response, ErrorResponse):
            self._failure = response
        else:
            self._items.append(response)

    def wake(self) -> None:
        self._event.set()

    def expire(self) -> None:
        self._expired = True
        self._event.set()

    async def get(self) -> AnyResponse:
        """Take the next response, waiting for it. Now and then the loop gets a turn even if there is one.

        A rank 0 that is faster than this loop would otherwise keep it with one answer for ever.
        """
        self._taken += 1
        if self._taken % TURN_EVERY == 0:
            await asyncio.sleep(0)
        while self._failure is None and not self._items:
            if self._expired:
                raise TimeoutError
            self._event.clear()
            if self._items or self._failure is not None:  # it came between the look and the clear
                break
            await self._event.wait()
        return self._failure or self._items.popleft()


class _HttpSink:
    """Sorts responses into inboxes and wakes the HTTP loop once per response list."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._inboxes: dict[int, _Inbox] = {}
        self._touched: list[_Inbox] = []

    def open(self, client_id: int) -> _Inbox:
        inbox = self._inboxes[client_id] = _Inbox()
        return inbox

    def close(self, client_id: int) -> None:
        self._inboxes.pop(client_id, None)

    def deliver(self, client_id: int, response: AnyResponse) -> None:
        inbox = self._inboxes.get(client_id)
        if inbox is not None:
            inbox.put(response)
            self._touched.append(inbox)

    def notify(self) -> None:
        touched, self._touched = self._touched, []
        self._loop.call_soon_threadsafe(_wake_all, touched)


def _wake_all(inboxes: list[_Inbox]) -> None:
    for inbox in inboxes:
        inbox.wake()


class Generator:
    """Submits requests for the HTTP front end. Create it on the HTTP loop."""

    def __init__(self, proxy: RpcProxy, settings: ReferenceSettings, perf: PerfLog) -> None:
        self._proxy = proxy
        self._perf = perf
        self._wants_timing = settings.perf_metrics_max_requests > 0
        self._timeout_s = settings.request_timeout_s
        self._request_class = request_class(settings.token_ids)
        self._json = settings.json
        self._postprocessed = settings.postproc_workers > 0
        self._sink = _HttpSink(asyncio.get_running_loop())

    def submit(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        form: AnswerForm,
        disaggregated: DisaggregatedParams | None = None,
        *,
        arrived_s: float,
    ) -> "Generation":
        """Send a request to rank 0; blocks the HTTP loop until its bytes are with ZMQ, as the original does.

        `arrived_s` is when the HTTP request reached the application, CLOCK_MONOTONIC seconds.
        """
        sampling.return_perf_metrics = self._wants_timing
        request = self._request_class(prompt, sampling, streaming=form.streaming, arrival_time=time.monotonic())
        request.disaggregated_params = disaggregated
        if self._postprocessed:
            request.postproc_params = form
        client_id = self._proxy.new_client_id()
        inbox = self._sink.open(client_id)
        try:
            self._proxy.submit(client_id, request, self._sink)
        except BaseException:
            self._sink.close(client_id)
            raise
        writer = AnswerWriter(client_id, form, self._json)
        context = None if disaggregated is None else disaggregated.ctx_request_id
        return Generation(
            self, client_id, form.response_id(client_id), inbox, writer, arrived_s, self._timeout_s, context
        )

    def finish(self, generation: "Generation", last: Formatted | None) -> None:
        """Let go of a request. Without its last response (the client went away, the time ran out) it is aborted."""
        self._sink.close(generation.client_id)
        if last is None:
            self._proxy.abort(generation.client_id)
        elif last.timing is not None:
            self._perf.add(
                generation.client_id,
                last.timing,
                response_id=generation.response_id,
                server_arrival_s=generation.arrived_s,
                server_first_token_s=generation.first_token_s,
                ctx_request_id=generation.ctx_request_id,
            )


class Generation:
    """One request under way."""

    def __init__(
        self,
        generator: Generator,
        client_id: int,
        response_id: str,
        inbox: _Inbox,
        writer: AnswerWriter,
        arrived_s: float,
        timeout_s: float,
        ctx_request_id: int | None,
    ) -> None:
        self.client_id = client_id
        self.ctx_request_id = ctx_request_id
        self.response_id = response_id
        self.arrived_s = arrived_s
        self.first_token_s: float | None = None
        self._generator = generator
        self._inbox = inbox
        self._writer = writer
        self._timeout_s = timeout_s

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the answer's bytes as they come, up to the last. Raises GenerationFailed.

        Closed early (the client went away, an error in the writer), it aborts the request on rank 0.
        """
        last: Formatted | None = None
        refused = False
        expiry = asyncio.get_running_loop().call_later(self._timeout_s, self._inbox.expire)
        try:
            while last is None:
                response = await self._inbox.get()
                if isinstance(response, ErrorResponse):
                    refused = True
                    raise GenerationFailed(response.message, response.http_status)
                formatted = self._writer.write(response) if isinstance(response, Response) else response
                if self.first_token_s is None and formatted.output_tokens:
                    self.first_token_s = time.monotonic()
                if formatted.is_final:
                    last = formatted
                for piece in formatted.pieces:
                    yield piece
        except TimeoutError as error:
            raise GenerationFailed(f"the request took longer than {self._timeout_s:g} s", 504) from error
        finally:
            expiry.cancel()
            if not refused:
                self._generator.finish(self, last)
