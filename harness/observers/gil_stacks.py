"""Who holds the GIL: py-spy from outside, without stopping the target (`record --gil --nonblocking --threads`).

py-spy counts looks that found a holder (`Samples`) and looks whose stack could not be read (`Errors`), and makes
`duration x rate` looks in all; shares of wall time are over the looks that told anything. Its blocking mode, the
default, is not used: it undercounts loops that make many system calls.
"""

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from contracts.clock import NS_PER_S, now_ns
from contracts.doubts import Doubt
from contracts.errors import UsageError
from contracts.folder import GilStacks
from harness.process import Child, Guard

RATE_HZ = 100
END_GRACE_S = 5.0
_COUNTS = re.compile(r"Samples: (\d+) Errors: (\d+)")
_DENIED = ("permission denied", "operation not permitted", "try running again with elevated")


def find_py_spy() -> str:
    """Return py-spy's path: beside this interpreter, else on PATH. Raises UsageError."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise UsageError("py-spy is not installed: run 'pip install py-spy', or give --no-observe to go without it")
    return found


def record_argv(pid: int, out: Path, *, rate_hz: int = RATE_HZ, duration_s: int | None = None) -> list[str]:
    """Give the command that records who holds a process's GIL (without a duration: until SIGINT). Raises UsageError."""
    argv = [
        find_py_spy(), "record", "--gil", "--nonblocking", "--threads", "--function", "--format", "raw",
        "--rate", str(rate_hz), "--pid", str(pid), "--output", str(out),
    ]  # fmt: skip
    return argv if duration_s is None else [*argv, "--duration", str(duration_s)]


class GilStackRecorder:
    """One run of py-spy on one process; starts at once and ends by itself after `duration_s` (None: when stopped)."""

    def __init__(
        self,
        guard: Guard,
        pid: int,
        out: Path,
        log: Path,
        *,
        duration_s: int | None,
        cpus: Sequence[int],
        rate_hz: int = RATE_HZ,
    ) -> None:
        self._pid = pid
        self._out = out
        self._log = log
        self._rate_hz = rate_hz
        self._duration_s = duration_s
        self._over = False
        argv = record_argv(pid, out, rate_hz=rate_hz, duration_s=duration_s)
        self._start_ns = now_ns()
        self._child = Child(guard, argv, log=log, cpus=cpus)

    def finish(self) -> tuple[GilStacks | None, tuple[Doubt, ...]]:
        """Wait for the end (or make it end) and account for the looks; doubts say what went wrong."""
        timely = True
        if self._duration_s is not None:
            left = self._start_ns / NS_PER_S + self._duration_s + END_GRACE_S - time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.popen.wait(max(left, 0.1))
            timely = not self._child.running()
        status = self._child.stop(END_GRACE_S, first=signal.SIGINT)
        self._over = True
        end_ns = now_ns()
        text = self._log.read_text(encoding="utf-8", errors="replace")
        match = _COUNTS.search(text)
        if match is None or not self._out.exists():
            return None, (Doubt("no_gil_samples", _why(status, text)),)
        samples, errors = int(match[1]), int(match[2])
        complete = timely and self._duration_s is not None
        seconds = self._duration_s if complete and self._duration_s else (end_ns - self._start_ns) / NS_PER_S
        attempts = max(round(seconds * self._rate_hz), samples + errors)
        stacks = GilStacks(
            pid=self._pid,
            rate_hz=self._rate_hz,
            start_ns=self._start_ns,
            end_ns=end_ns,
            attempts=attempts,
            samples=samples,
            errors=errors,
            complete=complete,
        )
        return stacks, ()

    def abandon(self) -> None:
        """End it without a result, if it has not been finished."""
        if not self._over:
            self._child.stop(0.5, first=signal.SIGINT)


def _why(status: int | None, text: str) -> str:
    lowered = text.lower()
    if any(word in lowered for word in _DENIED):
        return (
            "py-spy may not look into the server's process: run as root, or set kernel.yama.ptrace_scope=0, or give "
            "the container CAP_SYS_PTRACE"
        )
    last = text.strip().splitlines()[-1:] or ["it printed nothing"]
    return f"py-spy ended with status {status}: {last[0][:200]}"
