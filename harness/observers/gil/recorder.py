"""The wait sampler beside a cell: on the observers' cores, writing gil.arrow."""

import contextlib
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from contracts.doubts import Doubt
from harness.observers.gil.pulse import GilPulse, latest
from harness.process import Child, Guard

END_GRACE_S = 5.0


def sampler_argv(pid: int, out: Path, *options: str) -> list[str]:
    """Give the command that runs the sampler as a process of its own."""
    return [sys.executable, "-m", "harness.observers.gil", str(pid), "--out", str(out), *options]


class GilWaitRecorder:
    """One run of the sampler on one process, until `finish`."""

    def __init__(self, guard: Guard, pid: int, out: Path, log: Path, *, cpus: Sequence[int]) -> None:
        self._pid = pid
        self._log = log
        self._child = Child(guard, sampler_argv(pid, out, "--pulse"), log=log, cpus=cpus)
        self._over = False
        self._pulse: GilPulse | None = None

    def pulse(self) -> GilPulse | None:
        """Give what the last second's looks saw; None when that was given before."""
        found = latest(self._log)
        if found == self._pulse:
            return None
        self._pulse = found
        return found

    def finish(self) -> tuple[Doubt, ...]:
        """End the run; doubts say why there are no records, or fewer. The records tell which looks were missed."""
        status = self._stop(END_GRACE_S)
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it printed nothing"
        told = None
        with contextlib.suppress(ValueError):
            told = json.loads(last)
        if status == -signal.SIGINT or last == "KeyboardInterrupt":  # one that has begun ends well
            slow = "the wait sampler had not begun when the window closed: the machine is slow, or --duration short"
            return (Doubt("no_gil_samples", slow),)
        if not isinstance(told, dict):
            return (Doubt("no_gil_samples", f"the wait sampler ended with status {status}: {last[:300]}"),)
        doubts = []
        if not told["looks"]:
            doubts.append(Doubt("no_gil_samples", f"the wait sampler took no look; it missed {told['missed']}"))
        if told["ended"] is not None:
            doubts.append(Doubt("observer_failed", f"the wait sampler ended early: {told['ended']}"))
        return tuple(doubts)

    def abandon(self) -> None:
        """End it without a result, if it has not been finished."""
        if not self._over:
            self._stop(0.5)

    def _stop(self, grace_s: float) -> int | None:
        self._over = True
        return self._child.stop(grace_s, first=signal.SIGINT)
