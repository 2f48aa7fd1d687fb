"""Python's names of a process's threads, by way of `py-spy dump`; the kernel's names where that does not work."""

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterable
from typing import IO

from contracts.errors import UsageError
from harness.observers.gil.memory import PROC
from harness.observers.gil_stacks import find_py_spy

AGAIN_AFTER_S = 2.0
WAIT_S = 5.0


class ThreadNames:
    """Asks in a process of its own, so that a look never waits for the answer, and ever more rarely: it costs."""

    def __init__(self, pid: int, *, ask: bool = True) -> None:
        self._pid = pid
        self._known: dict[int, str] = {}
        self._said: dict[int, str] = {}
        self._asking: tuple[subprocess.Popen[bytes], IO[bytes]] | None = None
        self._again_after_s = AGAIN_AFTER_S
        self._ask_at_s = 0.0
        self._wanted = ask
        self._program: str | None = None
        if ask:
            with contextlib.suppress(UsageError):
                self._program = find_py_spy()

    def appeared(self, tids: Iterable[int]) -> dict[int, str]:
        """Return a name for each new thread, the kernel's to begin with, and ask for the others soon."""
        names = {tid: self._known.get(tid) or self._kernel_name(tid) for tid in tids}
        self._said |= names
        self._wanted = bool(names) or self._wanted
        return names

    def gone(self, tids: Iterable[int]) -> None:
        for tid in tids:
            self._known.pop(tid, None)
            self._said.pop(tid, None)

    def poll(self) -> dict[int, str]:
        """Return the names learned since the last call; asks when it is time to. Never waits."""
        now = time.monotonic()
        if self._asking is not None:
            if self._asking[0].poll() is None:
                return {}
            return self._answer()
        if self._wanted and self._program is not None and now >= self._ask_at_s:
            self._ask()
        return {}

    def begin(self) -> None:
        """Ask now, if that is possible and not under way."""
        if self._program is not None and self._asking is None:
            self._ask()

    def settle(self, limit_s: float = WAIT_S) -> dict[int, str]:
        """Wait for the first answer, for at most so long."""
        self.begin()
        if self._asking is None:
            return {}
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._asking[0].wait(limit_s)
            return self._answer()
        return {}

    def _ask(self) -> None:
        assert self._program is not None
        self._wanted = False
        self._ask_at_s = time.monotonic() + self._again_after_s
        self._again_after_s *= 2
        out = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the answer
        try:
            process = subprocess.Popen(
                [self._program, "dump", "--json", "--nonblocking", "--pid", str(self._pid)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            out.close()
            self._program = None
            return
        self._asking = (process, out)

    def _answer(self) -> dict[int, str]:
        assert self._asking is not None
        (process, out), self._asking = self._asking, None
        process.wait()
        learned = {}
        with out:
            out.seek(0)
            try:
                threads = json.load(out)
                self._known |= {int(t["os_thread_id"]): t["thread_name"] for t in threads if t.get("thread_name")}
            except (ValueError, KeyError, TypeError):
                return {}
        for tid, said in self._said.items():
            name = self._known.get(tid, said)
            if name != said:
                learned[tid] = name
        self._said |= learned
        return learned

    def _kernel_name(self, tid: int) -> str:
        try:
            return (PROC / str(self._pid) / "task" / str(tid) / "comm").read_text(errors="replace").rstrip("\n")
        except OSError:
            return "?"

    def close(self) -> None:
        if self._asking is not None:
            process, out = self._asking
            process.kill()
            process.wait()
            out.close()
            self._asking = None
