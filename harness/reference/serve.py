"""The proxy's process: `python -m harness.reference.serve`. HTTP and direct drive on the main thread's loop."""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.errors import ToolError, UsageError
from harness.reference import log
from harness.reference.frontend.direct import DirectDrive
from harness.reference.frontend.others import OtherFrontends
from harness.reference.frontend.server import listen, serve_frontend
from harness.reference.frontend.truth import PerfLog
from harness.reference.observed import let_observers_in
from harness.reference.proxy import RpcProxy
from harness.reference.rank0 import Rank0
from harness.reference.rpc.envelope import RPCError
from harness.reference.settings import KNOBS, ReferenceSettings, given_in, require_extras

INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `loadgen serve`: where to listen, and every setting of the stack."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 picks a free one (default: %(default)s)")
    parser.add_argument("--direct-socket", metavar="PATH", help="also listen for the direct drive on this unix socket")
    parser.add_argument("--rank0-cpus", metavar="N,N", default="", help="pin rank 0's process to these cores")
    group = parser.add_argument_group("settings (each also an environment variable; the option wins)")
    for knob in KNOBS:
        published = f"; published: {knob.published}" if knob.published else ""
        group.add_argument(
            knob.option,
            metavar=knob.values if knob.choices else knob.kind.__name__.upper(),
            help=f"{knob.help} [{knob.env}, default {knob.default}{published}]".replace("%", "%%"),
        )


def settings_from(options: argparse.Namespace) -> ReferenceSettings:
    """Combine environment and options. Raises UsageError."""
    given = given_in(os.environ)
    for knob in KNOBS:
        text = getattr(options, knob.field)
        if text is not None:
            given[knob.field] = knob.parse(text, given_as=f"{knob.option} {text}")
    settings = ReferenceSettings.of(given)
    require_extras(settings)
    return settings


async def _serve(options: argparse.Namespace, settings: ReferenceSettings, listeners: list[socket.socket]) -> None:
    proxy = RpcProxy(settings, Rank0(settings, cpus=_cpus(options.rank0_cpus)))
    perf = PerfLog(settings.perf_metrics_max_requests)
    direct = DirectDrive(proxy, settings, perf)
    others: OtherFrontends | None = None
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()
    assert starting is not None
    for number in SIGNALS:
        loop.add_signal_handler(number, starting.cancel)
    try:
        await asyncio.to_thread(proxy.start)
        others = OtherFrontends(proxy, settings, listeners[1:])
        if options.direct_socket:
            await direct.listen(options.direct_socket)
        await others.accepting()
        ready = _ready(listeners[0], (await proxy.info()).pid)

        async def accepting() -> None:
            print("READY " + json.dumps(ready), flush=True)

        await serve_frontend(
            proxy,
            settings,
            perf,
            listeners[0],
            signals=SIGNALS,
            on_accepting=accepting,
            on_leaving=others.ask_to_end,
            healthy=others.alive,
        )
    finally:
        if others is not None:
            await asyncio.to_thread(others.stop)
        await asyncio.to_thread(proxy.stop)
        await direct.close()


def _ready(listener: socket.socket, rank0_pid: int) -> dict[str, Any]:
    host, port = listener.getsockname()[:2]
    where = f"[{host}]" if ":" in host else host
    return {"url": f"http://{where}:{port}", "pids": {"proxy": os.getpid(), "rank0": rank0_pid}}


def _cpus(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError as error:
        raise UsageError(f"--rank0-cpus {text}: expected core numbers such as 0 or 0,1") from error


def run(options: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return 0, or 130 when the signal came before the stack was up."""
    settings = settings_from(options)
    let_observers_in()
    log.set_level(settings.log_level)
    listeners = listen(options.host, options.port, settings.http_frontends)
    try:
        asyncio.run(_serve(options, settings, listeners))
    except asyncio.CancelledError:
        return INTERRUPTED
    except RPCError as error:
        raise ToolError(f"the reference stack did not start: {error}") from error
    finally:
        for listener in listeners:
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
