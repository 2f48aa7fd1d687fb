"""One load process as the crew speaks with it: a child of ours, or one on another machine (harness.remote)."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from contracts.load import LoadEvent, LoadSpec
from harness.process import Child, Guard, last_lines

Heard = Callable[[LoadEvent | None], None]
"""Called from another thread with each event of a load process, and with None once it has ended or was lost."""


class LoadLink(Protocol):
    """`pid` is None when the process is not on this machine. `expendable`: the others go on when it is lost."""

    pid: int | None
    expendable: bool

    def tell(self, line: str) -> None:
        """Give it a line of contracts.load's protocol. Harmless once it has ended."""

    def why_ended(self) -> str:
        """Say how it ended, after None was heard."""

    def hang_up(self) -> None:
        """Tell it that we are gone: it stops at once, if it has not already."""

    def stop(self, deadline_s: float) -> str | None:
        """Wait for its end until this CLOCK_MONOTONIC second, then end it; say why records of it may be missing."""


class LocalLoad:
    """A load process on this machine, a child of ours."""

    expendable = False

    def __init__(
        self, guard: Guard, spec: LoadSpec, heard: Heard, *, log: Path, cpus: Sequence[int], nice: int
    ) -> None:
        self._log = log
        self._child = Child(guard, [sys.executable, "-m", "loadgen.process"], log=log, cpus=cpus, pipes=True)
        self.pid: int | None = self._child.pid
        self.favoured = bool(nice) and self._child.favour(nice)
        threading.Thread(target=self._listen, args=(heard,), name=f"load_listener_{spec.worker}", daemon=True).start()
        self.tell(spec.to_json())

    def tell(self, line: str) -> None:
        assert self._child.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone; its listener says so
            self._child.popen.stdin.write(line + "\n")
            self._child.popen.stdin.flush()

    def _listen(self, heard: Heard) -> None:
        assert self._child.popen.stdout is not None
        with contextlib.suppress(ValueError):  # the pipe was closed under us at the end of the cell
            for line in self._child.popen.stdout:
                try:
                    heard(LoadEvent.from_line(line))
                except (ValueError, KeyError, TypeError):
                    break
        heard(None)

    def why_ended(self) -> str:
        return f"ended (status {self._child.popen.poll()}):\n{last_lines(self._log)}"

    def hang_up(self) -> None:
        assert self._child.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.popen.stdin.close()

    def stop(self, deadline_s: float) -> str | None:
        with contextlib.suppress(Exception):
            self._child.popen.wait(max(0.05, deadline_s - time.monotonic()))
        self._child.stop(0.2)
        return None
