"""Frames of the direct drive: the lean way into the proxy that leaves HTTP out. Little-endian, over a unix socket.

Every frame starts with `u32 length` (of what follows) and `u8 kind`.

Client to proxy:
    SUBMIT  u32 tag, u32 max_tokens, u8 ignore_eos, then the prompt as int32 token ids
    ABORT   u32 tag
Proxy to client:
    TOKENS  u32 n, then n entries of (u32 tag, u32 client_id, u16 tokens, u8 finish, u8 0), then all tokens as int32
    FAILED  u32 tag, then the message in UTF-8
A tag is the client's own number for a request, unique among those in flight on the connection.
"""

import struct
from collections.abc import Iterator

SUBMIT, ABORT, TOKENS, FAILED = 1, 2, 3, 4
HEAD = struct.Struct("<IB")
SUBMIT_HEAD = struct.Struct("<IIB")
TAG = struct.Struct("<I")
ENTRY = struct.Struct("<IIHBB")

RUNNING, LENGTH, STOP, CANCELLED = 0, 1, 2, 3
FINISH_NAMES = {LENGTH: "length", STOP: "stop", CANCELLED: "cancelled"}

MAX_FRAME_BYTES = 64 * 1024 * 1024


class FrameError(ValueError):
    """The peer sent something that is not a frame; the connection cannot be used any more."""


def frame(kind: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return HEAD.pack(len(body) + 1, kind) + body


class FrameReader:
    """Cut a byte stream into (kind, body) frames, however the bytes were split."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield every frame that is complete. Raises FrameError on a length no peer of ours would send."""
        self._buffer += data
        position = 0
        try:
            while len(self._buffer) - position >= HEAD.size:
                length, kind = HEAD.unpack_from(self._buffer, position)
                if not 1 <= length <= MAX_FRAME_BYTES:
                    raise FrameError(f"frame of {length} bytes")
                end = position + 4 + length
                if len(self._buffer) < end:
                    return
                body = bytes(memoryview(self._buffer)[position + HEAD.size : end])
                position = end
                yield kind, body
        finally:
            del self._buffer[:position]
