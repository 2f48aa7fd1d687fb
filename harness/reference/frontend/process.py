"""A further HTTP front end on one executor: `python -m harness.reference.frontend.process`, started by the first."""

import asyncio
import os
import signal
import socket
from typing import Any

from harness.reference import log
from harness.reference.child import take_task
from harness.reference.frontend.server import serve_frontend
from harness.reference.frontend.truth import PerfLog
from harness.reference.proxy import RpcProxy
from harness.reference.rank0 import AttachedRank0
from harness.reference.settings import ReferenceSettings


async def _serve(task: dict[str, Any], listener: socket.socket) -> None:
    settings = ReferenceSettings(**task["settings"])
    log.set_level(settings.log_level)
    rank0 = AttachedRank0(task["address"], bytes.fromhex(task["key"]))
    proxy = RpcProxy(settings, rank0, frontend=task["number"])

    async def accepting() -> None:
        log.info(f"front end {task['number']} is process {os.getpid()}")

    try:
        await asyncio.to_thread(proxy.start)
        perf = PerfLog(settings.perf_metrics_max_requests)
        await serve_frontend(proxy, settings, perf, listener, signals=[signal.SIGTERM], on_accepting=accepting)
    finally:
        await asyncio.to_thread(proxy.stop)


def main() -> None:
    """Serve until the first front end says stop, or is gone."""
    task = take_task()
    with socket.socket(fileno=task["fd"]) as listener:
        asyncio.run(_serve(task, listener))


if __name__ == "__main__":
    main()
