"""A socket between rank 0 and one other rank, inherited and so reachable by nobody else; blocking, as MPI calls are.

A broadcast is a header of three int64 (ok, bytes, chunks) and then the pickle in chunks of at most 4 MB.
"""

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

    def send_broadcast(self, payload: bytes) -> None:
        chunks = -(-len(payload) // CHUNK_BYTES)
        self.send(HEADER.pack(1, len(payload), chunks))
        view = memoryview(payload)
        for chunk in range(chunks):
            self.send(view[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES])

    def receive_broadcast(self) -> bytearray:
        _, size, _ = HEADER.unpack(self.receive(HEADER.size))
        return self.receive(size)

    def send_object(self, message: object) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self.send(LENGTH.pack(len(data)) + data)

    def receive_object(self) -> Any:
        (size,) = LENGTH.unpack(self.receive(LENGTH.size))
        return pickle.loads(self.receive(size))  # noqa: S301 - from a socket pair that only our own processes hold

    def close(self) -> None:
        self._socket.close()
