"""The load process's side of its protocol: lines in on stdin, lines out on stdout, and nothing else on stdout."""

import os

from gevent.lock import RLock
from gevent.os import make_nonblocking, nb_read, nb_write

from contracts.load import LoadEvent

_READ_BYTES = 1 << 16


class Lines:
    """Reads command lines and writes event lines without stopping the event loop."""

    def __init__(self, fd_in: int, fd_out: int) -> None:
        make_nonblocking(fd_in)
        make_nonblocking(fd_out)
        self._in = fd_in
        self._out = fd_out
        self._buffer = b""
        self._writing = RLock()

    @classmethod
    def take_over_stdio(cls) -> "Lines":
        """Keep stdout for events; whatever prints from now on goes to stderr."""
        out = os.dup(1)
        os.dup2(2, 1)
        return cls(0, out)

    def read(self) -> str | None:
        """Wait for a line; None at the end of input."""
        while b"\n" not in self._buffer:
            data = nb_read(self._in, _READ_BYTES)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace")

    def emit(self, event: LoadEvent) -> None:
        """Write an event. Raises BrokenPipeError when nobody listens any more."""
        self.write(event.to_line().rstrip("\n"))

    def write(self, line: str) -> None:
        """Write a line. Raises BrokenPipeError when nobody listens any more."""
        data = line.encode() + b"\n"
        with self._writing:
            while data:
                data = data[nb_write(self._out, data) :]
