"""The proxy's process: `python -m harness.reference.serve`. HTTP and direct drive on the main thread's loop."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import uvicorn

from contracts.errors import ToolError, UsageError
from harness.reference import log
from harness.reference.frontend.direct import DirectConnection
from harness.reference.frontend.http import HttpFrontend
from harness.reference.frontend.truth import PerfLog
from harness.reference.proxy import RpcProxy
from harness.reference.rpc.envelope import RPCError
from harness.reference.settings import KNOBS, ReferenceSettings

BACKLOG = 4096


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `loadgen serve`: where to listen, and every setting of the stack."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 picks a free one (default: %(default)s)")
    parser.add_argument("--direct-socket", metavar="PATH", help="also listen for the direct drive on this unix socket")
    parser.add_argument("--rank0-cpus", metavar="N,N", default="", help="pin rank 0's process to these cores")
    group = parser.add_argument_group("settings (each also an environment variable; the option wins)")
    for knob in KNOBS:
        group.add_argument(
            knob.option,
            metavar=knob.kind.__name__.upper() if not knob.choices else "|".join(knob.choices),
            help=f"{knob.help} [{knob.env}, default {knob.default}]".replace("%", "%%"),
        )


def settings_from(options: argparse.Namespace) -> ReferenceSettings:
    """Combine environment and options. Raises UsageError."""
    settings = ReferenceSettings.from_env()
    given = {knob.field: knob.parse(text) for knob in KNOBS if (text := getattr(options, knob.field)) is not None}
    return replace(settings, **given)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}. Choose another --port, or 0") from error
    listener.listen(BACKLOG)
    return listener


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers' re-raise: SIGINT and SIGTERM end the stack cleanly, with status 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self._leave)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _leave(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


async def _serve(options: argparse.Namespace, settings: ReferenceSettings, listener: socket.socket) -> None:
    proxy = RpcProxy(settings, rank0_cpus=_cpus(options.rank0_cpus))
    direct: asyncio.AbstractServer | None = None
    try:
        await asyncio.to_thread(proxy.start)
        perf = PerfLog(settings.perf_metrics_max_requests)
        app = HttpFrontend(proxy, settings, perf).build()
        if options.direct_socket:
            direct = await asyncio.get_running_loop().create_unix_server(
                lambda: DirectConnection(proxy, settings, perf), options.direct_socket
            )
            os.chmod(options.direct_socket, 0o600)  # noqa: PTH101
        config = uvicorn.Config(
            app, loop="none", http="httptools", log_level="warning", access_log=False, timeout_graceful_shutdown=2
        )
        host, port = listener.getsockname()[:2]
        where = f"[{host}]" if ":" in host else host
        info = await proxy.info()
        ready = {"url": f"http://{where}:{port}", "pids": {"proxy": os.getpid(), "rank0": info.pid}}
        print("READY " + json.dumps(ready), flush=True)
        await _Server(config).serve(sockets=[listener])
    finally:
        if direct is not None:
            direct.close()
        await asyncio.to_thread(proxy.stop)


def _cpus(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError as error:
        raise UsageError(f"--rank0-cpus {text}: expected core numbers such as 0 or 0,1") from error


def run(options: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status."""
    settings = settings_from(options)
    listener = _listen(options.host, options.port)
    try:
        asyncio.run(_serve(options, settings, listener))
    except RPCError as error:
        raise ToolError(f"the reference stack did not start: {error}") from error
    finally:
        listener.close()
        if options.direct_socket:
            Path(options.direct_socket).unlink(missing_ok=True)
    log.info("the stack has stopped")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="harness.reference.serve", description=__doc__)
    add_options(parser)
    try:
        return run(parser.parse_args(argv))
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
