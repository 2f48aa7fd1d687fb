"""Processes and who started whom, read from /proc."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.masking import mask_argv
from harness.observers.gil.memory import PROC, Identity, TargetGoneError

_TITLE_CHARS = 120


@dataclass(frozen=True, slots=True)
class Process:
    """A process as it is now: who it is for good, who started it, and by which command (or the title that it set)."""

    identity: Identity
    parent: int
    command: tuple[str, ...]
    comm: str

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def title(self) -> str:
        """Its command line in one piece, for people: masked, and cut where it is long."""
        text = " ".join(mask_argv(self.command)) or f"[{self.comm}]"
        return text if len(text) <= _TITLE_CHARS else text[: _TITLE_CHARS - 3] + "..."


def read_process(pid: int, proc: Path = PROC) -> Process:
    """Read a process. Raises TargetGoneError when there is none, or only its zombie."""
    identity = Identity.of(pid, proc)
    try:
        comm, _, fields = (proc / str(pid) / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
        words = (proc / str(pid) / "cmdline").read_bytes().rstrip(b"\0 ").split(b"\0")
    except OSError as error:
        raise TargetGoneError(f"there is no process {pid}") from error
    command = tuple(word.decode("utf-8", "replace") for word in words if word)
    return Process(identity, int(fields.split()[1]), command, comm)


def has_program(pid: int) -> bool:
    """Say whether a process runs a program: one that is just ending has none any more."""
    try:
        os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - may be unreadable text
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def variables(pid: int, names: Iterable[str], proc: Path = PROC) -> dict[str, str]:
    """Read these variables of the environment that a process was started with; none where that is not permitted."""
    wanted = {name.encode() for name in names}
    found = {}
    with contextlib.suppress(OSError):
        for entry in (proc / str(pid) / "environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name in wanted:
                found[name.decode()] = value.decode("utf-8", "replace")
    return found


def parents(proc: Path = PROC) -> Iterator[tuple[int, int]]:
    """Yield (pid, parent) of every process, one file a step, so that a reader may do something else in between."""
    for entry in os.listdir(proc):  # noqa: PTH208 - names alone
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = (proc / entry / "stat").read_text(errors="replace")
                yield int(entry), int(stat.rpartition(")")[2].split()[1])


def descendants(roots: Iterable[int], parent_of: Mapping[int, int]) -> list[int]:
    """Give the roots and all that they started, themselves or through others, parents first."""
    children: dict[int, list[int]] = {}
    for pid, parent in parent_of.items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, None] = {}
    left = list(roots)
    while left:
        pid = left.pop(0)
        if pid not in found:
            found[pid] = None
            left += sorted(children.get(pid, ()))
    return list(found)
