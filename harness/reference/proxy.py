"""The proxy: hands requests to rank 0 over RPC and brings the responses back to whoever waits for them."""

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from harness.reference import log
from harness.reference.batching import SubmitBatcher
from harness.reference.rank0 import START_TIMEOUT_S, AttachedRank0, Rank0
from harness.reference.rpc.client import RPCClient
from harness.reference.rpc.envelope import RPCError
from harness.reference.rpc.socket import receiving
from harness.reference.settings import ReferenceSettings
from harness.reference.types import AnyResponse, ErrorResponse, GenerationRequest, WorkerInfo

STOP_TIMEOUT_S = 10.0


class ResponseSink(Protocol):
    """Where responses go: the HTTP front end's per-request queues, or the direct drive's connection.

    Both methods are called on the thread `rpc_proxy_main_loop`: `deliver` per response, then `notify` once per list.
    """

    def deliver(self, client_id: int, response: AnyResponse) -> None: ...

    def notify(self) -> None: ...


class RpcProxy:
    """The RPC client of rank 0 and the threads around it; starts and stops a rank 0 that is its own.

    Of several front ends on one executor each has a proxy; `frontend` is its number, and client_id % their count.
    """

    def __init__(self, settings: ReferenceSettings, rank0: Rank0 | AttachedRank0, *, frontend: int = 0) -> None:
        self._settings = settings
        self._rank0 = rank0
        self.frontend = frontend
        self._results: dict[int, ResponseSink] = {}
        self._client_ids = itertools.count(frontend or settings.http_frontends, settings.http_frontends)
        self._rank0_fd: int | None = None
        self._refusal: str | None = None
        self._client: RPCClient | None = None
        self._loop = asyncio.new_event_loop()
        self._main_loop = threading.Thread(target=self._run_main_loop, name="rpc_proxy_main_loop", daemon=True)
        self._fetching: asyncio.Task[None] | None = None
        self._batcher: SubmitBatcher | None = None
        self._stopping = False

    # life

    @property
    def address(self) -> str:
        return self._rank0.address

    @property
    def key(self) -> bytes:
        return self._rank0.key

    def start(self) -> None:
        """Start rank 0, if it is ours, and wait until its engine is set up. Raises RPCError when that does not come."""
        if isinstance(self._rank0, Rank0):
            self._rank0.start()
        self._client = RPCClient(self._rank0.address, self._rank0.key, receive=receiving(self._settings))
        if isinstance(self._rank0, Rank0):
            self._client.method("setup_engine").remote(timeout_s=START_TIMEOUT_S)
        info: WorkerInfo = self._client.method("info").remote()
        if info.pid != os.getpid():
            self._rank0_fd = os.pidfd_open(info.pid)
        self._main_loop.start()
        self._batcher = SubmitBatcher(
            self._client,
            self._loop,
            max_size=self._settings.submit_batch_max,
            delay_s=self._settings.submit_batch_delay_ms / 1e3,
            on_failure=self._fail_requests,
        )

    def stop(self) -> None:
        """Shut rank 0 down, end the threads, and leave neither process nor socket file behind."""
        self._stopping = True
        if self._client is not None and isinstance(self._rank0, Rank0):
            with contextlib.suppress(RPCError):
                self._client.method("shutdown").remote(timeout_s=2.0)
        if self._main_loop.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._main_loop.join(STOP_TIMEOUT_S)
        if self._client is not None:
            self._client.close()
        if isinstance(self._rank0, Rank0):
            self._rank0.stop()

    def healthy(self) -> bool:
        """Say whether rank 0 and the response stream are alive, and requests are taken."""
        if self._refusal is not None or self._client is None or not self._main_loop.is_alive():
            return False
        return not isinstance(self._rank0, Rank0) or self._rank0.alive()

    def refuse(self, reason: str) -> None:
        """Refuse requests from now on, and answer those in flight with an error."""
        self._refusal = self._refusal or reason
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is in flight any more
            self._loop.call_soon_threadsafe(lambda: self._fail_requests(list(self._results), reason))

    # requests; called on the front end's thread

    def new_client_id(self) -> int:
        return next(self._client_ids)

    def submit(self, client_id: int, request: GenerationRequest, sink: ResponseSink) -> None:
        """Send a request to rank 0; its responses go to `sink`.

        The sink is registered before anything is sent, so that no response can come for an unknown id. Blocks until
        the bytes are with ZMQ, unless the request waits in a batch. Raises RPCError.
        """
        if self._refusal is not None:
            raise RPCError(self._refusal)
        assert self._client is not None
        assert self._batcher is not None
        request.set_id(client_id)
        self._results[client_id] = sink
        try:
            if self._rank0.in_process is not None:
                self._rank0.in_process.submit(request)
            elif self._settings.submit_batch_max > 1:
                self._batcher.add(request)
            else:
                self._client.method("submit", request).remote(need_response=False)
        except BaseException:
            self._results.pop(client_id, None)
            raise

    def abort(self, client_id: int) -> None:
        """End a request on rank 0; its last response comes as for any other."""
        assert self._client is not None
        assert self._batcher is not None
        if client_id not in self._results:
            return
        self._batcher.flush_if_holding(client_id)
        self._client.method("abort_request", client_id).remote(need_response=False)

    def in_flight(self) -> int:
        return len(self._results)

    def refused_messages(self) -> int:
        """Count the messages from rank 0's socket whose seal was broken."""
        return 0 if self._client is None else self._client.refused_messages

    async def info(self) -> WorkerInfo:
        assert self._client is not None
        info: WorkerInfo = await self._client.method("info").remote_async()
        return info

    async def fetch_stats(self) -> list[dict[str, Any]]:
        assert self._client is not None
        rows: list[dict[str, Any]] = await self._client.method("fetch_stats").remote_async()
        return rows

    # responses; on rpc_proxy_main_loop

    def _run_main_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        if self._rank0_fd is not None:
            self._loop.add_reader(self._rank0_fd, self._rank0_ended)
        self._fetching = self._loop.create_task(self._guarded(self._fetch_responses_loop_async()))
        try:
            self._loop.run_forever()
        finally:
            self._fetching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._fetching)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            if self._rank0_fd is not None:
                os.close(self._rank0_fd)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            reason = "rank 0 ended it"
        except RPCError as error:
            reason = str(error)
        self._fail(f"the response stream broke: {reason}")

    def _rank0_ended(self) -> None:
        assert self._rank0_fd is not None
        self._loop.remove_reader(self._rank0_fd)
        self._fail("rank 0's process has ended")

    def _fail(self, reason: str) -> None:
        if not self._stopping:
            log.error(reason)
            self.refuse(reason)

    async def _fetch_responses_loop_async(self) -> None:
        assert self._client is not None
        async for responses in self._client.method("fetch_responses_loop_async", self.frontend).remote_streaming():
            self.handle_responses(responses)

    def handle_responses(self, responses: list[AnyResponse]) -> None:
        """Hand each response to the sink of its request, then wake each sink once."""
        touched: dict[int, ResponseSink] = {}
        for response in responses:
            client_id = response.client_id
            sink = self._results.get(client_id)
            if sink is None:  # it was given up before its last response came
                continue
            if isinstance(response, ErrorResponse) or response.is_final:
                self._results.pop(client_id, None)
            sink.deliver(client_id, response)
            touched[id(sink)] = sink
        for sink in touched.values():
            sink.notify()

    def _fail_requests(self, client_ids: Sequence[int], reason: str) -> None:
        self.handle_responses([ErrorResponse(client_id, reason, 503) for client_id in client_ids])

    def forget(self, client_id: int) -> None:
        """Drop a request's sink; what still comes for it is dropped too."""
        self._results.pop(client_id, None)
