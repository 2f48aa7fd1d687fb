"""What a process has in use, against what it has from the kernel: a heap that once was larger is not a leak."""

import ctypes
import sys

_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def memory_in_use() -> dict[str, int]:
    """Count `python_blocks`, the live blocks of Python's own allocator, and `malloc_bytes`, live with the C library.

    Python takes what is larger than 512 bytes from the C library as well. Before glibc 2.33 there is no `malloc_bytes`.
    """
    found = {"python_blocks": sys.getallocatedblocks()}
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return found
    mallinfo2.restype = _MallInfo
    info = mallinfo2()
    return {**found, "malloc_bytes": info.uordblks + info.hblkhd}
