"""Let the harness' observers look into the stack's processes where Yama (ptrace_scope 1) lets only ancestors look.

An observer (py-spy, the wait sampler) is a child of the harness and so a sibling of the server. What it reads, memory
and /proc/PID/syscall, is guarded as an attach by ptrace is. A process may name one other that is let in with all its
descendants, by prctl(PR_SET_PTRACER). The harness gives its own pid to the stack that it launches, and each process
names that one: nobody else gains anything, and a stack that was started otherwise names nobody. PR_SET_PTRACER_ANY
would let every process of this user in, and is not used.
"""

import ctypes
import os
from collections.abc import Callable, Mapping

VARIABLE = "LOADGEN_OBSERVER_PID"
PR_SET_PTRACER = 0x59616D61


def _prctl(option: int, value: int) -> int:
    status: int = ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
    return status


def let_observers_in(environ: Mapping[str, str] = os.environ, prctl: Callable[[int, int], int] = _prctl) -> None:
    """Name the process in LOADGEN_OBSERVER_PID, if there is one. Without Yama the call does nothing.

    Call it once in every process: a child does not inherit what its parent has named.
    """
    text = environ.get(VARIABLE, "")
    if text.isdecimal() and int(text) > 1:
        prctl(PR_SET_PTRACER, int(text))
