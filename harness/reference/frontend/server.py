"""One HTTP front end as a process runs it: uvicorn on the main thread's loop, until it is told to leave."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence

import uvicorn

from contracts.errors import UsageError
from harness.reference.frontend.http import HttpFrontend
from harness.reference.frontend.peers import Peers
from harness.reference.frontend.truth import PerfLog
from harness.reference.proxy import RpcProxy
from harness.reference.settings import ReferenceSettings

BACKLOG = 4096
GRACE_S = 2


def listen(host: str, port: int, count: int) -> list[socket.socket]:
    """Return `count` listening sockets on one port, 0 for a free one; the kernel shares connections out among them.

    Raises UsageError when the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listeners: list[socket.socket] = []
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:  # alone: sharing would let in a port that is taken
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
        for _ in range(count):
            listener = socket.socket(family, socket.SOCK_STREAM)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if count > 1:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((host, port))
            port = listener.getsockname()[1]
        for listener in listeners:
            listener.listen(BACKLOG)
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}. Choose another --port, or 0") from error
    return listeners


class _Server(uvicorn.Server):
    """Uvicorn that leaves signals to `serve_frontend`, and says when it accepts requests."""

    def __init__(self, config: uvicorn.Config, on_accepting: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._on_accepting = on_accepting

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        await self._on_accepting()

    def leave(self) -> None:
        """End in order; asked twice, at once."""
        self.force_exit = self.should_exit
        self.should_exit = True


async def serve_frontend(
    proxy: RpcProxy,
    settings: ReferenceSettings,
    perf: PerfLog,
    listener: socket.socket,
    *,
    signals: Sequence[signal.Signals],
    on_accepting: Callable[[], Awaitable[None]],
    on_leaving: Callable[[], None] = lambda: None,
    healthy: Callable[[], bool] = lambda: True,
) -> None:
    """Serve until one of `signals` comes. Whatever is in flight then is answered with an error at once.

    `on_accepting` is called when requests are accepted, `on_leaving` with the first signal; `healthy` is asked besides
    the proxy.
    """
    frontend = HttpFrontend(proxy, settings, perf, healthy)
    peers = Peers(proxy.address, proxy.frontend, settings.http_frontends, frontend.answers())
    config = uvicorn.Config(
        frontend.build(peers),
        loop="none",
        http="httptools",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
    )

    async def accepting() -> None:
        await peers.open()
        await on_accepting()

    server = _Server(config, accepting)

    def leave() -> None:
        on_leaving()
        proxy.refuse("the server is stopping")
        server.leave()

    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, leave)
    try:
        await server.serve(sockets=[listener])
    finally:
        peers.close()
