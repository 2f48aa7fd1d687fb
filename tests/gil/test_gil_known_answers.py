"""What the sampler says of threads whose answer is known; the bounds hold on a machine with other things to do."""

import sys

import pytest
from gil_support import interpreters, running, watch

pytestmark = pytest.mark.alone

TWO_SPINNERS = "start('a', spin); start('b', spin); start('lock', locked); start('sleep', sleeper); UP; time.sleep(60)"


@pytest.mark.parametrize("python", interpreters())
def test_two_spinning_threads_share_the_gil_and_wait_for_each_other(python: str) -> None:
    with running(TWO_SPINNERS, python) as process:
        threads, tally, _ = watch(process.pid)
    spinners = [threads["a"], threads["b"]]
    for one, other in (spinners, spinners[::-1]):
        assert 0.15 < one.wait < 0.7
        assert 0.3 < one.wait + one.running < 0.7, "on a full machine it loses its core as it lets go, and seems to run"
        assert 0.3 < one.held < 0.7
        assert sum(part.fraction for part in one.blame if part.tid == other.tid) > 0.7
        assert any(part.function is not None and part.function.startswith("spin (") for part in one.blame)
    assert tally.held_fraction > 0.8
    assert tally.switches_per_s > 10


@pytest.mark.parametrize("python", interpreters())
def test_lock_waiters_and_sleepers_do_not_wait_for_the_gil(python: str) -> None:
    with running(TWO_SPINNERS, python) as process:
        threads, _, _ = watch(process.pid)
    for name in ("lock", "sleep", "MainThread"):
        assert threads[name].wait < 0.01
        assert threads[name].held < 0.01


def test_one_spinning_thread_holds_the_gil_and_waits_for_nobody() -> None:
    with running("start('a', spin); UP; time.sleep(60)") as process:
        threads, tally, _ = watch(process.pid)
    assert threads["a"].held > 0.9
    assert threads["a"].wait < 0.05
    assert tally.held_fraction > 0.9


def test_native_code_that_lets_go_of_the_gil_runs_without_it() -> None:
    with running("start('hash', native); UP; time.sleep(60)") as process:
        threads, _, _ = watch(process.pid)
    assert threads["hash"].wait < 0.05
    assert threads["hash"].held < 0.3
    assert threads["hash"].running > 0.6


def test_an_idle_process_has_a_free_gil() -> None:
    with running("start('sleep', sleeper); UP; time.sleep(60)") as process:
        threads, tally, _ = watch(process.pid, 100)
    assert tally.held_fraction < 0.05
    assert all(thread.wait < 0.01 for thread in threads.values())


def test_long_sleepers_are_looked_at_rarely_and_still_found_when_they_begin_to_want_the_gil() -> None:
    program = """
def late():
    time.sleep(2.5); spin()
for n in range(20): start(f'lock{n}', locked)
start('late', late); start('a', spin); UP; time.sleep(60)
"""
    with running(program) as process:
        threads, _, _ = watch(process.pid, 1000)
    assert threads["late"].wait > 0.1
    assert all(threads[f"lock{n}"].wait < 0.01 for n in range(20))


def test_threads_that_come_and_go_are_no_trouble() -> None:
    with running("start('short', short); start('a', spin); UP; time.sleep(60)") as process:
        threads, tally, sampler = watch(process.pid, 300)
    assert sampler.ended is None
    assert tally.looks >= 300
    assert {"short", "a", "MainThread"} <= threads.keys()


def test_a_target_that_exits_ends_the_looks() -> None:
    with running("start('a', spin); UP; time.sleep(1.0); os._exit(0)") as process:
        _, tally, sampler = watch(process.pid, 100_000)
    assert sampler.ended is not None
    assert 0 < tally.looks < 2000


def test_a_target_that_replaces_its_program_ends_the_looks() -> None:
    program = "UP; time.sleep(1.0); os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)'])"
    with running(program) as process:
        _, _, sampler = watch(process.pid, 100_000)
        assert process.poll() is None
    assert sampler.ended is not None


def test_a_target_that_forks_is_watched_on() -> None:
    program = """
start('a', spin)
UP
while True:
    child = os.fork()
    if child == 0: os._exit(0)
    os.waitpid(child, 0); time.sleep(0.05)
"""
    with running(program, sys.executable) as process:
        threads, _, sampler = watch(process.pid, 200)
    assert sampler.ended is None
    assert threads["a"].held > 0.2
