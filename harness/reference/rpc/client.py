"""The proxy's side of the RPC layer: the thread `rpc_client_loop` alone owns the DEALER socket."""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import zmq.asyncio

from harness.reference import log
from harness.reference.rpc.envelope import RPCError, RPCRequest, RPCResponse, RPCTimeout, SealBroken
from harness.reference.rpc.socket import Receiving, SealedSocket

RECEIVE_TIMEOUT_S = 2.0
READER_GC_THRESHOLD = 10_000
FUTURE_WORKERS = 4


class RemoteCall:
    """A method with its arguments, ready to be called in one of four ways."""

    __slots__ = ("_args", "_client", "_method")

    def __init__(self, client: "RPCClient", method: str, args: tuple[Any, ...]) -> None:
        self._client = client
        self._method = method
        self._args = args

    def _request(self, timeout_s: float | None, *, need_response: bool, streaming: bool = False) -> RPCRequest:
        return RPCRequest(self._method, self._args, {}, need_response, timeout_s, streaming)

    def remote(self, *, need_response: bool = True, timeout_s: float | None = 60.0) -> Any:
        """Call from any thread and block: for the answer, or (fire and forget) until the bytes are with ZMQ."""
        request = self._request(timeout_s, need_response=need_response)
        return self._client.run(self._client.exchange(request)).result()

    async def remote_async(self, *, timeout_s: float | None = 60.0) -> Any:
        """Call from another asyncio loop."""
        request = self._request(timeout_s, need_response=True)
        return await asyncio.wrap_future(self._client.run(self._client.exchange(request)))

    def remote_future(self, *, need_response: bool = True, timeout_s: float | None = 60.0) -> "Future[Any]":
        """Call through the client's small thread pool and return at once."""
        return self._client.pool.submit(self.remote, need_response=need_response, timeout_s=timeout_s)

    def remote_streaming(self) -> AsyncIterator[Any]:
        """Iterate over a remote async generator from another asyncio loop."""
        return self._client.stream(self._request(None, need_response=True, streaming=True))


class RPCClient:
    """Calls methods of the RPCServer at `address`; see RemoteCall for the ways."""

    def __init__(self, address: str, key: bytes, *, receive: Receiving) -> None:
        self._address = address
        self._key = key
        self._receive = receive
        self._pending: dict[str, asyncio.Future[Any]] = {}
        self._streams: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Queue[RPCResponse]]] = {}
        self._socket: SealedSocket | None = None
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stopping = False
        self.refused_messages = 0
        self.pool = ThreadPoolExecutor(FUTURE_WORKERS, thread_name_prefix="rpc_client_worker")
        self._thread = threading.Thread(target=self._run, name="rpc_client_loop", daemon=True)
        self._thread.start()
        self._ready.wait()

    def method(self, name: str, *args: Any) -> RemoteCall:
        log.debug(f"RPC client calls {name} with {args} at {time.monotonic():.6f}")
        return RemoteCall(self, name, args)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Fail whatever still waits and end the thread."""
        if self._stopping:
            return
        self._stopping = True
        self.pool.shutdown(wait=False, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        context = zmq.asyncio.Context()
        self._socket = SealedSocket(context, self._address, self._key, server=False, receive=self._receive)
        reader = self._loop.create_task(self._response_reader(self._socket))
        self._ready.set()
        try:
            self._loop.run_forever()
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(reader)
            self._fail_waiting("the RPC client was closed")
            self._loop.run_until_complete(asyncio.sleep(0))
            self._socket.close()
            context.term()
            self._loop.close()

    def _fail_waiting(self, reason: str) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(RPCError(reason))
        self._pending.clear()
        for request_id, (loop, queue) in self._streams.items():
            end = RPCResponse(request_id, None, reason, True, 0, "error")
            with contextlib.suppress(RuntimeError):  # the consumer's loop may be closed already
                loop.call_soon_threadsafe(queue.put_nowait, end)
        self._streams.clear()

    async def exchange(self, request: RPCRequest) -> Any:
        """Send one request and, if wanted, wait for its answer. Runs on the client's loop."""
        assert self._socket is not None
        if not request.need_response:
            await self._socket.send(request)
            return None
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending[request.request_id] = future
        try:
            await self._socket.send(request)
            return await asyncio.wait_for(future, request.timeout)
        except TimeoutError as error:
            raise RPCTimeout(f"no answer to {request.method} within {request.timeout} s") from error
        finally:
            self._pending.pop(request.request_id, None)

    async def stream(self, request: RPCRequest) -> AsyncIterator[Any]:
        """Yield the parts of a stream as they come. Runs on the consumer's loop."""
        assert self._socket is not None
        queue: asyncio.Queue[RPCResponse] = asyncio.Queue()
        self._streams[request.request_id] = (asyncio.get_running_loop(), queue)
        await asyncio.wrap_future(self.run(self._socket.send(request)))
        try:
            while True:
                part = await queue.get()
                if part.stream_status == "data":
                    yield part.result
                elif part.error is not None:
                    raise RPCError(part.error)
                elif part.stream_status == "end":
                    return
        finally:
            self._streams.pop(request.request_id, None)

    async def _response_reader(self, socket: SealedSocket) -> None:
        before = gc.get_threshold()
        gc.set_threshold(READER_GC_THRESHOLD, *before[1:])
        try:
            while not self._stopping:
                try:
                    response, _ = await asyncio.wait_for(
                        socket.receive(RECEIVE_TIMEOUT_S), RECEIVE_TIMEOUT_S + self._receive.poll_s
                    )
                except TimeoutError:
                    continue
                except SealBroken as error:
                    self.refused_messages += 1
                    log.warning(str(error))
                    continue
                self._deliver(response)
        finally:
            gc.set_threshold(*before)

    def _deliver(self, response: RPCResponse) -> None:
        log.debug(f"RPC client received {response}")
        if response.is_streaming:
            consumer = self._streams.get(response.request_id)
            if consumer is not None:
                loop, queue = consumer
                loop.call_soon_threadsafe(queue.put_nowait, response)
            return
        future = self._pending.get(response.request_id)
        if future is None or future.done():
            return
        if response.error is None:
            future.set_result(response.result)
        else:
            future.set_exception(RPCError(response.error))
