"""What rank 0 and another rank share, inherited and so reachable by nobody else: a socket, and memory for broadcasts.

A broadcast is written once into the shared memory, in chunks of at most 4 MB, and announced to every rank by a header
of three int64 (ok, bytes, chunks), as MPI does among the ranks of one machine. The memory may be written again when
every rank has read it, which each says by its next message.
"""

import os
import pickle
import socket
import struct
from typing import Any

HEADER = struct.Struct("<qqq")
LOAD = struct.Struct("<qq")
LENGTH = struct.Struct("<q")
CHUNK_BYTES = 4 * 1024 * 1024


class LinkBroken(ConnectionError):  # noqa: N818 - it names what happened
    """The other end is gone."""


class SharedMemory:
    """Anonymous memory behind a file descriptor; each copy into and out of it releases the GIL."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls) -> "SharedMemory":
        return cls(os.memfd_create("rank-broadcast"))

    def write(self, payload: bytes) -> None:
        view = memoryview(payload)
        for begin in range(0, len(view), CHUNK_BYTES):
            chunk, at = view[begin : begin + CHUNK_BYTES], begin
            while chunk:
                written = os.pwrite(self.fd, chunk, at)
                chunk, at = chunk[written:], at + written

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        at = 0
        while at < size:
            part = os.pread(self.fd, min(CHUNK_BYTES, size - at), at)
            if not part:
                raise LinkBroken("the shared memory is shorter than was announced")
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def close(self) -> None:
        os.close(self.fd)


class Link:
    """One end. Every wait releases the GIL."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, data: "bytes | memoryview") -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise LinkBroken(str(error)) from error

    def receive(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._socket.recv_into(view)
            except OSError as error:
                raise LinkBroken(str(error)) from error
            if count == 0:
                raise LinkBroken("the other end was closed")
            view = view[count:]
        return data

    def announce(self, payload: bytes) -> None:
        """Tell the other end that `payload` lies in the shared memory."""
        self.send(HEADER.pack(1, len(payload), -(-len(payload) // CHUNK_BYTES)))

    def receive_broadcast(self, memory: "SharedMemory") -> bytes:
        _, size, _ = HEADER.unpack(self.receive(HEADER.size))
        return memory.read(size)

    def send_object(self, message: object) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self.send(LENGTH.pack(len(data)) + data)

    def receive_object(self) -> Any:
        (size,) = LENGTH.unpack(self.receive(LENGTH.size))
        return pickle.loads(self.receive(size))  # noqa: S301 - from a socket pair that only our own processes hold

    def close(self) -> None:
        self._socket.close()
