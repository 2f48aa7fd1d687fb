"""The leader process of layout `leader`: rank 0 runs on a thread of it, while its main thread waits.

That is where the original's launcher puts rank 0 when every rank is a process of one MPI world: the server process has
a GIL of its own, and within the leader the executor loop shares its GIL with the same threads as in layout `pool`.
"""

import threading

from harness.reference.worker import worker_from_standard_input


def main() -> None:
    """Run rank 0 to its end."""
    run = worker_from_standard_input()
    thread = threading.Thread(target=run, name="rank0_main_task")
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
