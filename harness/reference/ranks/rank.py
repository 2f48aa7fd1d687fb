"""A rank beside rank 0: `python -m harness.reference.ranks.rank`, told its task by one JSON line on standard input."""

import json
import os
import signal
import socket
import sys

from harness.reference import log
from harness.reference.engine.collector import collector
from harness.reference.engine.loop import ExecutorLoop
from harness.reference.observed import let_observers_in
from harness.reference.ranks.group import RankIntake
from harness.reference.ranks.link import Link, SharedMemory
from harness.reference.settings import ReferenceSettings


def main() -> None:
    """Run the executor loop on what rank 0 broadcasts, until it says stop or its end of the link closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; rank 0 ends us in order
    task = json.loads(sys.stdin.readline())
    let_observers_in()
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # rank 0's pinning is not ours
    settings = ReferenceSettings(**task["settings"])
    log.set_level(settings.log_level)
    sys.setswitchinterval(settings.switch_interval_ms / 1e3)
    with socket.socket(fileno=task["fd"]) as sock, collector(settings):
        loop = ExecutorLoop(
            settings,
            RankIntake(Link(sock), SharedMemory(task["memory_fd"]), task["rank"], settings),
            lambda _: None,
            None,
        )
        loop.run()


if __name__ == "__main__":
    main()
