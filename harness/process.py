"""Child processes in groups of their own, which end when we end, however we end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from contracts.masking import mask_text

TAIL_BYTES = 64 * 1024


class Guard:
    """A process that outlives a killed harness just long enough to end what the harness had started.

    It holds the list of our process groups and temporary folders; when our end of its input closes without a goodbye
    it ends the groups and removes the folders. Nothing else is needed from the children.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.guard"], stdin=subprocess.PIPE, start_new_session=True, text=True
        )

    def _say(self, word: str, value: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{word} {value}\n")
            self._process.stdin.flush()

    def watch_group(self, group: int) -> None:
        self._say("+group", group)

    def forget_group(self, group: int) -> None:
        self._say("-group", group)

    def watch_folder(self, folder: Path) -> None:
        self._say("+folder", folder)

    def forget_folder(self, folder: Path) -> None:
        self._say("-folder", folder)

    def close(self) -> None:
        """Say goodbye; whatever is still watched is left alone."""
        self._say("bye", "")
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Child:
    """A process we started, leader of its own group; its output goes to a file unless `pipes` is set.

    `cpus` pins it (and what it starts) to cores; an empty sequence leaves it alone.
    """

    def __init__(
        self,
        guard: Guard,
        argv: Sequence[str],
        *,
        log: Path,
        cpus: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        pipes: bool = False,
    ) -> None:
        self._guard = guard
        self._log = log
        command = list(argv)
        if cpus:
            command = ["taskset", "-c", ",".join(map(str, cpus)), *command]
        with open(log, "ab") as output:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                env=None if env is None else dict(env),
                start_new_session=True,
                text=pipes or None,
            )
        guard.watch_group(self.pid)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def favour(self, nice: int) -> bool:
        """Set the niceness of the process (before it starts threads); False when that is not permitted."""
        try:
            os.setpriority(os.PRIO_PROCESS, self.pid, nice)
        except (PermissionError, ProcessLookupError):
            return False
        return True

    def running(self) -> bool:
        return self.popen.poll() is None

    def stop(self, grace_s: float, *, first: signal.Signals = signal.SIGINT) -> int | None:
        """Ask the process to end, then end its whole group; return its exit status (None: it had to be killed)."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(first)
        status: int | None
        try:
            status = self.popen.wait(max(grace_s, 0.0))
        except subprocess.TimeoutExpired:
            status = None
        self._kill_group()
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._guard.forget_group(self.pid)
        return status

    def _kill_group(self) -> None:
        """End what is left of the group; it is empty when the process cleaned up after itself."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def last_lines(self, count: int = 8) -> str:
        return last_lines(self._log, count)


def last_lines(path: Path, count: int = 8) -> str:
    """Return the end of a log file, masked, for an error message."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return mask_text("\n".join(text.splitlines()[-count:]))


def wait_until(deadline_s: float, check_every_s: float = 0.05) -> bool:
    """Sleep a moment; False once `deadline_s` (CLOCK_MONOTONIC seconds) has passed."""
    left = deadline_s - time.monotonic()
    if left <= 0:
        return False
    time.sleep(min(check_every_s, left))
    return True
