"""Under Yama the stack's processes let the harness' observers in, and nobody else."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver import FAST, get, running_stack

from harness.reference.observed import PR_SET_PTRACER, VARIABLE, let_observers_in

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
WITHOUT_PTRACE = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]


@pytest.mark.parametrize(
    ("text", "named"), [("4321", [4321]), ("", []), ("0", []), ("1", []), ("-1", []), ("any", []), (None, [])]
)
def test_only_a_process_that_was_given_is_named(text: str | None, named: list[int]) -> None:
    calls: list[tuple[int, int]] = []
    environ = {} if text is None else {VARIABLE: text}
    let_observers_in(environ, lambda option, value: calls.append((option, value)) or 0)
    assert calls == [(PR_SET_PTRACER, pid) for pid in named]


@pytest.fixture
def restricted() -> Iterator[None]:
    """Have ptrace_scope 1 for a test, if this machine has Yama and lets root set it."""
    if os.geteuid() != 0 or not SCOPE.exists() or shutil.which("setpriv") is None:
        pytest.skip("needs root, setpriv and a kernel with Yama")
    before = SCOPE.read_text()
    try:
        SCOPE.write_text("1\n")
    except OSError as error:
        pytest.skip(f"{SCOPE}: {error.strerror}")
    yield
    SCOPE.write_text(before)


def seen_by_a_sibling(mode: str) -> dict[str, int]:
    """Run observe_sibling.py as one who lacks CAP_SYS_PTRACE, which is what root has and a user has not."""
    script = str(Path(__file__).with_name("observe_sibling.py"))
    done = subprocess.run(
        [*WITHOUT_PTRACE, sys.executable, script, mode],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=120,
        check=True,
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.stack
@pytest.mark.usefixtures("restricted")
def test_observers_may_look_into_a_stack_that_the_harness_launched_and_into_no_other() -> None:
    assert seen_by_a_sibling("named") == {"gil": 0, "py_spy": 0}
    refused = seen_by_a_sibling("unnamed")
    assert refused["gil"] != 0
    assert refused["py_spy"] != 0


LEVERS = {"REFSTACK_RANKS": "2", "REFSTACK_HTTP_FRONTENDS": "2", "REFSTACK_POSTPROC_WORKERS": "1"}


@pytest.mark.stack
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("layout", ["pool", "leader", "thread"])
def test_every_process_of_the_stack_names_the_harness(layout: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    watching = ("strace", "-D", "-f", "-q", "-e", "trace=prctl", "-o", str(trace))
    env = {**FAST, **LEVERS, "REFSTACK_LAYOUT": layout, VARIABLE: str(os.getpid())}
    with running_stack(*watching, **env) as stack:
        pids = {process["pid"] for process in get(stack, "/server_info")["processes"]}
    named = [line.split()[0] for line in trace.read_text().splitlines() if f"PR_SET_PTRACER, {os.getpid()}" in line]
    assert {int(pid) for pid in named} == pids
