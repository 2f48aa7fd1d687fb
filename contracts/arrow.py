"""Writing and reading record files: the Arrow IPC stream format, which a kill can cut short but not spoil."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import pyarrow as pa

from contracts.clock import NS_PER_S, clock_pair
from contracts.errors import FormatError
from contracts.records import RecordType

Row = TypeVar("Row")

FLUSH_EVERY_NS = NS_PER_S
_CONTINUATION = b"\xff\xff\xff\xff"


class RecordWriter(Generic[Row]):
    """Append rows; they reach the kernel at least once a second as long as `append` or `tick` is called.

    Not thread-safe: one owner. Rows are kept as they come and turned into columns at a flush, so that an append
    costs a list append on the hot path.
    """

    def __init__(self, path: Path, record: RecordType[Row]) -> None:
        pa.array([0])  # the first conversion imports pandas: now, not a second into what is being recorded
        pair = clock_pair()
        schema = record.schema(monotonic_ns=str(pair.monotonic_ns), realtime_ns=str(pair.realtime_ns))
        self._record = record
        self._schema = schema
        self._rows: list[Row] = []
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - owned by this object, see close
        self._stream = pa.ipc.new_stream(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        self._due_ns = time.monotonic_ns() + FLUSH_EVERY_NS

    def append(self, row: Row) -> None:
        self._rows.append(row)
        self.tick()

    def tick(self) -> None:
        """Flush if a second has passed since the last flush. Call it from a timer when rows may be rare."""
        if time.monotonic_ns() >= self._due_ns:
            self.flush()

    def flush(self) -> None:
        self._due_ns = time.monotonic_ns() + FLUSH_EVERY_NS
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        arrays = [
            pa.array([getattr(row, name) for row in rows], type=field.type)
            for name, field in zip(self._record.columns, self._schema, strict=True)
        ]
        self._stream.write_batch(pa.record_batch(arrays, schema=self._schema))

    def close(self) -> None:
        try:
            self.flush()
            self._stream.close()
        finally:
            self._file.close()

    def __enter__(self) -> "RecordWriter[Row]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_batches(path: Path, record: RecordType[Any]) -> Iterator[Any]:
    """Yield the record batches of a file, up to where a killed writer left it, be that inside its schema.

    Raises FormatError if the file is another record or a version that this release does not know.
    """
    schema = record.schema()
    one_thread = pa.ipc.IpcReadOptions(use_threads=False)  # batches are too small to be worth sharing out
    with pa.OSFile(str(path), "rb") as file:
        try:
            stream = pa.ipc.open_stream(file, options=one_thread)
        except (pa.ArrowInvalid, OSError) as error:
            if _cut_in_schema(path):
                return
            raise FormatError(f"{path} is not an Arrow stream: {error}") from error
        marks = stream.schema.metadata or {}
        name = marks.get(b"record", b"?").decode()
        version = marks.get(b"version", b"?").decode()
        if (name, version) != (record.name, str(record.version)):
            raise FormatError(
                f"{path} holds records {name!r} version {version}; this release reads {record.name!r} version "
                f"{record.version}. Use the release that wrote it, or run the sweep again"
            )
        while True:
            try:
                batch = stream.read_next_batch()
            except StopIteration:
                return
            except (pa.ArrowInvalid, OSError):  # the writer was killed in the middle of a batch
                return
            yield _aligned(batch, schema)


def _cut_in_schema(path: Path) -> bool:
    """Say whether a file ends before its schema message is whole: its writer was killed in the first second.

    An Arrow stream begins with four bytes of ones and the message's length in four little-endian bytes.
    """
    with open(path, "rb") as file:
        head = file.read(8)
    if not _CONTINUATION.startswith(head[:4]):
        return False  # no Arrow stream at all
    return len(head) < 8 or path.stat().st_size < 8 + int.from_bytes(head[4:], "little")


def _aligned(batch: Any, schema: Any) -> Any:
    """Give a batch today's columns: those that its release did not know yet are null, those of a later one left out."""
    if batch.schema.names == schema.names:
        return pa.record_batch(batch.columns, schema=schema)
    known = set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in known else pa.nulls(batch.num_rows, field.type) for field in schema
    ]
    return pa.record_batch(arrays, schema=schema)


def read_table(path: Path, record: RecordType[Any]) -> Any:
    """Read a record file whole (see `read_batches`) as a pyarrow Table."""
    return pa.Table.from_batches(list(read_batches(path, record)), schema=record.schema())


def write_rows(path: Path, record: RecordType[Row], rows: list[Row]) -> None:
    """Write a whole record file at once."""
    with RecordWriter(path, record) as writer:
        for row in rows:
            writer.append(row)
