"""Finding the GIL of a process: the runtime's symbol, the main interpreter, the GIL struct; every step is checked."""

import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import UsageError
from harness.observers.gil.elf import ElfFile, NotElfError
from harness.observers.gil.memory import (
    Mapping,
    TargetGoneError,
    TargetMemory,
    denied,
    mappings,
    open_image,
)
from harness.observers.gil.offsets import (
    COUNT_PLACES,
    NEWEST,
    PUBLISHED_BYTES,
    PUBLISHED_SINCE,
    TABLE,
    GilShape,
    Offsets,
    gil_shape,
    published,
)
from harness.observers.gil.tasks import native_ids

MAX_THREADS = 20_000
MAX_INTERPRETERS = 256
_MAX_INTERVAL_US = 60_000_000
_SCAN_BYTES = 4096
_MONOTONIC_FLAG = 2
_GIL_HEAD = struct.Struct("<QQiIQ")
_NEWEST = "{}.{}".format(*NEWEST)
_GLIBC = re.compile(rb"stable release version (\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class GilLayout:
    """Where a process keeps its GIL, and how to read it."""

    pid: int
    version: tuple[int, int, int]
    runtime: int
    interpreter: int
    gil: int
    offsets: Offsets
    shape: GilShape


@dataclass(frozen=True, slots=True)
class _Runtime:
    """A loaded image that has the runtime in it."""

    image: str
    machine: int
    address: int
    version_address: int | None


@dataclass(frozen=True, slots=True)
class _Image:
    """What a file says, whatever process has loaded it: where in it the runtime is, and which glibc it is."""

    machine: int
    runtime: int | None
    version: int | None
    first_page: int | None
    glibc: tuple[int, int]

    def bias(self, lowest_mapping: int) -> int:
        return 0 if self.first_page is None else lowest_mapping - self.first_page


_IMAGES: dict[tuple[int, ...], _Image | None] = {}
"""Files read before, by what tells them apart: the processes of one stack share them. None: no ELF file."""


def locate(pid: int, memory: TargetMemory) -> GilLayout:
    """Find the main interpreter's GIL. Raises UsageError, in one sentence, where that is not possible."""
    try:
        maps = mappings(pid)
    except PermissionError as error:
        raise UsageError(denied(pid)) from error
    except TargetGoneError as error:
        raise UsageError(str(error)) from error
    if not maps:
        raise UsageError(f"process {pid} has no memory of its own: it has ended, or is a thread of the kernel")
    runtime = _find_runtime(pid, maps)
    try:
        version = _version(pid, memory, runtime)
        offsets = _offsets(pid, memory, runtime, version)
        glibc = _glibc(pid, maps)
        interpreter = _main_interpreter(pid, memory, runtime.address, offsets)
        gil = _gil(pid, memory, runtime.address, interpreter, offsets)
        shape = gil_shape(runtime.machine, _count_place(memory, gil, glibc, gil_shape(runtime.machine, None)))
    except TargetGoneError as error:
        raise UsageError(f"process {pid} ended while it was being looked into") from error
    return GilLayout(pid, version, runtime.address, interpreter, gil, offsets, shape)


def _find_runtime(pid: int, maps: list[Mapping]) -> _Runtime:
    """Look in the program, then in what is called libpython, then in every other library."""
    program = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - a name to compare, " (deleted)" included
    images: dict[str, Mapping] = {}
    for mapping in maps:
        if mapping.path.startswith("/") and mapping.offset == 0:
            images.setdefault(mapping.path, mapping)

    def rank(path: str) -> tuple[bool, bool]:
        return path != program, "libpython" not in path

    unreadable = ""
    for path in sorted(images, key=rank):
        if path != program and ".so" not in path:
            continue
        try:
            image = _read_image(open_image(pid, images[path]))
        except OSError as error:
            unreadable = unreadable or f"{path}: {error.strerror}"
            continue
        if image is not None and image.runtime is not None:
            bias = image.bias(images[path].start)
            told = None if image.version is None else image.version + bias
            return _Runtime(path, image.machine, image.runtime + bias, told)
    if unreadable:
        raise UsageError(
            f"process {pid}: no Python found, but a part of it cannot be read ({unreadable}): if it runs in a "
            "container or its files were replaced, run as root on the host"
        )
    raise UsageError(f"process {pid} ({Path(program).name}) is not a CPython process")


def _read_image(fd: int) -> _Image | None:
    """Read an image through a descriptor that this takes over; None when it is no ELF file."""
    stat = os.fstat(fd)
    key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if key in _IMAGES:
        os.close(fd)
        return _IMAGES[key]
    found = None
    with suppress(NotElfError):
        image = ElfFile(fd)
        try:
            symbols = image.symbols(["_PyRuntime", "Py_Version"])
            release = _GLIBC.search(image.find(b"GNU C Library", 200) or b"")
            found = _Image(
                image.machine,
                symbols.get("_PyRuntime", image.section(".PyRuntime")),
                symbols.get("Py_Version"),
                image.first_page,
                (int(release[1]), int(release[2])) if release else (0, 0),
            )
        finally:
            image.close()
    _IMAGES[key] = found
    return found


def _version(pid: int, memory: TargetMemory, runtime: _Runtime) -> tuple[int, int, int]:
    """Read `Py_Version`, which there is since 3.11; a build without that symbol may still publish its version."""
    try:
        if runtime.version_address is not None:
            word = memory.u64(runtime.version_address)
        else:
            head = memory.read(runtime.address, 16)
            word = struct.unpack_from("<Q", head, 8)[0] if head[:8] == b"xdebugpy" else 0
    except ValueError as error:
        raise UsageError(f"process {pid}: its runtime cannot be read: {error}") from error
    version = (word >> 24 & 0xFF, word >> 16 & 0xFF, word >> 8 & 0xFF)
    if version < (3, 11, 0):
        raise UsageError(f"process {pid} runs CPython 3.10 or older; the GIL can be watched in 3.11 to {_NEWEST}")
    if version[:2] > NEWEST:
        raise UsageError(f"process {pid} runs CPython {version[0]}.{version[1]}; this release knows 3.11 to {_NEWEST}")
    return version


def _offsets(pid: int, memory: TargetMemory, runtime: _Runtime, version: tuple[int, int, int]) -> Offsets:
    if version[:2] < PUBLISHED_SINCE:
        return TABLE[version[:2]]
    try:
        return published(memory.read(runtime.address, PUBLISHED_BYTES))
    except UsageError as error:
        raise UsageError(f"process {pid}: {error}") from error


def _glibc(pid: int, maps: list[Mapping]) -> tuple[int, int]:
    """Return the version of the target's glibc. Raises UsageError for any other C library."""
    for mapping in maps:
        name = Path(mapping.path).name
        if mapping.offset == 0 and name.startswith(("libc.so.6", "libc-2.")):
            try:
                image = _read_image(open_image(pid, mapping))
            except OSError:
                return (0, 0)
            return (0, 0) if image is None else image.glibc
    raise UsageError(f"process {pid} does not use glibc (musl, or linked statically): its locks have another layout")


def thread_states(memory: TargetMemory, interpreter: int, offsets: Offsets) -> dict[int, int]:
    """Walk the interpreter's list of threads: thread state -> native thread id.

    The target runs meanwhile, so the list may be cut short; what does not point back to the interpreter ends it.
    """
    found: dict[int, int] = {}
    try:
        state = memory.u64(interpreter + offsets.threads_head)
        while state and state not in found and len(found) < MAX_THREADS:
            if memory.u64(state + offsets.thread_interp) != interpreter:
                break
            found[state] = memory.u64(state + offsets.native_thread_id)
            state = memory.u64(state + offsets.thread_next)
    except ValueError:
        pass
    return found


def _main_interpreter(pid: int, memory: TargetMemory, runtime: int, offsets: Offsets) -> int:
    """Walk the interpreters to the one with id 0; one of its threads must be alive."""
    alive = native_ids(pid).keys()
    try:
        interpreter = memory.u64(runtime + offsets.interpreters_head)
        for _ in range(MAX_INTERPRETERS):
            if not interpreter:
                break
            if memory.u64(interpreter + offsets.interpreter_id) == 0:
                if alive & set(thread_states(memory, interpreter, offsets).values()):
                    return interpreter
                break
            interpreter = memory.u64(interpreter + offsets.interpreter_next)
    except ValueError:
        pass
    raise UsageError(
        f"process {pid}: its main interpreter is not where this version keeps it (it may be starting or ending, or "
        "be a build with other options)"
    )


def _gil(pid: int, memory: TargetMemory, runtime: int, interpreter: int, offsets: Offsets) -> int:
    """Take the place from the offsets where it checks out; else the one place nearby that does (a patch release)."""
    states = thread_states(memory, interpreter, offsets)

    def checks_out(gil: int, *, strictly: bool) -> bool:
        try:
            interval, holder, locked, _, _ = _GIL_HEAD.unpack(memory.read(gil, _GIL_HEAD.size))
        except (ValueError, OverflowError):
            return False
        known = holder in states if strictly else True
        return 1 <= interval <= _MAX_INTERVAL_US and locked in (0, 1) and known

    expected, candidates = _gil_places(memory, runtime, interpreter, offsets)
    if checks_out(expected, strictly=False):
        return expected
    found = {place for place in candidates() if checks_out(place, strictly=True)}
    if len(found) != 1:
        raise UsageError(
            f"process {pid}: its GIL is not where this version of CPython keeps it: a patched build, or it is starting"
        )
    return found.pop()


def _gil_places(
    memory: TargetMemory, runtime: int, interpreter: int, offsets: Offsets
) -> tuple[int, Callable[[], list[int]]]:
    if offsets.gil_in_runtime is not None:
        return runtime + offsets.gil_in_runtime, lambda: [runtime + at for at in range(0, _SCAN_BYTES, 8)]
    assert offsets.gil_pointer is not None
    try:
        expected = memory.u64(interpreter + offsets.gil_pointer)
    except ValueError:
        expected = 0
    return expected, lambda: list(struct.unpack(f"<{_SCAN_BYTES // 8}Q", memory.read(interpreter, _SCAN_BYTES)))


def _count_place(memory: TargetMemory, gil: int, glibc: tuple[int, int], shape: GilShape) -> int | None:
    """Find where this glibc's condition variable counts its waiters (eight a waiter, with the clock's flag below).

    Distributions carry the newer layout back to older versions, so the flag decides where it can. None: not known,
    and waiters that were woken and have no core yet will be counted as running.
    """
    places = COUNT_PLACES if glibc < (2, 41) else COUNT_PLACES[::-1]
    cond = memory.read(gil + shape.cond, shape.mutex - shape.cond)
    for place in places:
        (word,) = struct.unpack_from("<I", cond, place)
        if word & 7 == _MONOTONIC_FLAG:
            return place
    return None
