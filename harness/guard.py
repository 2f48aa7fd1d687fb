"""The guard's process: `python -m harness.guard`; see harness.process.Guard. It imports nothing of ours."""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable

GRACE_S = 2.0


def main() -> None:
    """Keep the lists until the input ends; then, unless a goodbye came, clean up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    groups: set[int] = set()
    folders: set[str] = set()
    for line in sys.stdin:
        word, _, value = line.rstrip("\n").partition(" ")
        if word == "+group":
            groups.add(int(value))
        elif word == "-group":
            groups.discard(int(value))
        elif word == "+folder":
            folders.add(value)
        elif word == "-folder":
            folders.discard(value)
        elif word == "bye":
            return
    end(groups)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def end(groups: Iterable[int]) -> None:
    """Ask every group to end, and kill what is left after a moment."""
    left = set(groups)
    for group in left:
        _signal(group, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        left = {group for group in left if _signal(group, 0)}
        time.sleep(0.05)
    for group in left:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    main()
