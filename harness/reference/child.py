"""A child process of the stack, from both ends. Its task is a JSON line on standard input, whose end is its end too."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from harness.reference.observed import let_observers_in

STOP_TIMEOUT_S = 10.0


class Child:
    """The parent's end. The child lives no longer than this process: its standard input closes then.

    `number` stands in the command line alone, so that `ps` and `loadgen gil` tell processes of one module apart.
    """

    def __init__(
        self, module: str, task: dict[str, Any], *, number: int | None = None, pass_fds: Sequence[int] = ()
    ) -> None:
        words = [] if number is None else [str(number)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words], stdin=subprocess.PIPE, pass_fds=pass_fds, bufsize=0
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone already; running() says so
            self._process.stdin.write(json.dumps(task).encode() + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while the child runs."""
        return self._process.poll()

    def running(self) -> bool:
        return self._process.poll() is None

    def ask_to_end(self) -> None:
        if self.running():
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Wait until the child, told to end, has ended; after `timeout_s` kill it."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def take_task(on_orphaned: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:
    """Read this child's task. When the parent is gone, `on_orphaned` is called with it and the process ends.

    Ctrl-C, which reaches the whole process group, is left to the parent: it ends its children in order.
    """
    task: dict[str, Any] = json.loads(_read_line(0))
    let_observers_in()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, args=(task, on_orphaned), name="parent_watch", daemon=True).start()
    return task


def _leave_with_parent(task: dict[str, Any], on_orphaned: Callable[[dict[str, Any]], None]) -> None:
    while os.read(0, 4096):
        pass
    on_orphaned(task)
    os._exit(1)


def _read_line(fd: int) -> bytes:
    """Read up to a newline without buffering ahead: a buffered reader's lock would stall the interpreter's exit."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(fd, 65536)
        if not data:
            break
        line += data
    return bytes(line)
