"""Reading a trace as a stream: line by line, every process its share, with the file and line of whatever is wrong."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import ijson

from contracts.errors import UsageError
from loadgen.workload.traces.entry import Entry, EntryError
from loadgen.workload.traces.formats import CSV_COLUMNS, FORMATS, SHAREGPT, conversation, parser_of, recognised

_BUFFER_BYTES = 1 << 20
_CHECKED = 100


class TraceReader:
    """Gives the entries of one share of a trace, in order, reading no further than it must.

    The share is every `shares`-th request from the `share`-th on; the others are passed over unread. Times are ns from
    the trace's first request and never go back. Raises UsageError, naming file and line; after that it is at its end.
    """

    def __init__(self, path: Path, name: str | None = None, share: int = 0, shares: int = 1) -> None:
        self.path = path
        self._first_line, self.format = _recognise(path, name)
        self._share = share
        self._shares = shares
        self._line = 1
        self._first_ns: int | None = None
        self._last_ns = 0
        self._entries = self._read()

    def next(self) -> Entry | None:
        """Give the next entry, its time counted from the trace's first; None at the end."""
        try:
            return next(self._entries, None)
        except EntryError as error:
            raise UsageError(f"{self._where()}: {error}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot go on reading {self.path}: {error}") from error

    def _where(self) -> str:
        if self.format == SHAREGPT and self._first_line.startswith(b"["):
            return f"{self.path}, conversation {self._line}"
        return f"{self.path}:{self._line}"

    def _read(self) -> Iterator[Entry]:
        with open(self.path, "rb", buffering=_BUFFER_BYTES) as file:
            if self.format == SHAREGPT and self._first_line.startswith(b"["):
                yield from self._timed(self._array(file))
            else:
                yield from self._timed(self._lines(file))

    def _lines(self, file: Any) -> Iterator[Entry]:
        parse = None
        if self.format not in CSV_COLUMNS:
            parse = parser_of(self.format)
        row = 0
        for self._line, line in enumerate(file, 1):
            data = line.strip()
            if not data:
                continue
            if parse is None:
                parse = parser_of(self.format, _header(data))
                continue
            if row == 0 or row % self._shares == self._share:
                entry = parse(self._line, data)
                if row == 0:
                    self._first_ns = entry.at_ns
                if row % self._shares == self._share:
                    yield entry
            row += 1

    def _array(self, file: Any) -> Iterator[Entry]:
        documents = ijson.items(file, "item")
        self._line = 0
        try:
            for document in documents:
                self._line += 1
                if (self._line - 1) % self._shares == self._share:
                    yield conversation(self._line, document)
        except ijson.JSONError as error:
            self._line += 1
            raise EntryError(f"not JSON ({error})") from None

    def _timed(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        for entry in entries:
            if self.format == SHAREGPT and not entry.texts:
                continue  # nobody asked and got an answer
            if entry.at_ns is None:
                if self._first_ns is not None:
                    raise EntryError("no 'timestamp', which the first line has")
                yield entry
                continue
            if self._first_ns is None:
                raise EntryError("a 'timestamp', which the first line has not")
            at_ns = entry.at_ns - self._first_ns
            if at_ns < self._last_ns:
                raise EntryError(f"its time is {(self._last_ns - at_ns) / 1e9:g} s before an earlier line's: sort it")
            self._last_ns = at_ns
            yield Entry(
                entry.line, at_ns, entry.prompt_tokens, entry.max_tokens, entry.hash_ids, entry.ids, entry.texts
            )


def check_trace(path: Path, name: str | None) -> tuple[str, Entry]:
    """Read a trace's first hundred requests; give its format and the first of them. Raises UsageError."""
    reader = TraceReader(path, name)
    entries = list(islice(iter(reader.next, None), _CHECKED))
    if not entries:
        raise UsageError(f"{path} holds no request")
    return reader.format, entries[0]


def _recognise(path: Path, name: str | None) -> tuple[bytes, str]:
    """Give the first line that is not blank, and the format: the one named, or the one that it looks like."""
    if name is not None and name not in FORMATS:
        raise UsageError(f"unknown trace format {name!r}; use one of {', '.join(FORMATS)}")
    try:
        with open(path, "rb") as file:
            lines = map(bytes.strip, iter(lambda: file.readline(_BUFFER_BYTES), b""))
            first = next(filter(None, lines), b"")
    except OSError as error:
        raise UsageError(f"cannot read the trace {path}: {error.strerror}") from error
    if not first:
        raise UsageError(f"{path} is empty: expected a trace ({', '.join(FORMATS)})")
    found = name or _looks_like(first)
    if found is None:
        raise UsageError(
            f"{path}:1: its first line is of no trace format known ({', '.join(FORMATS)}): {first[:80]!r}; "
            f"if it is one of them, name it with --trace-format"
        )
    return first, found


def _looks_like(first: bytes) -> str | None:
    if first.startswith(b"["):
        return SHAREGPT
    if first.startswith(b"{"):
        try:
            return recognised(json.loads(first))
        except (ValueError, RecursionError):
            return None
    header = _header(first)
    return next((name for name, wanted in CSV_COLUMNS.items() if set(wanted) <= set(header)), None)


def _header(data: bytes) -> list[str]:
    return [cell.strip() for cell in data.decode("utf-8-sig", "replace").split(",")]
