"""What a process is within a stack, told from its command line, and which processes a `--role` means."""

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest

from contracts.errors import UsageError
from harness.observers.gil.memory import Identity
from harness.observers.gil.processes import Process, descendants, read_process
from harness.observers.gil.roles import Role, RoleChoice, role_of

PYTHON = "/usr/bin/python3.12"
SPAWN = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"


@contextlib.contextmanager
def running_cat(**env: str) -> Iterator[int]:
    """Give the pid of a program that runs: before that, a process has no command line and no environment."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **env}) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"running\n")
        child.stdin.flush()
        child.stdout.readline()
        yield child.pid


def process(*command: str, pid: int = 2**22) -> Process:
    return Process(Identity(pid, 0), 1, command, "comm")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ([PYTHON, "-m", "harness.reference.serve", "--port", "0"], "proxy"),
        ([PYTHON, "/venv/bin/loadgen", "serve"], "proxy"),
        ([PYTHON, "-m", "harness.reference.worker"], "rank0"),
        ([PYTHON, "-m", "harness.reference.leader"], "rank0"),
        ([PYTHON, "-m", "harness.reference.ranks.rank", "2"], "rank2"),
        ([PYTHON, "-m", "harness.reference.frontend.process", "1"], "frontend1"),
        ([PYTHON, "-m", "harness.reference.postproc.process", "0"], "postproc0"),
        ([PYTHON, "/usr/local/bin/trtllm-serve", "model", "--port", "8000"], "proxy"),
        ([PYTHON, "/usr/local/bin/trtllm-serve", "disaggregated", "-c", "disagg.yaml"], "orchestrator"),
        ([PYTHON, "-m", "mpi4py.futures.server"], "mpi_worker"),
        (["VLLM::EngineCore_DP0"], "EngineCore_DP0"),
        (["VLLM::Worker_TP0"], "Worker_TP0"),
        ([PYTHON, "/usr/local/bin/vllm", "serve", "model"], "APIServer"),
        ([PYTHON, "/usr/local/bin/vllm", "serve", "model", "--api-server-count=4"], "vllm launcher"),
        (["sglang::scheduler_TP0"], "scheduler_TP0"),
        (["sglang::detokenizer"], "detokenizer"),
        ([PYTHON, "-m", "sglang.launch_server", "--model-path", "m"], "tokenizer_manager"),
        ([PYTHON, "-c", SPAWN, "--multiprocessing-fork"], "multiprocessing"),
        ([PYTHON, "-X", "dev", "-u", "train.py"], "train.py"),
        ([PYTHON, "-Im", "http.server"], "http.server"),
        (["/bin/bash", "start.sh"], "bash"),
        (["python3"], "python3"),
        ([], "comm"),
    ],
)
def test_a_role_follows_from_the_command(command: list[str], name: str) -> None:
    assert role_of(process(*command)).name == name


def test_an_mpi_workers_rank_comes_from_its_environment() -> None:
    with running_cat(OMPI_COMM_WORLD_RANK="3") as pid:
        role = role_of(process(PYTHON, "-m", "mpi4py.futures.server", pid=pid))
    assert role.name == "rank3"
    assert RoleChoice(["mpi_worker"]).wants(role)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("EngineCore_DP0", True),
        ("enginecore", True),
        ("VLLM::EngineCore_DP0", True),
        ("EngineCore_DP[01]", True),
        ("Engine", False),
        ("EngineCore_DP", False),
    ],
)
def test_a_role_is_chosen_by_its_name_with_or_without_number_or_by_an_expression(text: str, *, wanted: bool) -> None:
    assert RoleChoice([text]).wants(role_of(process("VLLM::EngineCore_DP0"))) is wanted


def test_one_rank_is_not_the_tenth() -> None:
    choice = RoleChoice(["rank1"])
    assert choice.wants(Role("rank1"))
    assert not choice.wants(Role("rank10"))


def test_what_is_no_expression_is_refused() -> None:
    with pytest.raises(UsageError, match="neither a name nor a regular expression"):
        RoleChoice(["rank["])


def test_a_title_hides_secrets() -> None:
    assert "hunter2" not in process(PYTHON, "serve.py", "--api-key", "hunter2").title


def test_descendants_come_after_their_parents() -> None:
    assert descendants([2], {2: 1, 5: 2, 9: 5, 7: 2, 8: 1}) == [2, 5, 7, 9]


def test_a_process_is_read_with_its_parent_and_command() -> None:
    with running_cat() as pid:
        found = read_process(pid)
    assert (found.pid, found.parent, found.command) == (pid, os.getpid(), ("cat",))
    assert found.title == "cat"
