"""`loadgen doctor`: what is permitted here and how to permit the rest; refusals are real, or read from files."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from gil_support import running

from harness.observers import permits
from loadgen.cli.main import main

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")
DOCTOR = "import sys; from loadgen.cli.main import main; sys.exit(main(['doctor', '--json', *sys.argv[1:]]))"
FORBID = """
import ctypes, struct
def forbid(*numbers):
    steps = [struct.pack("HBBI", 0x20, 0, 0, 0)]
    for number in numbers:
        steps += [struct.pack("HBBI", 0x15, 0, 1, number), struct.pack("HBBI", 0x06, 0, 0, 0x00050001)]
    steps.append(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))
    code = ctypes.create_string_buffer(b"".join(steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
"""


def said(argv: list[str]) -> tuple[int, dict[str, dict[str, object]]]:
    """Run a doctor; give its status, and its checks by the beginning of their names."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    return done.returncode, {name.split(" (")[0].split(",")[0]: check for name, check in checks.items()}


def status(folder: Path, **fields: str) -> Path:
    (folder / "self").mkdir(parents=True)
    (folder / "self/status").write_text("".join(f"{name}:\t{value}\n" for name, value in fields.items()))
    return folder


def test_capabilities_are_read_from_their_bits(tmp_path: Path) -> None:
    proc = status(tmp_path, CapEff="0000000000080000", CapBnd="0000004000000000", Seccomp="2")
    assert permits.capabilities(proc=proc) == {"SYS_PTRACE"}
    assert permits.capabilities("CapBnd", proc) == {"PERFMON"}
    assert permits.seccomp_filtered(proc)


def test_no_status_is_no_capability(tmp_path: Path) -> None:
    assert permits.capabilities(proc=tmp_path) == frozenset()
    assert not permits.seccomp_filtered(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "kind"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("proc/1/cgroup", "0::/kubepods/burstable/pod1/x", "kubepods"),
        ("proc/1/cgroup", "0::/init.scope", None),
    ],
)
def test_a_container_is_told_by_its_traces(tmp_path: Path, file: str, text: str, kind: str | None) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert permits.container(tmp_path / "proc", tmp_path) == kind


def test_the_way_to_a_capability_is_the_containers_in_a_container(tmp_path: Path) -> None:
    (tmp_path / ".dockerenv").touch()
    assert "--cap-add SYS_PTRACE" in permits.way_to("SYS_PTRACE", tmp_path, tmp_path)
    assert "CAP_SYS_PTRACE" in permits.way_to("SYS_PTRACE", tmp_path / "none", tmp_path / "none")


def test_the_doctor_tries_the_process_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with running("UP; time.sleep(60)") as process:
        assert main(["doctor", "--json", "--pid", str(process.pid)]) == 0
    assert json.loads(capsys.readouterr().out)["checks"][0]["ok"]


def test_the_doctor_says_that_a_named_process_is_no_python(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert main(["doctor", "--pid", str(process.pid)]) == 1
        process.kill()
    assert "is not a CPython process" in capsys.readouterr().out


def test_a_pid_without_a_process_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--pid", "4194999"]) == 2
    assert "no process 4194999" in capsys.readouterr().err


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter's numbers are x86-64's")
def test_a_seccomp_filter_is_named_as_what_forbids() -> None:
    readv, perf_event_open = 310, 298
    tried = "import os; from harness.observers.permits import read_by_call; assert read_by_call(os.getpid()) == 1\n"
    _, checks = said([sys.executable, "-c", f"{FORBID}forbid({readv}, {perf_event_open})\n{tried}{DOCTOR}"])
    assert "a seccomp filter" in str(checks["where this runs"]["seen"])
    assert checks["GIL waits"]["ok"] or os.geteuid() != 0, "it reads another way"
    tracing = checks["exact tracing"]
    if "perf is not" not in str(tracing["seen"]):
        assert "seccomp" in str(tracing["remedy"])


@ROOT_ONLY
def test_a_user_without_rights_is_told_how_to_come_by_them() -> None:
    code = (
        "import json.encoder, os, sys; from loadgen.cli.main import build_parser\n"
        "options = build_parser('doctor').parse_args(['doctor', '--json', '--pid', sys.argv[1]])\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(options.run(options))\n"
    )
    with running("UP; time.sleep(60)") as process:
        returned, checks = said([sys.executable, "-c", code, str(process.pid)])
    assert returned == 1
    for name in ("GIL waits", "looks on time on a full machine"):
        assert not checks[name]["ok"]
        assert checks[name]["remedy"]
    assert "CAP_SYS_PTRACE no" in str(checks["where this runs"]["seen"])


def test_perf_events_and_reading_are_tried_without_harm() -> None:
    assert permits.open_perf_event() >= 0
    assert permits.read_by_call(os.getpid()) == 0
