"""An incremental parser of server-sent events that works on bytes, so that a read may end anywhere.

It follows the WHATWG HTML standard, section 9.2.6 (fields, comments, three line ends, byte-order mark), with one
leniency: `finish` gives out an event whose closing blank line never came.
"""

from typing import NamedTuple

MAX_EVENT_BYTES = 1 << 20
_LF, _CR = b"\n\r"
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """A dispatched event. A tuple, because one is made for every token."""

    data: bytes
    name: bytes = b""


class SseError(ValueError):
    """An event is larger than the bound; the stream cannot be followed any further."""


class SseParser:
    """Feed bytes, get events. Memory is bounded by `max_event_bytes` and the size of one feed."""

    __slots__ = (
        "_data",
        "_first_line",
        "_held",
        "_max",
        "_name",
        "_pieces",
        "_skip_lf",
        "clean",
        "last_id",
        "retry_ms",
    )

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._pieces: list[bytes] = []  # of the line that has not ended yet
        self._data: list[bytes] = []  # the data lines of the event that has not ended yet
        self._held = 0
        self._name = b""
        self._first_line = True
        self._skip_lf = False  # the last byte was a CR, whose LF may still come
        self.clean = False  # between two events, nothing pending
        self.last_id = b""
        self.retry_ms: int | None = None

    def feed(self, data: bytes) -> list[SseEvent]:
        """Give the events that these bytes complete. Raises SseError when one outgrows the bound."""
        if self.clean and data.startswith(b"data: ") and data.find(b"\n") == len(data) - 2 and data.endswith(b"\n\n"):
            payload = data[6:-2]
            if _CR not in payload:  # the common case by far: exactly one event of one line
                return [SseEvent(payload)]
        if self._skip_lf and data:
            self._skip_lf = False
            if data.startswith(b"\n"):
                data = data[1:]
        if _CR in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if _LF not in data:
            self._hold(data)
            return []
        events: list[SseEvent] = []
        lines = data.split(b"\n")
        if self._pieces:
            self._held -= sum(map(len, self._pieces))
            lines[0] = b"".join([*self._pieces, lines[0]])
            self._pieces.clear()
        rest = lines.pop()
        for line in lines:
            self._line(line, events)
        self.clean = not self._data and not self._name and not rest and not self._skip_lf
        if rest:
            self._hold(rest)
        return events

    def finish(self) -> list[SseEvent]:
        """Give the event that was still open when the stream ended, if there is one."""
        events: list[SseEvent] = []
        if self._pieces:
            line = b"".join(self._pieces)
            self._pieces.clear()
            self._line(line, events)
        self._line(b"", events)
        return events

    def _hold(self, piece: bytes) -> None:
        if piece:
            self.clean = False
            self._pieces.append(piece)
            self._grow(len(piece))

    def _grow(self, count: int) -> None:
        self._held += count
        if self._held > self._max:
            raise SseError(f"an event of more than {self._max} bytes")

    def _line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(SseEvent(b"\n".join(self._data), self._name))
                self._data = []
                self._held = 0
            self._name = b""
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._grow(len(value) + 1)
        elif name == b"event":
            self._name = value
        elif name == b"id" and b"\0" not in value:
            self.last_id = value
        elif name == b"retry" and value.isdigit():
            self.retry_ms = int(value[:18])
