"""Where CPython keeps things, by version. 3.13 and later publish it; 3.11 and 3.12 are in a table, checked at attach.

The table's numbers were compiled from the headers of 3.11.7 and 3.12.1 (offsetof, 64 bit). The published ones stand at
the start of `_PyRuntime`: a cookie, the version, a flag for free-threaded builds, and groups of u64.
"""

import struct
from dataclasses import dataclass

from contracts.errors import UsageError

COOKIE = b"xdebugpy"
PUBLISHED_SINCE = (3, 13)
PUBLISHED_BYTES = 8 * 64
NEWEST = (3, 15)

_RUNTIME = ("size", "finalizing", "interpreters_head")
_INTERPRETER = (
    "size", "id", "next", "threads_head", "gc", "imports_modules", "sysdict", "builtins", "ceval_gil",
    "gil_runtime_state", "gil_runtime_state_enabled", "gil_runtime_state_locked", "gil_runtime_state_holder",
)  # fmt: skip
_INTERPRETER_314 = (*_INTERPRETER[:4], "threads_main", *_INTERPRETER[4:], "code_object_generation", "tlbc_generation")
_THREAD = (
    "size", "prev", "next", "interp", "current_frame", "thread_id", "native_thread_id", "datastack_chunk", "status",
)  # fmt: skip
_THREAD_315 = (
    *_THREAD[:5], "base_frame", "last_profiled_frame", "last_profiled_frame_seq", *_THREAD[5:],
    "holds_gil", "gil_requested", "current_exception", "exc_state",
)  # fmt: skip
_STACK_ITEM_315 = ("exc_value",)
_FRAME = ("size", "previous", "executable", "instr_ptr", "localsplus", "owner")
_FRAME_314 = (*_FRAME, "stackpointer", "tlbc_index")
_CODE = ("size", "filename", "name", "qualname")
_GROUPS = {
    (3, 13): (_RUNTIME, _INTERPRETER, _THREAD, _FRAME, _CODE),
    (3, 14): (_RUNTIME, _INTERPRETER_314, _THREAD, _FRAME_314, _CODE),
    (3, 15): (_RUNTIME, _INTERPRETER_314, _THREAD_315, _STACK_ITEM_315, _FRAME_314, _CODE),
}
ASCII_BYTES = 40


@dataclass(frozen=True, slots=True)
class Offsets:
    """Byte offsets inside the runtime, interpreter, thread state, frame, code object and string.

    `gil_in_runtime`: the GIL struct lies there (3.11); else `gil_pointer` in the interpreter points to it. `cframe`:
    the thread state points to a record that points to the frame (3.11, 3.12); else `current_frame` points to it.
    """

    interpreters_head: int
    interpreter_next: int
    interpreter_id: int
    threads_head: int
    thread_next: int
    thread_interp: int
    native_thread_id: int
    gil_in_runtime: int | None
    gil_pointer: int | None
    cframe: int | None
    current_frame: int
    frame_previous: int
    frame_code: int
    code_filename: int
    code_qualname: int
    ascii_bytes: int
    gil_last_holder: int = 8
    gil_locked: int = 16


TABLE = {
    (3, 11): Offsets(
        interpreters_head=40, interpreter_next=0, interpreter_id=48, threads_head=16, thread_next=8, thread_interp=16,
        native_thread_id=160, gil_in_runtime=360, gil_pointer=None, cframe=56, current_frame=8, frame_previous=48,
        frame_code=32, code_filename=112, code_qualname=128, ascii_bytes=48,
    ),
    (3, 12): Offsets(
        interpreters_head=40, interpreter_next=0, interpreter_id=8, threads_head=72, thread_next=8, thread_interp=16,
        native_thread_id=144, gil_in_runtime=None, gil_pointer=384, cframe=56, current_frame=0, frame_previous=8,
        frame_code=0, code_filename=112, code_qualname=128, ascii_bytes=ASCII_BYTES,
    ),
}  # fmt: skip


def published(block: bytes) -> Offsets:
    """Read the offsets that 3.13 and later publish. Raises UsageError for free-threaded and unknown builds."""
    if block[:8] != COOKIE:
        raise UsageError("the interpreter publishes no offsets where it should: a build this release does not know")
    version, free_threaded = struct.unpack_from("<QQ", block, 8)
    if free_threaded:
        raise UsageError("this is a free-threaded build of Python: it has no GIL to wait for")
    layout = _GROUPS.get((version >> 24, version >> 16 & 0xFF))
    if layout is None:
        raise UsageError("the interpreter's published offsets are of no version that this release knows")
    words = struct.unpack_from(f"<{(len(block) - 24) // 8}Q", block, 24)
    groups = []
    for names in layout:
        groups.append(dict(zip(names, words, strict=False)))
        words = words[len(names) :]
    runtime, interpreter, thread, *_, frame, code = groups
    embedded = interpreter["gil_runtime_state"]
    return Offsets(
        interpreters_head=runtime["interpreters_head"],
        interpreter_next=interpreter["next"],
        interpreter_id=interpreter["id"],
        threads_head=interpreter["threads_head"],
        thread_next=thread["next"],
        thread_interp=thread["interp"],
        native_thread_id=thread["native_thread_id"],
        gil_in_runtime=None,
        gil_pointer=interpreter["ceval_gil"],
        cframe=None,
        current_frame=thread["current_frame"],
        frame_previous=frame["previous"],
        frame_code=frame["executable"],
        code_filename=code["filename"],
        code_qualname=code["qualname"],
        ascii_bytes=ASCII_BYTES,
        gil_last_holder=interpreter["gil_runtime_state_holder"] - embedded,
        gil_locked=interpreter["gil_runtime_state_locked"] - embedded,
    )


@dataclass(frozen=True, slots=True)
class GilShape:
    """The GIL struct of one machine: offsets of its parts, its size, and where a condition variable counts waiters.

    It starts with interval (unsigned long), last_holder (pointer), locked (int), switch_number (unsigned long); then
    cond, mutex, switch_cond and switch_mutex, whose sizes are glibc's for the machine. A forced switch waits on
    switch_cond; all four mean that a thread wants the GIL.
    """

    cond: int
    mutex: int
    switch_cond: int
    switch_mutex: int
    size: int
    waiter_count: int | None
    futex: int


_COND_BYTES = 48
_SWITCH_NUMBER = 24
SWITCH_NUMBER = _SWITCH_NUMBER
INTERVAL = 0
_MUTEX_BYTES = {62: 40, 183: 48}
_FUTEX = {62: 202, 183: 98}
COUNT_PLACES = (36, 28)  # of __wrefs in pthread_cond_t: up to glibc 2.40, and since the groups' counts went


def gil_shape(machine: int, waiter_count: int | None) -> GilShape:
    """Compute the shape for an ELF machine. Raises UsageError for one that is not known."""
    mutex = _MUTEX_BYTES.get(machine)
    if mutex is None:
        raise UsageError(f"the target runs on a machine (ELF number {machine}) whose layout this release does not know")
    cond_at = _SWITCH_NUMBER + 8
    mutex_at = cond_at + _COND_BYTES
    switch_at = mutex_at + mutex
    return GilShape(
        cond=cond_at,
        mutex=mutex_at,
        switch_cond=switch_at,
        switch_mutex=switch_at + _COND_BYTES,
        size=switch_at + _COND_BYTES + mutex,
        waiter_count=waiter_count,
        futex=_FUTEX[machine],
    )
