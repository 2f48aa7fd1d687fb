import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.gil.looks import load_gil
from contracts.arrow import read_table
from contracts.clock import now_ns
from contracts.folder import CellFolder
from contracts.records import HOST
from harness.observers.gil import recorder as recorder_module
from harness.observers.gil.recorder import GilWaitRecorder
from harness.observers.gil_stacks import GilStackRecorder
from harness.observers.host import HostSampler
from harness.observers.ticker import Ticker
from harness.observing import CellObservers
from harness.placement import Placement
from harness.process import Guard
from harness.stacks.base import ServerView

SPINNER = """
import threading, time
def spin():
    while True: pass
threading.Thread(target=spin, name="spinner", daemon=True).start()
threading.Thread(target=time.sleep, args=(60,), name="sleeper", daemon=True).start()
print("up", flush=True); time.sleep(60)
"""


@pytest.fixture
def spinner() -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen([sys.executable, "-c", SPINNER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_spinning_thread_is_seen_holding_the_gil_and_a_sleeper_is_not(
    spinner: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    with Guard() as guard:
        recorder = GilStackRecorder(
            guard, spinner.pid, tmp_path / "stacks.raw", tmp_path / "log", duration_s=2, cpus=(), rate_hz=50
        )
        stacks, doubts = recorder.finish()
    assert doubts == ()
    assert stacks is not None
    assert stacks.complete
    assert stacks.attempts == 100
    assert stacks.samples > stacks.attempts / 2
    text = (tmp_path / "stacks.raw").read_text()
    assert "spinner" in text
    assert "sleeper" not in text


def test_without_a_fixed_duration_the_recorder_is_stopped_and_its_attempts_are_an_estimate(
    spinner: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    with Guard() as guard:
        recorder = GilStackRecorder(
            guard, spinner.pid, tmp_path / "stacks.raw", tmp_path / "log", duration_s=None, cpus=(), rate_hz=50
        )
        time.sleep(1.5)
        stacks, doubts = recorder.finish()
    assert doubts == ()
    assert stacks is not None
    assert not stacks.complete
    assert stacks.attempts >= stacks.samples + stacks.errors > 0


def test_a_target_that_is_gone_is_a_doubt_and_not_a_failure(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with Guard() as guard:
        recorder = GilStackRecorder(guard, gone.pid, tmp_path / "s", tmp_path / "log", duration_s=1, cpus=())
        stacks, doubts = recorder.finish()
    assert stacks is None
    assert [doubt.code for doubt in doubts] == ["no_gil_samples"]


def test_the_host_sampler_names_threads_and_its_counters_never_fall(
    spinner: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    sampler = HostSampler(tmp_path / "host.arrow", every_s=60)
    sampler.watch({"server": spinner.pid, "gone": 2**22 - 3}, {spinner.pid: "MainThread"})
    sampler.sample()
    time.sleep(0.2)
    sampler.sample()
    sampler.start()
    sampler.stop()
    table = read_table(tmp_path / "host.arrow", HOST).to_pandas()
    assert set(table["role"]) == {"server"}
    assert "MainThread" in set(table["name"])
    whole = table[table["tid"].isna()]
    assert whole["cpu_ns"].is_monotonic_increasing
    assert whole["cpu_ns"].iloc[-1] > whole["cpu_ns"].iloc[0]
    assert (whole["rss_bytes"] > 0).all()


def test_the_wait_sampler_is_at_work_when_the_window_opens(spinner: "subprocess.Popen[str]", tmp_path: Path) -> None:
    view = ServerView({"server": spinner.pid}, spinner.pid)
    with Guard() as guard:
        observers = CellObservers(guard, CellFolder(tmp_path), Placement(), writes_steps=False, observe=True)
        observers.begin(view, [])
        observers.warm_up(view)
        deadline = time.monotonic() + 60
        while observers.gil_pulse() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        opened_ns = now_ns()
        observers.open_window(view, None)
        time.sleep(1.0)
        observers.close_window()
        observers.finish()
        observers.stop()
    assert observers.doubts == []
    looks = [row.t_ns for row in load_gil(tmp_path / "gil.arrow")]
    assert looks[0] < opened_ns < looks[-1]


def test_a_wait_sampler_that_never_got_to_begin_is_told(spinner: "subprocess.Popen[str]", tmp_path: Path) -> None:
    with Guard() as guard:
        recorder = GilWaitRecorder(guard, spinner.pid, tmp_path / "gil.arrow", tmp_path / "log", cpus=())
        (doubt,) = recorder.finish()
    assert doubt.code == "no_gil_samples"
    assert "had not begun" in doubt.detail


def test_a_wait_sampler_without_a_look_is_told(
    spinner: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = '{"looks": 0, "missed": 7, "threads": 3, "python": "3.11.7", "ended": null}'
    monkeypatch.setattr(recorder_module, "sampler_argv", lambda *_: ["echo", said])
    with Guard() as guard:
        recorder = GilWaitRecorder(guard, spinner.pid, tmp_path / "gil.arrow", tmp_path / "log", cpus=())
        recorder._child.popen.wait()
        (doubt,) = recorder.finish()
    assert doubt.code == "no_gil_samples"
    assert "missed 7" in doubt.detail


GUARDED = """
import subprocess, sys, time
from pathlib import Path
from harness.process import Child, Guard
guard = Guard()
folder = Path(sys.argv[1]) / "sockets"; folder.mkdir()
guard.watch_folder(folder)
child = Child(guard, ["sh", "-c", "trap '' TERM; sleep 100 & sleep 100"], log=Path(sys.argv[1]) / "log")
print(child.pid, flush=True)
time.sleep(100)
"""


def test_a_killed_harness_leaves_no_process_group_and_no_folder(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", GUARDED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    group = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and (_group_alive(group) or (tmp_path / "sockets").exists()):
        time.sleep(0.05)
    assert not _group_alive(group)
    assert not (tmp_path / "sockets").exists()


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_guard_that_was_told_goodbye_ends_nothing(tmp_path: Path) -> None:
    with Guard() as guard:
        survivor = subprocess.Popen(["sleep", "60"], start_new_session=True)
        guard.watch_group(survivor.pid)
    assert survivor.poll() is None
    survivor.send_signal(signal.SIGKILL)
    survivor.wait()


def test_an_observer_that_cannot_write_ends_with_a_doubt_and_no_traceback() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        raise OSError(28, "No space left on device")

    ticker = Ticker("tail", work, 0.001)
    ticker.start()
    (doubt,) = ticker.stop(lambda: None)
    assert doubt.code == "observer_failed"
    assert "No space left" in doubt.detail
    assert calls == [1]
