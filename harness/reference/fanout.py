"""One executor, several front ends: the response lists are shared out among their streams."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

from harness.reference.types import AnyResponse


class ResponseFan:
    """Sends each response to the stream of the front end that it belongs to: client_id % count.

    `fetch` blocks for a moment and returns what has come; it is called on pool threads, by one stream's pump, until
    `over` is set. Everything else belongs to the RPC server's loop.
    """

    def __init__(self, count: int, fetch: Callable[[], list[AnyResponse]], over: threading.Event) -> None:
        self._count = count
        self._fetch = fetch
        self._over = over
        self._queues: dict[int, asyncio.Queue[list[AnyResponse] | None]] = {}
        self._pump: asyncio.Task[None] | None = None

    async def stream(self, number: int) -> AsyncIterator[list[AnyResponse]]:
        """Yield the response lists of front end `number`, until the end."""
        queue = self._queues[number] = asyncio.Queue()
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        while (responses := await queue.get()) is not None:
            yield responses

    async def _run(self) -> None:
        try:
            while not self._over.is_set():
                shares: defaultdict[int, list[AnyResponse]] = defaultdict(list)
                for response in await asyncio.to_thread(self._fetch):
                    shares[response.client_id % self._count].append(response)
                for number, share in shares.items():
                    self._queues[number].put_nowait(share)
        finally:
            for queue in self._queues.values():
                queue.put_nowait(None)
