"""Rank 0's side of the RPC layer: one thread, one asyncio loop, one ROUTER socket, a few concurrent request tasks."""

import asyncio
import inspect
import threading
from typing import Any

import zmq.asyncio

from harness.reference import log
from harness.reference.rpc.envelope import RPCRequest, RPCResponse, SealBroken
from harness.reference.rpc.socket import Receiving, SealedSocket

RECEIVE_TIMEOUT_S = 0.5
GUARD_TIMEOUT_S = 2.0


class RPCServer:
    """Serve the public methods named in `methods` of `target`.

    Each of the `tasks` request tasks receives, dispatches and awaits its call to the end, so that many calls are in
    flight at most; a stream keeps its task for as long as it runs. Plain methods go to the loop's default thread pool
    (`asyncio_N`), coroutines run on the loop, async generators are streamed.
    """

    def __init__(
        self, target: object, methods: frozenset[str], address: str, key: bytes, *, tasks: int, receive: Receiving
    ) -> None:
        self._target = target
        self._methods = methods
        self._address = address
        self._key = key
        self._tasks = tasks
        self._receive = receive
        self.refused_messages = 0
        self._stopping = threading.Event()
        self._bound = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rpc_server_thread", daemon=True)

    def start(self) -> None:
        """Bind and serve; returns when the socket is bound. Raises what kept it from binding."""
        self._thread.start()
        self._bound.wait()
        if self._failure is not None:
            raise self._failure
        log.info(f"RPC server is bound to {self._address}")

    def stop(self, timeout_s: float = 5.0) -> None:
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - border of the thread: start() re-raises it
            self._failure = error
            log.error(f"RPC server ended: {error!r}")
        finally:
            self._bound.set()

    async def _serve(self) -> None:
        context = zmq.asyncio.Context()
        socket = SealedSocket(context, self._address, self._key, server=True, receive=self._receive)
        self._bound.set()
        try:
            await asyncio.gather(*(self._process_requests(socket) for _ in range(self._tasks)))
        finally:
            socket.close()
            context.term()

    async def _process_requests(self, socket: SealedSocket) -> None:
        while not self._stopping.is_set():
            try:
                request, peer = await asyncio.wait_for(socket.receive(RECEIVE_TIMEOUT_S), GUARD_TIMEOUT_S)
            except TimeoutError:
                continue
            except SealBroken as error:
                self.refused_messages += 1
                log.warning(str(error))
                continue
            log.debug(f"RPC server received {request}")
            assert peer is not None
            await self._dispatch(socket, request, peer)

    async def _dispatch(self, socket: SealedSocket, request: RPCRequest, peer: bytes) -> None:
        method = getattr(self._target, request.method) if request.method in self._methods else None
        if method is None:
            unknown = f"no remote method {request.method!r}"
            await socket.send(RPCResponse(request.request_id, None, unknown, request.is_streaming), peer)
            return
        if request.is_streaming:
            await self._stream(socket, request, method, peer)
            return
        try:
            result: Any = await asyncio.wait_for(self._call(request, method), request.timeout)
            failure: str | None = None
        except Exception as error:  # noqa: BLE001 - border of the remote call: it goes back to the caller
            result, failure = None, f"{type(error).__name__}: {error}"
        log.debug(f"RPC server ran {request}")
        if request.need_response:
            await socket.send(RPCResponse(request.request_id, result, failure), peer)
        elif failure is not None:
            log.error(f"{request.method} failed and nobody waits for it: {failure}")

    async def _call(self, request: RPCRequest, method: Any) -> Any:
        if inspect.iscoroutinefunction(method):
            return await method(*request.args, **request.kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: method(*request.args, **request.kwargs))

    async def _stream(self, socket: SealedSocket, request: RPCRequest, method: Any, peer: bytes) -> None:
        sequence = 0

        def part(status: str, result: Any = None, failure: str | None = None) -> RPCResponse:
            return RPCResponse(request.request_id, result, failure, True, sequence, status)

        await socket.send(part("start"), peer)
        try:
            async for item in method(*request.args, **request.kwargs):
                sequence += 1
                log.debug(f"RPC server streams {item}")
                await socket.send(part("data", item), peer)
        except Exception as error:  # noqa: BLE001 - border of the remote call: it goes back to the caller
            await socket.send(part("error", None, f"{type(error).__name__}: {error}"), peer)
            return
        await socket.send(part("end"), peer)
