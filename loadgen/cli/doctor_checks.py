"""The checks of `loadgen doctor`: each tries one channel on a process, and says how to permit it where it fails."""

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import ToolError, UsageError
from harness.observers import permits
from harness.observers.gil.elf import ElfFile, NotElfError
from harness.observers.gil.exact import library
from harness.observers.gil.memory import PROC
from harness.observers.gil.sampler import GilSampler
from harness.observers.gil_stacks import find_py_spy

_TRIES = 20
_FILES = 4096
UPROBES = Path("/sys/kernel/tracing/uprobe_events")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing the tool can use: whether it may, what was seen, and the way to permit it."""

    name: str
    ok: bool
    seen: str
    remedy: str | None = None


def _waits(pid: int) -> Check:
    name = "GIL waits (loadgen gil, gil.arrow)"
    try:
        with GilSampler(pid, names=False) as sampler:
            seen = sum(sampler.look() is not None for _ in range(_TRIES))
    except UsageError as error:
        return Check(name, ok=False, seen=str(error), remedy=_to_look_in())
    except OSError as error:
        way = "this kernel, or what stands in for it (gVisor), has no /proc/PID/syscall: run outside of it"
        return Check(name, ok=False, seen=f"{error.filename}: {error.strerror}", remedy=way)
    return Check(name, ok=seen > 0, seen=f"{seen} of {_TRIES} looks")


def _to_look_in() -> str:
    scope = permits.setting("kernel/yama/ptrace_scope")
    if "SYS_PTRACE" not in permits.capabilities() and permits.container() is not None:
        return permits.way_to("SYS_PTRACE")
    if scope and os.geteuid():
        return f"kernel.yama.ptrace_scope is {scope}: run as root, or 'sudo sysctl kernel.yama.ptrace_scope=0'"
    return "run as root, or as the user who owns the process"


def _others(_pid: int) -> Check:
    name = "processes not started from here"
    if not (PROC / "1").exists():
        return Check(
            name, ok=False, seen="/proc hides others' processes (hidepid)", remedy="run as root, or remount it"
        )
    scope = permits.setting("kernel/yama/ptrace_scope")
    privileged = "SYS_PTRACE" in permits.capabilities()
    whose = "everybody's" if privileged else "this user's"
    if scope == 3:
        way = "kernel.yama.ptrace_scope 3 cannot be undone: reboot with a lower setting"
        return Check(name, ok=False, seen="kernel.yama.ptrace_scope is 3", remedy=way)
    if scope is None or scope == 0 or privileged:
        seen = "there is no Yama here" if scope is None else f"kernel.yama.ptrace_scope is {scope}"
        return Check(name, ok=True, seen=f"{seen}; {whose}", remedy=None if privileged else _for_all())
    way = "run as root, or 'sudo sysctl kernel.yama.ptrace_scope=0'"
    if permits.container() is not None:
        way = f"{permits.way_to('SYS_PTRACE')}, or on the host 'sysctl kernel.yama.ptrace_scope=0'"
    return Check(name, ok=False, seen=f"kernel.yama.ptrace_scope is {scope}", remedy=way)


def _for_all() -> str:
    return f"for other users' processes: {permits.way_to('SYS_PTRACE')}"


def _real_time(_pid: int) -> Check:
    name = "looks on time on a full machine (real-time priority)"
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        os.sched_setscheduler(0, *before)
    except OSError:
        if "SYS_NICE" in permits.capabilities():
            way = "the control group has no real-time budget: docker run --cpu-rt-runtime, or cpu.rt_runtime_us"
        else:
            way = f"{permits.way_to('SYS_NICE')}, or permit it to the user (ulimit -r 1)"
        return Check(name, ok=False, seen="not permitted", remedy=way)
    return Check(name, ok=True, seen="permitted")


def _stacks(pid: int) -> Check:
    name = "stacks of GIL holders, names of threads (py-spy)"
    try:
        argv = [find_py_spy(), "dump", "--json", "--nonblocking", "--pid", str(pid)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except (ToolError, OSError, subprocess.TimeoutExpired) as error:
        return Check(name, ok=False, seen=str(error))
    if done.returncode == 0:
        return Check(name, ok=True, seen="works")
    last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
    return Check(name, ok=False, seen=last[0][:200], remedy=_why_no_reading(permits.read_by_call(pid)))


def _why_no_reading(number: int) -> str | None:
    """Say what forbids process_vm_readv, by which py-spy reads, if anything does."""
    if number == 0:
        return None
    if number == errno.ENOSYS or (permits.seccomp_filtered() and "SYS_PTRACE" in permits.capabilities()):
        return "a seccomp filter forbids process_vm_readv: permit it and ptrace in the container's profile"
    return _to_look_in()


def _tracing(_pid: int) -> Check:
    name = "exact tracing (loadgen gil --exact: perf, uprobes)"
    if shutil.which("perf") is None:
        return Check(name, ok=False, seen="perf is not installed", remedy="install linux-perf or linux-tools")
    number = permits.open_perf_event()
    if number:
        return Check(name, ok=False, seen=f"perf_event_open: {os.strerror(number)}", remedy=_why_no_perf(number))
    if not os.access(UPROBES, os.W_OK):
        way = "run as root, with tracefs mounted (mount -t tracefs tracefs /sys/kernel/tracing)"
        if permits.container() is not None:
            way += "; in a container that takes a privileged one, or run on the host"
        return Check(name, ok=False, seen=f"{UPROBES} may not be written", remedy=way)
    if not permits.capabilities() & {"PERFMON", "SYS_ADMIN"} and (_paranoid() or 0) > -1:
        seen = f"kernel.perf_event_paranoid is {_paranoid()}, and tracepoints take CAP_PERFMON"
        return Check(name, ok=False, seen=seen, remedy=permits.way_to("PERFMON"))
    return Check(name, ok=True, seen=f"permitted; kernel.perf_event_paranoid is {_paranoid()}")


def _paranoid() -> int | None:
    return permits.setting("kernel/perf_event_paranoid")


def _why_no_perf(number: int) -> str:
    if not permits.capabilities() & {"PERFMON", "SYS_ADMIN"}:
        if permits.seccomp_filtered():
            return f"a seccomp filter lets only those with PERFMON through: {permits.way_to('PERFMON')}"
        return f"kernel.perf_event_paranoid is {_paranoid()}: {permits.way_to('PERFMON')}"
    if number == errno.ENOSYS:
        return "this kernel has no perf events"
    return "a seccomp filter forbids perf_event_open: permit it in the container's profile"


def _symbols(pid: int) -> Check:
    name = "symbols of take_gil and drop_gil, for --exact"
    way = "watch a Python whose symbols were left in: pyenv's have them, and a build of your own"
    try:
        path = library(pid)
        image = ElfFile(os.open(f"/proc/{pid}/root{path}", os.O_RDONLY))
    except (ToolError, OSError, NotElfError) as error:
        return Check(name, ok=False, seen=str(error), remedy=way)
    try:
        found = image.symbols(["take_gil", "drop_gil"])
    finally:
        image.close()
    missing = [one for one in ("take_gil", "drop_gil") if one not in found]
    if missing:
        return Check(name, ok=False, seen=f"{path} has no {' and no '.join(missing)}", remedy=way)
    return Check(name, ok=True, seen=path)


def _files(_pid: int) -> Check:
    name = f"open files: two a watched thread, one a user over HTTP (at least {_FILES})"
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard in (resource.RLIM_INFINITY, -1) or hard >= _FILES
    seen = "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard}"
    return Check(name, ok=enough, seen=seen, remedy=None if enough else "raise the hard limit (ulimit -Hn)")


def _cores(_pid: int) -> Check:
    cores = len(os.sched_getaffinity(0))
    way = None if cores >= 4 else "compare within a sweep only: its parts share cores"
    return Check("a core each for server, load and observers", ok=cores >= 4, seen=f"{cores} cores", remedy=way)


def _surroundings(_pid: int) -> Check:
    """Tell what the others' remedies depend on; it is no channel of its own, and always in order."""
    kind = permits.container()
    has = permits.capabilities()
    parts = [
        "no container seen" if kind is None else f"in a container ({kind})",
        "a seccomp filter" if permits.seccomp_filtered() else "no seccomp filter",
        ", ".join(f"CAP_{name} {'yes' if name in has else 'no'}" for name in permits.CAPABILITIES),
    ]
    return Check("where this runs", ok=True, seen="; ".join(parts))


CHECKS: Sequence[Callable[[int], Check]] = (
    _waits, _others, _real_time, _stacks, _tracing, _symbols, _files, _cores, _surroundings,
)  # fmt: skip
