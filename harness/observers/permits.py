"""What this process may do here, tried rather than guessed: capabilities, the container it is in, system calls.

A refusal has several authors, and the remedy depends on which: the kernel's settings, a capability that is missing, or
a container's seccomp filter, which refuses a system call whatever the capabilities. Functions take the root of /proc so
that other machines' answers can be tried.
"""

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path

from harness.observers.gil.memory import PROC, mappings

CAPABILITIES = {"SYS_PTRACE": 19, "SYS_ADMIN": 21, "SYS_NICE": 23, "PERFMON": 38}
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_PERF_ATTR_BYTES = 128
_SOFTWARE, _CPU_CLOCK = 1, 0
_EXCLUDE_KERNEL = 1 << 5 | 1 << 6  # and the hypervisor: what an unprivileged user may ask for
FILTERED = 2


def _status(name: str, proc: Path) -> str:
    try:
        lines = (proc / "self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "")


def capabilities(field: str = "CapEff", proc: Path = PROC) -> frozenset[str]:
    """Give which of CAPABILITIES this process has (`CapEff`), or may ever get (`CapBnd`)."""
    bits = int(_status(field, proc) or "0", 16)
    return frozenset(name for name, bit in CAPABILITIES.items() if bits >> bit & 1)


def seccomp_filtered(proc: Path = PROC) -> bool:
    """Say whether a seccomp filter stands between this process and the kernel."""
    return _status("Seccomp", proc) == str(FILTERED)


def container(proc: Path = PROC, root: Path = Path("/")) -> str | None:
    """Name the kind of container that this process runs in, as far as it leaves traces; None where none is seen."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / "var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    try:
        words = (proc / "1/cgroup").read_text(encoding="utf-8")
    except OSError:
        return None
    return next((name for name in ("kubepods", "docker", "containerd", "lxc", "libpod") if name in words), None)


def read_by_call(pid: int) -> int:
    """Read a byte of a process by process_vm_readv, as py-spy does; return the errno, 0 when it works."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        start = next(mapping.start for mapping in mappings(pid) if mapping.path.startswith("/"))
    except (OSError, StopIteration):
        return errno.EPERM
    byte = ctypes.create_string_buffer(1)
    ours = (ctypes.c_void_p * 2)(ctypes.addressof(byte), 1)
    theirs = (ctypes.c_void_p * 2)(start, 1)
    done = libc.process_vm_readv(pid, ours, ctypes.c_ulong(1), theirs, ctypes.c_ulong(1), ctypes.c_ulong(0))
    return 0 if done == 1 else ctypes.get_errno()


def open_perf_event() -> int:
    """Open a harmless event of this process by perf_event_open; return the errno, 0 when it works."""
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        return errno.ENOSYS
    head = struct.pack("<IIQQQQQ", _SOFTWARE, _PERF_ATTR_BYTES, _CPU_CLOCK, 0, 0, 0, _EXCLUDE_KERNEL)
    attr = ctypes.create_string_buffer(head, _PERF_ATTR_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(
        ctypes.c_long(number), attr, ctypes.c_int(0), ctypes.c_int(-1), ctypes.c_int(-1), ctypes.c_ulong(0)
    )
    if fd < 0:
        return ctypes.get_errno()
    os.close(fd)
    return 0


def setting(name: str, proc: Path = PROC) -> int | None:
    """Read a number of the kernel's settings, as in `kernel/yama/ptrace_scope`; None where there is none."""
    try:
        return int((proc / "sys" / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def way_to(capability: str, proc: Path = PROC, root: Path = Path("/")) -> str:
    """Say how to come by a capability here."""
    kind = container(proc, root)
    if kind is not None:
        return (
            f"start the container with --cap-add {capability} (Kubernetes: securityContext.capabilities.add: "
            f"[{capability}])"
        )
    return f"run as root, or give CAP_{capability}" if os.geteuid() else f"give root CAP_{capability} back"
