"""Where rank 0 runs, as its proxy sees it: which layout decides how many GILs there are."""

import secrets
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from contracts.sockets import STACK_FOLDER, STACK_SOCKET, parent_for_sockets
from harness.reference.child import Child
from harness.reference.rpc.envelope import KEY_BYTES, RPCError
from harness.reference.settings import ReferenceSettings
from harness.reference.worker import RpcWorker

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_MODULES = {"pool": "harness.reference.worker", "leader": "harness.reference.leader"}


class Rank0:
    """Rank 0 with the socket folder and the key of this launch.

    `in_process` is the worker itself where this process may call it directly.
    """

    def __init__(self, settings: ReferenceSettings, *, cpus: Sequence[int] = ()) -> None:
        self._settings = settings
        self._cpus = list(cpus)
        self._directory = tempfile.TemporaryDirectory(
            prefix="refstack-", dir=parent_for_sockets(STACK_FOLDER, STACK_SOCKET)
        )
        self.address = f"ipc://{self._directory.name}/rpc"
        self.key = secrets.token_bytes(KEY_BYTES)
        self.in_process: RpcWorker | None = None
        self._child: Child | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start it and wait until its socket is bound. Raises RPCError when that does not come."""
        if self._settings.layout == "thread":
            worker = RpcWorker(self._settings)
            if self._settings.submit == "in-process":
                self.in_process = worker
            self._thread = threading.Thread(
                target=worker.run, args=(self.address, self.key), name="rank0_main_task", daemon=True
            )
            self._thread.start()
        else:
            task = {
                "settings": self._settings.to_json(),
                "address": self.address,
                "key": self.key.hex(),
                "cpus": self._cpus,
            }
            self._child = Child(_MODULES[self._settings.layout], task)
        self._await_socket()

    def _await_socket(self) -> None:
        path = Path(self.address.removeprefix("ipc://"))
        deadline = time.monotonic() + START_TIMEOUT_S
        while not path.exists():
            if self._child is not None and not self._child.running():
                raise RPCError(f"rank 0 ended with status {self._child.status} before it served")
            if self._thread is not None and not self._thread.is_alive():
                raise RPCError("rank 0's thread ended before it served")
            if time.monotonic() > deadline:
                raise RPCError(f"rank 0 did not bind its socket within {START_TIMEOUT_S:.0f} s")
            time.sleep(0.01)

    def alive(self) -> bool:
        if self._child is not None:
            return self._child.running()
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Wait for its end, which the proxy has asked for, and remove the folder."""
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
        if self._child is not None:
            self._child.wait(STOP_TIMEOUT_S)
        self._directory.cleanup()


class AttachedRank0:
    """Rank 0 to a further front end: somebody else starts it and stops it."""

    in_process: RpcWorker | None = None

    def __init__(self, address: str, key: bytes) -> None:
        self.address = address
        self.key = key
