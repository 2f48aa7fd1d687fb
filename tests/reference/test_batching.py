import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from harness.reference.batching import SubmitBatcher
from harness.reference.types import GenerationRequest, SamplingParams


class RecordingClient:
    """Stands in for RPCClient: keeps each batch with the thread that sent it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[int | None], str]] = []
        self.failure: Exception | None = None
        self.arrived = threading.Event()

    def method(self, name: str, batch: Sequence[GenerationRequest]) -> "RecordingClient.Call":
        return RecordingClient.Call(self, name, batch)

    class Call:
        def __init__(self, client: "RecordingClient", name: str, batch: Sequence[GenerationRequest]) -> None:
            self.client, self.name, self.batch = client, name, batch

        def _send(self) -> None:
            if self.client.failure is not None:
                raise self.client.failure
            ids = [request.id for request in self.batch]
            self.client.sent.append((self.name, ids, threading.current_thread().name))
            self.client.arrived.set()

        def remote(self, *, need_response: bool) -> None:
            assert not need_response
            self._send()

        def remote_future(self, *, need_response: bool) -> "Future[Any]":
            assert not need_response
            future: Future[Any] = Future()
            try:
                self._send()
                future.set_result(None)
            except RuntimeError as error:
                future.set_exception(error)
            return future


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="main_loop")
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def make(
    client: RecordingClient, loop: asyncio.AbstractEventLoop, *, delay_s: float, failed: list[int] | None = None
) -> SubmitBatcher:
    def on_failure(ids: Sequence[int], _: str) -> None:
        (failed if failed is not None else []).extend(ids)
        client.arrived.set()

    return SubmitBatcher(client, loop, max_size=3, delay_s=delay_s, on_failure=on_failure)  # type: ignore[arg-type]


def request(client_id: int) -> GenerationRequest:
    return GenerationRequest([1], SamplingParams(), streaming=True, arrival_time=0.0).set_id(client_id)


def test_a_full_batch_goes_out_at_once_from_the_caller(loop: asyncio.AbstractEventLoop) -> None:
    client = RecordingClient()
    batcher = make(client, loop, delay_s=3600)
    for client_id in range(1, 8):
        batcher.add(request(client_id))
    name = threading.current_thread().name
    assert client.sent == [("submit_batch", [1, 2, 3], name), ("submit_batch", [4, 5, 6], name)]


def test_a_partly_filled_batch_goes_out_after_the_delay_from_the_main_loop(loop: asyncio.AbstractEventLoop) -> None:
    client = RecordingClient()
    batcher = make(client, loop, delay_s=0.01)
    batcher.add(request(1))
    batcher.add(request(2))
    assert client.arrived.wait(10)
    assert client.sent == [("submit_batch", [1, 2], "main_loop")]


def test_the_delay_of_a_batch_that_went_out_full_does_not_flush_the_next(loop: asyncio.AbstractEventLoop) -> None:
    client = RecordingClient()
    batcher = make(client, loop, delay_s=3600)
    for client_id in range(1, 5):
        batcher.add(request(client_id))
    stale = batcher._generation - 1
    loop.call_soon_threadsafe(batcher._flush_late, stale)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
    assert [ids for _, ids, _ in client.sent] == [[1, 2, 3]]


def test_an_abort_of_a_held_request_sends_its_batch_first(loop: asyncio.AbstractEventLoop) -> None:
    client = RecordingClient()
    batcher = make(client, loop, delay_s=3600)
    batcher.add(request(1))
    batcher.flush_if_holding(99)
    assert client.sent == []
    batcher.flush_if_holding(1)
    assert [ids for _, ids, _ in client.sent] == [[1]]


def test_requests_of_a_batch_that_could_not_be_sent_are_failed(loop: asyncio.AbstractEventLoop) -> None:
    client, failed = RecordingClient(), list[int]()
    client.failure = RuntimeError("closed")
    batcher = make(client, loop, delay_s=0.0, failed=failed)
    batcher.add(request(1))
    assert client.arrived.wait(10)
    assert failed == [1]
