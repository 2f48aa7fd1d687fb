"""Reading another process: its memory, its mappings, and whether it is still the process it was."""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from contracts.errors import UsageError

PROC = Path("/proc")
_U64 = struct.Struct("<Q")


class TargetGoneError(Exception):
    """The target ended, or replaced its program: nothing more can be read."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps; `path` is empty for memory without a file."""

    start: int
    end: int
    offset: int
    path: str


@dataclass(frozen=True, slots=True)
class Identity:
    """A pid and the boot-relative tick at which it was started: together they name one process, for good."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int, proc: Path = PROC) -> "Identity":
        """Identify a process. Raises TargetGoneError when there is no such process, or only its zombie."""
        state, started = _stat(pid, proc)
        if state in "ZX":
            raise TargetGoneError(f"process {pid} has ended")
        return cls(pid, started)

    def alive(self, proc: Path = PROC) -> bool:
        try:
            return Identity.of(self.pid, proc) == self
        except TargetGoneError:
            return False


def _stat(pid: int, proc: Path) -> tuple[str, int]:
    try:
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError as error:
        raise TargetGoneError(f"there is no process {pid}") from error
    return fields[0], int(fields[19])


def mappings(pid: int) -> list[Mapping]:
    """Read /proc/PID/maps. Raises PermissionError or TargetGoneError."""
    return list(_mappings(pid))


def _mappings(pid: int) -> Iterator[Mapping]:
    try:
        text = (PROC / str(pid) / "maps").read_text(errors="surrogateescape")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetGoneError(f"there is no process {pid}") from error
    for line in text.splitlines():
        parts = line.split(None, 5)
        start, _, end = parts[0].partition("-")
        yield Mapping(int(start, 16), int(end, 16), int(parts[2], 16), parts[5] if len(parts) > 5 else "")


def open_image(pid: int, mapping: Mapping) -> int:
    """Open the file behind a mapping, even one that was replaced where the kernel permits. Raises OSError."""
    name = mapping.path.removesuffix(" (deleted)")
    try:
        return os.open(f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}", os.O_RDONLY)
    except OSError:
        if name != mapping.path:
            raise
        return os.open(f"/proc/{pid}/root{name}", os.O_RDONLY)


class TargetMemory:
    """The memory of a process, by /proc/PID/mem: one system call a read, and the target is not stopped.

    The descriptor belongs to the program that ran when it was opened: after an exec or the end reads come back empty.
    """

    def __init__(self, pid: int) -> None:
        try:
            self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise UsageError(f"there is no process {pid}") from error
        except PermissionError as error:
            raise UsageError(denied(pid)) from error

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes. Raises TargetGoneError at the target's end, ValueError where nothing is mapped."""
        try:
            data = os.pread(self._fd, size, address)
        except (OSError, OverflowError) as error:
            raise ValueError(f"nothing to read at {address:#x}") from error
        if len(data) != size:
            if not data:
                raise TargetGoneError("the target's memory is gone")
            raise ValueError(f"only {len(data)} of {size} bytes at {address:#x}")
        return data

    def u64(self, address: int) -> int:
        return int(_U64.unpack(self.read(address, 8))[0])

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def denied(pid: int) -> str:
    """Say why a process may not be looked into, and the way out that fits this machine."""
    try:
        scope = int((PROC / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    if scope == 1 and os.geteuid() != 0:
        way = "run as root, or 'sudo sysctl kernel.yama.ptrace_scope=0', or have the target call prctl(PR_SET_PTRACER)"
    elif scope >= 2:
        way = f"kernel.yama.ptrace_scope is {scope}: run as root with CAP_SYS_PTRACE" + (
            "" if scope == 2 else ", after a reboot with a lower setting (3 cannot be undone)"
        )
    elif os.geteuid() == 0:
        way = "give this container CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
    else:
        way = "run as root, or as the user who owns it"
    return f"process {pid} may not be looked into: {way}"
