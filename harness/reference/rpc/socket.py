"""One ZMQ socket that carries sealed messages, owned by one asyncio loop."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import zmq
import zmq.asyncio

from harness.reference.rpc.envelope import seal, unseal
from harness.reference.settings import ReferenceSettings


@dataclass(frozen=True, slots=True)
class Receiving:
    """How an empty socket is awaited.

    By polling, as in the original of early 2026: a try that never blocks, then a sleep of `poll_s`. It costs latency (0
    to `poll_s`) and an idle tax per receiver, and it survives cancellation without losing a message. By event, as in
    its newer form: latency is a wake-up, idling is free, and every idle receiver wakes for each message.
    """

    by_event: bool
    poll_s: float


def receiving(settings: ReferenceSettings) -> Receiving:
    return Receiving(by_event=settings.rpc_receive == "event", poll_s=settings.rpc_poll_ms / 1e3)


def beside(address: str, name: str) -> str:
    """Return the address of a further socket in the folder of `address`; unix socket paths must be short."""
    return f"{address.rpartition('/')[0]}/{name}"


class SealedSocket:
    """A ROUTER that binds (the server's) or a DEALER that connects (the client's), with unlimited queues."""

    def __init__(self, context: Any, address: str, key: bytes, *, server: bool, receive: Receiving) -> None:
        self._socket = context.socket(zmq.ROUTER if server else zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._key = key
        self._server = server
        self._receive = receive
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
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError from None
                if self._receive.by_event:
                    await self._socket.poll(max(1, int(left * 1e3)))
                else:
                    await asyncio.sleep(self._receive.poll_s)
                continue
            return unseal(parts[-1], self._key), parts[0] if self._server else None

    def close(self) -> None:
        self._socket.close(0)
