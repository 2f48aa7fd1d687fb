"""One ZMQ socket that carries sealed messages, owned by one asyncio loop."""

import asyncio
import time
from typing import Any

import zmq
import zmq.asyncio

from harness.reference.rpc.envelope import seal, unseal


class SealedSocket:
    """A ROUTER that binds (the server's) or a DEALER that connects (the client's), with unlimited queues.

    Receiving is a polling loop, as in the original: a try that never blocks, then a sleep of `poll_s` when the socket
    is empty. It costs latency (0 to `poll_s`) and an idle tax per receiver, and it survives cancellation without
    losing a message.
    """

    def __init__(self, context: Any, address: str, key: bytes, *, server: bool, poll_s: float) -> None:
        self._socket = context.socket(zmq.ROUTER if server else zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._key = key
        self._server = server
        self._poll_s = poll_s
        if server:
            self._socket.bind(address)
        else:
            self._socket.connect(address)

    async def send(self, message: object, peer: bytes | None = None) -> None:
        sealed = seal(message, self._key)
        if peer is None:
            await self._socket.send(sealed)
        else:
            await self._socket.send_multipart([peer, sealed])

    async def receive(self, timeout_s: float) -> tuple[Any, bytes | None]:
        """Return (message, peer), peer None on the client's side. Raises TimeoutError, SealBroken."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                parts = await self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                if time.monotonic() >= deadline:
                    raise TimeoutError from None
                await asyncio.sleep(self._poll_s)
                continue
            return unseal(parts[-1], self._key), parts[0] if self._server else None

    def close(self) -> None:
        self._socket.close(0)
