"""A process and all that it starts: who is watched, who is not and why, and who comes and goes meanwhile."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gil_support import interpreters, running

from contracts.errors import UsageError
from harness.observers.gil.family import ENDED, REPLACED, GilFamily, Member
from harness.observers.gil.memory import TargetGoneError
from harness.observers.gil.roles import RoleChoice
from harness.observers.gil.sampler import GilSampler
from loadgen.cli.main import main

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
TREE = """
import subprocess
parent = os.getpid()
def stay():
    while os.getppid() == parent: time.sleep(0.1)
if os.fork() == 0:
    start('in_fork', stay); stay(); os._exit(0)
other = 'import os, time\\nwhile os.getppid() == %d: time.sleep(0.02)' % parent
"""
STAYING = TREE + "subprocess.Popen([sys.executable, '-c', other]); subprocess.Popen(['sleep', '6']); UP; time.sleep(60)"


def watch(pid: int, enough: Callable[[GilFamily], bool], *roles: str, limit_s: float = 20.0) -> GilFamily:
    """Watch a family until something is so, or for too long."""
    deadline = time.monotonic() + limit_s
    with GilFamily(pid, RoleChoice(roles)) as family:
        for _ in family.looks(None, stop=lambda: enough(family) or time.monotonic() > deadline):
            pass
    assert enough(family), [(member.role.name, member.ended) for member in family.members]
    return family


def named(family: GilFamily, name: str) -> list[Member]:
    return [member for member in family.members if member.role.name == name]


@pytest.mark.parametrize("python", interpreters())
def test_forked_and_started_children_are_watched_and_others_skipped_with_the_reason(python: str) -> None:
    def all_there(family: GilFamily) -> bool:
        return len(family.members) == 3 and len(family.skipped) == 1

    with running(STAYING, python) as process:
        family = watch(process.pid, all_there)
    assert sorted(member.role.name for member in family.members) == ["-c", "-c", "fork of -c"]
    skipped = next(iter(family.skipped.values()))
    assert skipped.role.name == "sleep"
    assert "is not a CPython process" in skipped.reason
    assert all(member.process.parent in (process.pid, os.getpid()) for member in family.members)


def test_the_document_has_each_process_what_was_skipped_and_the_totals(capsys: pytest.CaptureFixture[str]) -> None:
    with running(STAYING) as process:
        assert main(["gil", str(process.pid), "--children", "--duration", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["format", "pid", "duration_s", "processes", "skipped", "totals", "warnings"]
    assert found["pid"] == process.pid
    assert len(found["processes"]) == 3
    for one in found["processes"]:
        assert {"role", "parent", "command", "from_s", "ended", "pid", "samples", "threads"} <= one.keys()
        assert one["ended"] is None
        assert one["samples"] > 20
    names = {thread["name"] for one in found["processes"] for thread in one["threads"]}
    assert "in_fork" in names
    assert found["totals"]["samples"] == sum(one["samples"] for one in found["processes"])
    assert [one["role"] for one in found["skipped"]] == ["sleep"]


def test_there_is_a_table_a_process_and_a_line_of_totals(capsys: pytest.CaptureFixture[str]) -> None:
    with running(STAYING) as process:
        assert main(["gil", str(process.pid), "--children", "--duration", "0.6"]) == 0
    out = capsys.readouterr().out
    assert out.count("GIL of ") == 3
    assert "3 processes" in out
    assert "skipped sleep" in out


def test_a_role_watches_those_that_have_it_alone() -> None:
    with running(STAYING) as process:
        family = watch(process.pid, lambda family: bool(family.members), "fork of .*")
    assert [member.role.name for member in family.members] == ["fork of -c"]


def test_a_role_that_nobody_has_is_refused_with_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with running(STAYING) as process:
        assert main(["gil", str(process.pid), "--role", "EngineCore", "--json"]) == 2
    error = capsys.readouterr().err
    assert "'EngineCore'" in error
    assert f"-c ({process.pid})" in error
    assert "sleep" in error


def test_exact_tracing_of_a_family_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gil", "1", "--exact", "--children"]) == 2
    assert "--children" in capsys.readouterr().err


def test_a_child_that_comes_and_goes_meanwhile_is_counted_with_its_time() -> None:
    program = TREE + "UP; time.sleep(1); subprocess.run([sys.executable, '-c', 'import time; time.sleep(1.5)'])"
    program += "; time.sleep(60)"

    def over(family: GilFamily) -> bool:
        return any(member.ended for member in family.members)

    with running(program) as process:
        family = watch(process.pid, over)
    gone = next(member for member in family.members if member.ended)
    assert gone.ended == ENDED
    assert gone.ended_ns is not None
    assert gone.process.parent == process.pid
    first = min(member.began_ns for member in family.members)
    assert first < gone.began_ns < gone.ended_ns
    assert [member.ended for member in family.members if member is not gone] == [None, None]


def test_a_child_that_replaces_its_program_is_watched_as_what_it_becomes() -> None:
    later = "import time; time.sleep(60)"
    child = f"import os, sys, time; time.sleep(1); os.execv(sys.executable, [sys.executable, '-c', {later!r}, 'later'])"
    program = f"import subprocess\nchild = subprocess.Popen([sys.executable, '-c', {child!r}]); UP; child.wait()"

    with running(program) as process:
        family = watch(process.pid, lambda family: len(family.members) == 3)
        os.kill(family.members[-1].process.pid, 9)
    _, before, after = family.members
    assert before.process.identity == after.process.identity
    assert (before.ended, after.ended) == (REPLACED, None)
    assert "later" in after.process.command


def wait_for_python_below(pid: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(UsageError), GilFamily(pid, RoleChoice([])):
            return
        time.sleep(0.05)


def test_a_shell_that_starts_a_server_is_skipped_and_the_server_watched() -> None:
    code = "import time; time.sleep(60)"
    with subprocess.Popen(["sh", "-c", f"{sys.executable} -c '{code}'; true"]) as shell:
        try:
            wait_for_python_below(shell.pid)
            family = watch(shell.pid, lambda family: bool(family.members))
            assert [one.role.name for one in family.skipped.values()] == ["sh"]
            assert family.members[0].process.parent == shell.pid
            os.kill(family.members[0].process.pid, 9)
        finally:
            shell.kill()


def test_a_family_whose_processes_have_all_ended_ends() -> None:
    with running("UP; time.sleep(0.8)") as process, GilFamily(process.pid, RoleChoice([])) as family:
        looks = sum(1 for _ in family.looks(60))
    assert 0 < looks < 1000
    assert family.members[0].ended == ENDED


def reuse(pid: int) -> "subprocess.Popen[bytes]":
    """Start a Python that gets this pid; skips where the kernel does not let us choose."""
    for _ in range(50):
        try:
            LAST_PID.write_text(str(pid - 1), encoding="ascii")
        except OSError as error:
            pytest.skip(f"the next pid cannot be chosen here: {error.strerror}")
        again = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.01)"])
        if again.pid == pid:
            return again
        again.kill()
        again.wait()
    pytest.skip("others were quicker to take the pid")


def test_a_pid_that_is_used_again_is_not_taken_for_the_process_that_had_it() -> None:
    with (
        running("start('a', spin); UP; time.sleep(60)") as process,
        GilSampler(process.pid) as sampler,
        GilFamily(process.pid, RoleChoice([])) as family,
    ):
        assert sampler.look() is not None
        process.kill()
        process.wait()
        with reuse(process.pid) as again:
            try:
                assert not sampler.identity.alive()
                with pytest.raises(TargetGoneError):
                    sampler.look()
                assert sum(1 for _ in family.looks(30)) == 0
            finally:
                again.kill()
    assert [member.ended for member in family.members] == [ENDED]
