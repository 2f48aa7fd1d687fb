"""The function in which a thread is, read from its memory while it runs: right nearly always, None when it moved."""

import struct

from harness.observers.gil.memory import TargetMemory
from harness.observers.gil.offsets import Offsets

_FORGET_AFTER = 20_000
_MAX_HOPS = 3
_MAX_NAME = 300
_TAG_BITS = 7
_U64 = struct.Struct("<Q")


class Frames:
    """Names of code objects, remembered by address; forgotten now and then, as addresses are used again."""

    def __init__(self, memory: TargetMemory, offsets: Offsets) -> None:
        self._memory = memory
        self._offsets = offsets
        self._names: dict[int, str] = {}
        self._asked = 0

    def function(self, state: int) -> str | None:
        """Return `qualified.name (folder/file.py)` of the innermost Python frame of a thread state."""
        self._asked += 1
        if self._asked % _FORGET_AFTER == 0:
            self._names.clear()
        offsets, memory = self._offsets, self._memory
        try:
            place = state if offsets.cframe is None else memory.u64(state + offsets.cframe)
            frame = memory.u64(place + offsets.current_frame)
            for _ in range(_MAX_HOPS):
                if not frame:
                    return None
                code = memory.u64(frame + offsets.frame_code) & ~_TAG_BITS
                name = self._names.get(code) or self._read_name(code)
                if name is not None:
                    return name
                frame = memory.u64(frame + offsets.frame_previous)  # a frame of C code has no name: its caller
        except ValueError:
            pass
        return None

    def _read_name(self, code: int) -> str | None:
        if not code:
            return None
        try:
            function = self._text(code + self._offsets.code_qualname)
            file = self._text(code + self._offsets.code_filename)
        except ValueError:
            return None
        if function is None or file is None:
            return None
        name = f"{function} ({'/'.join(file.split('/')[-2:])})"
        self._names[code] = name
        return name

    def _text(self, pointer_at: int) -> str | None:
        """Read a str object of ASCII characters; None when it is none."""
        memory, ascii_bytes = self._memory, self._offsets.ascii_bytes
        text = memory.u64(pointer_at)
        length = memory.u64(text + 16)
        if not 0 < length <= _MAX_NAME:
            return None
        data = memory.read(text + ascii_bytes, length)
        return data.decode("ascii") if data.isascii() and data.decode("ascii").isprintable() else None
