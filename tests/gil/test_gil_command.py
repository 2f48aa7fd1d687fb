"""`loadgen gil`: the JSON that programs rely on, one line when it cannot, and the sampler as a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gil_support import running

from analysis.gil.looks import load_gil
from loadgen.cli.main import main

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def test_the_document_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    with running("start('a', spin); start('b', spin); UP; time.sleep(60)") as process:
        assert main(["gil", str(process.pid), "--duration", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == [
        "format", "pid", "duration_s", "samples", "missed", "switches_per_s", "gil_held_fraction", "threads",
        "long_holds", "warnings",
    ]  # fmt: skip
    assert document["format"] == 1
    assert document["pid"] == process.pid
    threads = {thread["name"]: thread for thread in document["threads"]}
    assert {"a", "b", "MainThread"} <= threads.keys()
    for thread in threads.values():
        assert list(thread) == [
            "tid", "name", "gil_wait_fraction", "gil_wait_error", "gil_held_fraction", "blame"
        ]  # fmt: skip
    assert list(threads["a"]["blame"][0]) == ["tid", "name", "function", "fraction"]
    assert sum(part["fraction"] for part in threads["a"]["blame"]) == pytest.approx(1)


def test_without_a_terminal_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with running("start('spinner', spin); UP; time.sleep(60)") as process:
        assert main(["gil", str(process.pid), "--duration", "0.5"]) == 0
    out = capsys.readouterr().out
    assert f"GIL of process {process.pid}" in out
    assert "spinner" in out


KEEPER = """
import ctypes
usleep = ctypes.PyDLL(None).usleep
def keep():
    while True:
        usleep(60_000)
        time.sleep(0.02)
start('keeper', keep); start('spinner', spin); UP; time.sleep(60)
"""


def test_a_call_that_keeps_the_gil_is_found_among_the_long_holds(capsys: pytest.CaptureFixture[str]) -> None:
    with running(KEEPER) as process:
        assert main(["gil", str(process.pid), "--duration", "1.5", "--json"]) == 0
        holds = json.loads(capsys.readouterr().out)["long_holds"]
        assert main(["gil", str(process.pid), "--duration", "1"]) == 0
        table = capsys.readouterr().out
    assert (holds["switch_interval_ms"], holds["switch_interval_from"]) == (5.0, "the process")
    (kept,) = [one for one in holds["by_function"] if one["name"] == "keeper"]
    assert kept["function"].startswith("keep (")
    assert kept["longest_ms"] > 20
    assert kept["longest_at_most_ms"] > 60
    assert kept["waited_fraction"] > 0.5
    assert "held for longer than the switch interval (5 ms)" in table
    assert "keeper: keep (" in table


@pytest.mark.parametrize("pid", ["abc", "-3", "0", "4194999"])
def test_what_is_no_process_is_refused_in_one_line(pid: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gil", "--", pid]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_target_that_ends_meanwhile_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with running("UP; time.sleep(1.0)") as process:
        assert main(["gil", str(process.pid), "--duration", "20", "--json"]) == 0
    codes = [warning["code"] for warning in json.loads(capsys.readouterr().out)["warnings"]]
    assert "observer_failed" in codes


@pytest.mark.skipif(
    os.geteuid() != 0 and SCOPE.exists() and SCOPE.read_text().strip() != "0",
    reason="ptrace_scope lets only an ancestor look",
)
def test_the_process_of_its_own_writes_rows_until_it_is_told_to_stop(tmp_path: Path) -> None:
    out = tmp_path / "gil.arrow"
    argv = [sys.executable, "-m", "harness.observers.gil"]
    with running("start('a', spin); UP; time.sleep(60)") as target:
        with subprocess.Popen(
            [*argv, str(target.pid), "--out", str(out)], stdout=subprocess.PIPE, text=True
        ) as sampler:
            deadline = time.monotonic() + 20
            while (not out.exists() or len(load_gil(out)) < 100) and time.monotonic() < deadline:
                time.sleep(0.1)
            sampler.send_signal(signal.SIGINT)
            told, _ = sampler.communicate(timeout=20)
        assert sampler.returncode == 0
    said = json.loads(told)
    rows = load_gil(out)
    assert said["looks"] == len(rows) >= 100
    assert said["ended"] is None
    assert rows[-1].t_ns > rows[0].t_ns
    assert "a" in [name for row in rows for name in row.names]


def test_the_doctor_names_every_channel_and_watches_a_process_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == 1
    assert document["checks"][0]["ok"]
    assert all(check["seen"] for check in document["checks"])
