"""The direct drive's way in: submits without HTTP, over a unix socket, on the same main-thread loop."""

import asyncio
import os
import time
from array import array

from contracts import direct as wire
from harness.reference import log
from harness.reference.frontend.truth import PerfLog
from harness.reference.proxy import RpcProxy
from harness.reference.rpc.envelope import RPCError
from harness.reference.settings import ReferenceSettings
from harness.reference.types import (
    AnyResponse,
    EngineResponse,
    ErrorResponse,
    Formatted,
    SamplingParams,
    request_class,
)

_FINISH = {None: wire.RUNNING, "length": wire.LENGTH, "stop": wire.STOP, "cancelled": wire.CANCELLED}

CLOSE_TIMEOUT_S = 2.0


class DirectDrive:
    """The direct drive's socket and its connections."""

    def __init__(self, proxy: RpcProxy, settings: ReferenceSettings, perf: PerfLog) -> None:
        self._proxy = proxy
        self._settings = settings
        self._perf = perf
        self._open: set[DirectConnection] = set()
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._connection, path)
        os.chmod(path, 0o600)  # noqa: PTH101

    def _connection(self) -> "DirectConnection":
        return DirectConnection(self._proxy, self._settings, self._perf, self._open)

    async def close(self) -> None:
        """Close the connections once what they still have to say is written, and at the latest in a moment."""
        if self._server is not None:
            self._server.close()
        leaving = [asyncio.create_task(connection.leave()) for connection in self._open]
        if leaving:
            await asyncio.wait(leaving, timeout=CLOSE_TIMEOUT_S)


class DirectConnection(asyncio.Protocol):
    """One load process's connection. Submits as the HTTP loop does; answers each response list with one frame."""

    def __init__(
        self, proxy: RpcProxy, settings: ReferenceSettings, perf: PerfLog, connections: "set[DirectConnection]"
    ) -> None:
        self._proxy = proxy
        self._connections = connections
        self._lost = asyncio.Event()
        self._perf = perf
        self._wants_timing = settings.perf_metrics_max_requests > 0
        self._request_class = request_class(settings.token_ids)
        self._reader = wire.FrameReader()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._tags: dict[int, int] = {}
        self._clients: dict[int, int] = {}
        self._arrived: list[EngineResponse] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    async def leave(self) -> None:
        """Close; what is written by then still goes out."""
        if self._transport is not None:
            self._transport.close()
            await self._lost.wait()

    def connection_lost(self, _: Exception | None) -> None:
        """Abort what the vanished load process still had in flight."""
        self._transport = None
        self._connections.discard(self)
        self._lost.set()
        for client_id in list(self._tags):
            self._proxy.abort(client_id)

    def data_received(self, data: bytes) -> None:
        try:
            for kind, body in self._reader.feed(data):
                if kind == wire.SUBMIT:
                    self._submit(body)
                elif kind == wire.ABORT:
                    client_id = self._clients.get(wire.TAG.unpack(body)[0])
                    if client_id is not None:
                        self._proxy.abort(client_id)
                else:
                    self._close(f"unknown kind {kind}")
        except (wire.FrameError, ValueError) as error:
            self._close(str(error))

    def _close(self, reason: str) -> None:
        log.warning(f"direct drive: {reason}; the connection is closed")
        if self._transport is not None:
            self._transport.close()

    def _submit(self, body: bytes) -> None:
        tag, max_tokens, ignore_eos = wire.SUBMIT_HEAD.unpack_from(body)
        prompt = array("i", body[wire.SUBMIT_HEAD.size :]).tolist()
        sampling = SamplingParams(
            max_tokens=max_tokens, ignore_eos=bool(ignore_eos), return_perf_metrics=self._wants_timing
        )
        request = self._request_class(prompt, sampling, streaming=True, arrival_time=time.monotonic())
        client_id = self._proxy.new_client_id()
        self._tags[client_id] = tag
        self._clients[tag] = client_id
        try:
            self._proxy.submit(client_id, request, self)
        except RPCError as error:
            self._write([ErrorResponse(client_id, str(error), 503)])

    # on rpc_proxy_main_loop

    def deliver(self, _: int, response: AnyResponse) -> None:
        assert not isinstance(response, Formatted), "requests of the direct drive are not post-processed"
        self._arrived.append(response)

    def notify(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._loop.call_soon_threadsafe(self._write, arrived)

    # on the main thread again

    def _write(self, responses: list[EngineResponse]) -> None:
        entries = bytearray()
        all_tokens: list[int] = []
        count = 0
        frames: list[bytes] = []
        for response in responses:
            client_id = response.client_id
            tag = self._tags.get(client_id)
            if tag is None:
                continue
            if isinstance(response, ErrorResponse):
                self._forget(client_id, tag)
                frames.append(wire.frame(wire.FAILED, wire.TAG.pack(tag), response.message.encode()))
                continue
            ids = response.token_ids
            entries += wire.ENTRY.pack(tag, client_id & 0xFFFFFFFF, len(ids), _FINISH[response.finish_reason], 0)
            all_tokens += ids
            count += 1
            if response.is_final:
                self._forget(client_id, tag)
                if response.timing is not None:
                    self._perf.add(client_id, response.timing)
        if count:
            frames.append(
                wire.frame(wire.TOKENS, wire.TAG.pack(count), bytes(entries), array("i", all_tokens).tobytes())
            )
        if self._transport is not None:
            self._transport.write(b"".join(frames))

    def _forget(self, client_id: int, tag: int) -> None:
        del self._tags[client_id]
        if self._clients.get(tag) == client_id:
            del self._clients[tag]
