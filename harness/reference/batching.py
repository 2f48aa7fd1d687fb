"""Batched submit: the proxy holds requests back for a moment and sends them to rank 0 in one message."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from harness.reference.rpc.client import RPCClient
from harness.reference.types import GenerationRequest


class SubmitBatcher:
    """Collects requests; sends them when there are `max_size`, or `delay_s` after the first.

    A full batch is sent by the caller that filled it. The delayed flush is timed on the proxy main loop and sent
    through the client's small pool, so that the loop, which also carries the responses, never waits for a send.
    `on_failure` gets the client ids of a batch that could not be sent.
    """

    def __init__(
        self,
        client: RPCClient,
        loop: asyncio.AbstractEventLoop,
        *,
        max_size: int,
        delay_s: float,
        on_failure: Callable[[Sequence[int], str], None],
    ) -> None:
        self._client = client
        self._loop = loop
        self._max_size = max_size
        self._delay_s = delay_s
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._held: list[GenerationRequest] = []
        self._generation = 0

    def add(self, request: GenerationRequest) -> None:
        with self._lock:
            self._held.append(request)
            full = self._take() if len(self._held) >= self._max_size else None
            first = len(self._held) == 1
            generation = self._generation
        if full is not None:
            self._send(full)
        elif first:
            self._loop.call_soon_threadsafe(self._loop.call_later, self._delay_s, self._flush_late, generation)

    def flush_if_holding(self, client_id: int) -> None:
        """Send the held batch now if `client_id` is in it, so that what is said about it next finds it there."""
        with self._lock:
            batch = self._take() if any(request.id == client_id for request in self._held) else None
        if batch is not None:
            self._send(batch)

    def _send(self, batch: list[GenerationRequest]) -> None:
        try:
            self._client.method("submit_batch", batch).remote(need_response=False)
        except Exception as error:  # noqa: BLE001 - border of the batch: the caller's request is but one of those lost
            self._lost(batch, error)

    def _take(self) -> list[GenerationRequest]:
        batch, self._held = self._held, []
        self._generation += 1
        return batch

    def _flush_late(self, generation: int) -> None:
        with self._lock:
            if generation != self._generation:  # that batch went out because it was full
                return
            batch = self._take()
        future = self._client.method("submit_batch", batch).remote_future(need_response=False)
        future.add_done_callback(lambda done: self._sent(done, batch))

    def _sent(self, done: "Future[Any]", batch: list[GenerationRequest]) -> None:
        if done.cancelled():
            self._lost(batch, CancelledError("the client was closed"))
        elif (error := done.exception()) is not None:
            self._lost(batch, error)

    def _lost(self, batch: list[GenerationRequest], error: BaseException) -> None:
        ids = [request.id for request in batch if request.id is not None]
        with contextlib.suppress(RuntimeError):  # the loop is closed: the proxy has stopped, and has told everyone
            self._loop.call_soon_threadsafe(self._on_failure, ids, f"the batch could not be sent: {error!r}")
