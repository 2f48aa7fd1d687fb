"""`loadgen doctor`: what may be observed on this machine, and how to permit the rest."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from contracts.errors import ToolError, UsageError
from harness.observers.gil.memory import PROC
from harness.observers.gil.sampler import GilSampler
from harness.observers.gil_stacks import find_py_spy
from loadgen import selftest
from loadgen.ceiling import describe, find_ceiling, tokens_per_s
from loadgen.selftest import Level

FORMAT = 1
_TRIES = 20
CLIENT_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Check:
    """One thing the tool can use: whether it may, what was seen, and the way to permit it."""

    name: str
    ok: bool
    seen: str
    remedy: str | None = None


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "doctor",
        description="Try every channel that the observers use on a process started for it, and say how to permit the "
        "rest. Exit status 1 when the GIL cannot be watched.",
        epilog="example: loadgen doctor --json",
    )
    parser.add_argument(
        "--client", action="store_true",
        help="measure instead how many tokens/s one load process can follow here (some two minutes)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return _client(options) if options.client else _observers(options)


def _client(options: argparse.Namespace) -> int:
    """Measure the client's ceiling; exit status 1 when it is late from the first level on."""

    def measure(users: int) -> Level:
        print(f"{users} users ...", file=sys.stderr, flush=True)
        return selftest.measure(users, CLIENT_SECONDS)

    ceiling = find_ceiling(measure)
    if options.json:
        good, late = (None if one is None else asdict(one) | {"tokens_s": tokens_per_s(one)}
                      for one in (ceiling.good, ceiling.late))  # fmt: skip
        json.dump({"format": FORMAT, "good": good, "late": late}, sys.stdout, indent=1)
        print()
    else:
        print("\n".join(describe(ceiling)))
    return 0 if ceiling.good is not None else 1


def _observers(options: argparse.Namespace) -> int:
    program = "import sys, threading; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as target:
        assert target.stdout is not None
        target.stdout.readline()
        checks = [check(target.pid) for check in CHECKS]
    if options.json:
        json.dump({"format": FORMAT, "checks": [asdict(check) for check in checks]}, sys.stdout, indent=1)
        print()
    else:
        for check in checks:
            print(f"{'yes' if check.ok else 'NO ':3}  {check.name}: {check.seen}")
            if check.remedy is not None:
                print(f"     {check.remedy}")
    return 0 if checks[0].ok else 1


def _waits(pid: int) -> Check:
    name = "GIL waits of a process started from here"
    try:
        with GilSampler(pid, names=False) as sampler:
            seen = sum(sampler.look() is not None for _ in range(_TRIES))
    except UsageError as error:
        return Check(name, ok=False, seen=str(error))
    return Check(name, ok=seen > 0, seen=f"{seen} of {_TRIES} looks")


def _others(_pid: int) -> Check:
    name = "processes not started from here"
    try:
        scope = int((PROC / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return Check(name, ok=True, seen="no Yama; the same user's, and all for root")
    if scope == 0 or (os.geteuid() == 0 and scope < 3):
        return Check(name, ok=True, seen=f"kernel.yama.ptrace_scope is {scope}")
    way = "run as root, or 'sudo sysctl kernel.yama.ptrace_scope=0'"
    return Check(name, ok=False, seen=f"kernel.yama.ptrace_scope is {scope}", remedy=way)


def _real_time(_pid: int) -> Check:
    name = "looks on time on a full machine (real-time priority)"
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        os.sched_setscheduler(0, *before)
    except OSError:
        return Check(name, ok=False, seen="not permitted", remedy="run as root, or give CAP_SYS_NICE")
    return Check(name, ok=True, seen="permitted")


def _stacks(pid: int) -> Check:
    name = "stacks of GIL holders (py-spy)"
    try:
        argv = [find_py_spy(), "dump", "--json", "--nonblocking", "--pid", str(pid)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except (ToolError, OSError, subprocess.TimeoutExpired) as error:
        return Check(name, ok=False, seen=str(error))
    last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
    return Check(name, ok=done.returncode == 0, seen="works" if done.returncode == 0 else last[0][:200])


def _tracing(_pid: int) -> Check:
    name = "exact tracing, for benchmarks/gil_truth.py (perf, uprobes)"
    if shutil.which("perf") is None:
        return Check(name, ok=False, seen="perf is not installed", remedy="install linux-perf or linux-tools")
    if not os.access("/sys/kernel/tracing/uprobe_events", os.W_OK):
        return Check(
            name, ok=False, seen="uprobe_events may not be written", remedy="run as root, with tracefs mounted"
        )
    return Check(name, ok=True, seen="permitted; the Python needs symbols (Debian's has none)")


def _cores(_pid: int) -> Check:
    cores = len(os.sched_getaffinity(0))
    return Check("a core each for server, load and observers", ok=cores >= 4, seen=f"{cores} cores")


CHECKS: tuple[Callable[[int], Check], ...] = (_waits, _others, _real_time, _stacks, _tracing, _cores)
