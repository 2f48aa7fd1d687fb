"""The executor loop's own account of its GIL wait, on threads whose answer is known."""

import threading
import time
from collections.abc import Callable

import pytest

from harness.reference.engine.gilprobe import GilProbe

pytestmark = pytest.mark.alone


def accounted(work: Callable[[GilProbe], None], rivals: int) -> tuple[float, float]:
    """Run `work` on a thread beside `rivals` that spin; return its GIL wait by the probe and its CPU time, seconds."""
    over = threading.Event()
    found: list[tuple[float, float]] = []

    def spin() -> None:
        while not over.is_set():
            pass

    def run() -> None:
        probe = GilProbe()
        cpu = time.thread_time()
        probe.turn()
        work(probe)
        found.append((probe.turn() / 1e3, time.thread_time() - cpu))
        probe.close()

    threads = [threading.Thread(target=target) for target in [*[spin] * rivals, run]]
    for thread in threads:
        thread.start()
    threads[-1].join()
    over.set()
    for thread in threads:
        thread.join()
    return found[0]


def burn(_: GilProbe) -> None:
    end = time.thread_time() + 0.25
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize(("rivals", "low", "high"), [(0, 0.0, 0.1), (1, 0.35, 0.65), (2, 0.5, 0.8)])
def test_of_equal_spinning_threads_each_waits_while_the_others_hold(rivals: int, low: float, high: float) -> None:
    wait, cpu = accounted(burn, rivals)
    assert low <= wait / (wait + cpu) <= high


def test_a_wait_that_is_noted_is_no_gil_wait() -> None:
    def sleep(probe: GilProbe) -> None:
        time.sleep(0.2)
        probe.waited(0.2)

    wait, _ = accounted(sleep, rivals=0)
    assert wait < 0.1


def test_a_wait_that_is_not_noted_is_taken_for_one() -> None:
    wait, _ = accounted(lambda _: time.sleep(0.2), rivals=0)
    assert wait > 0.1
