"""Where the GIL is, and what is refused with a sentence that says what to do."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from gil_support import interpreters, running

from contracts.errors import UsageError
from harness.observers.gil.elf import EM_AARCH64, EM_X86_64
from harness.observers.gil.layout import locate, thread_states
from harness.observers.gil.memory import Identity, TargetGoneError, TargetMemory
from harness.observers.gil.offsets import gil_shape, published
from harness.observers.gil.sampler import GilSampler

PUBLISHED_313 = {"interpreters_head": 632, "ceval_gil": 16, "gil": 7752, "native_thread_id": 160}


@pytest.mark.parametrize("python", interpreters())
def test_the_gil_is_found_with_its_interval_and_its_threads(python: str) -> None:
    program = "sys.setswitchinterval(0.0123); start('a', spin); UP; time.sleep(60)"
    with running(program, python) as process, TargetMemory(process.pid) as memory:
        layout = locate(process.pid, memory)
        assert memory.u64(layout.gil) == 12_300  # us: the first word of the struct
        tids = {int(entry.name) for entry in Path(f"/proc/{process.pid}/task").iterdir()}
        assert set(thread_states(memory, layout.interpreter, layout.offsets).values()) == tids
    argv = [python, "-c", "import sys; print(sys.version_info[:3])"]
    told = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert str(layout.version) == told.stdout.strip()


def test_the_shape_follows_the_machines_lock_sizes() -> None:
    intel, arm = gil_shape(EM_X86_64, 36), gil_shape(EM_AARCH64, 36)
    assert (intel.cond, intel.mutex, intel.switch_cond, intel.switch_mutex, intel.size) == (32, 80, 120, 168, 208)
    assert (arm.cond, arm.mutex, arm.switch_cond, arm.switch_mutex, arm.size) == (32, 80, 128, 176, 224)
    assert (intel.futex, arm.futex) == (202, 98)


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="machine"):
        gil_shape(243, None)


def block(version: int, *, free_threaded: int = 0) -> bytes:
    """A published block whose words are their own index, so that every offset tells which word it was read from."""
    return b"xdebugpy" + struct.pack("<QQ", version, free_threaded) + struct.pack("<61Q", *range(61))


def test_published_offsets_are_read_by_the_layout_of_their_version() -> None:
    older, newer = published(block(0x030D00F0)), published(block(0x030E00F0))
    newest = published(block(0x030F00F0))
    assert (older.interpreters_head, older.interpreter_id, older.threads_head, older.gil_pointer) == (2, 4, 6, 11)
    assert (newer.interpreters_head, newer.interpreter_id, newer.threads_head, newer.gil_pointer) == (2, 4, 6, 12)
    assert older.native_thread_id == 16 + 6
    assert newer.native_thread_id == 19 + 6
    assert older.code_qualname == 16 + 9 + 6 + 3
    assert newer.code_qualname == 19 + 9 + 8 + 3
    assert (newest.gil_pointer, newest.current_frame, newest.native_thread_id) == (12, 19 + 4, 19 + 9)
    assert (newest.frame_previous, newest.code_qualname) == (19 + 16 + 1 + 1, 19 + 16 + 1 + 8 + 3)
    assert (older.gil_locked, older.gil_last_holder) == (14 - 12, 15 - 12)
    assert (newer.gil_locked, newer.gil_last_holder) == (15 - 13, 16 - 13)


def test_a_free_threaded_build_is_refused() -> None:
    with pytest.raises(UsageError, match="no GIL"):
        published(block(0x030D00F0, free_threaded=1))


def test_a_block_without_its_cookie_is_refused() -> None:
    with pytest.raises(UsageError, match="publishes no offsets"):
        published(bytes(512))


def test_a_block_of_an_unknown_version_is_refused() -> None:
    for version in (0x030C00F0, 0x031000F0, 0):
        with pytest.raises(UsageError, match="no version"):
            published(block(version))


def test_a_process_that_is_no_python_is_refused() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with pytest.raises(UsageError, match=r"sleep\) is not a CPython process"):
                GilSampler(process.pid)
        finally:
            process.kill()


def test_a_pid_without_a_process_is_refused() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(UsageError, match="no process"):
        GilSampler(process.pid)


def test_a_process_is_told_from_a_later_one_with_its_pid() -> None:
    with running("UP; time.sleep(60)") as process:
        identity = Identity.of(process.pid)
        assert identity.alive()
        assert not Identity(process.pid, identity.started - 1).alive()
    with pytest.raises(TargetGoneError):
        Identity.of(process.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as somebody else")
def test_a_user_without_the_right_is_told_the_way_out() -> None:
    watcher = (
        "import os, sys; sys.path.insert(0, os.getcwd())\n"
        "from contracts.errors import UsageError\n"
        "from harness.observers.gil.sampler import GilSampler\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: GilSampler(int(sys.argv[1]))\n"
        "except UsageError as error: print(error)\n"
    )
    with running("UP; time.sleep(60)") as process:
        done = subprocess.run(
            [sys.executable, "-c", watcher, str(process.pid)], capture_output=True, text=True, check=True
        )
    assert "may not be looked into: run as root" in done.stdout
    assert done.stdout.count("\n") == 1
