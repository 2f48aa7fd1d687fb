from pathlib import Path

import pyarrow as pa
import pytest

from contracts.arrow import RecordWriter, read_batches, read_table, write_rows
from contracts.errors import FormatError
from contracts.records import CLIENT, GC, HOST, REQUESTS, SERVER, STEPS, ClientRow, RecordType, RequestRow


def client_rows(count: int) -> list[ClientRow]:
    return [ClientRow(0, n, n * 2, n * 3, 4, 5, 6) for n in range(count)]


@pytest.mark.parametrize("record", [REQUESTS, CLIENT, STEPS, HOST, SERVER, GC], ids=lambda record: record.name)
def test_each_records_types_match_its_fields(record: RecordType[object]) -> None:
    assert record.schema().names == list(record.columns)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    row = RequestRow(
        worker=1, seq=2, user=3, server_id=None, prompt_tokens=4, max_tokens=5, scheduled_ns=None, sent_ns=6,
        first_byte_ns=7, chunk_ns=[8, 9], chunk_tokens=None, end_ns=10, status=200, finish_reason="length",
        output_tokens=2, output_tokens_source="usage", error_kind=None, error=None,
    )  # fmt: skip
    write_rows(tmp_path / "r.arrow", REQUESTS, [row])
    (found,) = read_table(tmp_path / "r.arrow", REQUESTS).to_pylist()
    assert RequestRow(**found) == row


def test_a_file_cut_anywhere_gives_the_batches_before_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "c.arrow"
    with RecordWriter(path, CLIENT) as writer:
        for row in client_rows(30):
            writer.append(row)
            if row.t_ns % 10 == 9:
                writer.flush()
    whole = path.read_bytes()
    seen = set()
    for length in [*range(40), *range(40, len(whole), 97)]:
        path.write_bytes(whole[:length])
        rows = sum(batch.num_rows for batch in read_batches(path, CLIENT))
        assert rows in (0, 10, 20, 30)
        seen.add(rows)
    assert {0, 10, 20} <= seen


def test_what_never_was_a_record_file_is_refused_however_short(tmp_path: Path) -> None:
    path = tmp_path / "c.arrow"
    for content in (b"t", b"text", b"\xff\xff\xfftext that is long enough", b"\xff" * 4 + b"\x08\0\0\0" + b"no schema"):
        path.write_bytes(content)
        with pytest.raises(FormatError, match="not an Arrow stream"):
            list(read_batches(path, CLIENT))


def test_what_was_flushed_is_on_disk_while_the_writer_is_still_open(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "c.arrow", CLIENT)
    writer.append(client_rows(1)[0])
    writer.flush()
    assert read_table(tmp_path / "c.arrow", CLIENT).num_rows == 1
    writer.close()


def test_another_record_or_version_is_refused_by_name(tmp_path: Path) -> None:
    write_rows(tmp_path / "c.arrow", CLIENT, client_rows(1))
    with pytest.raises(FormatError, match="'client' version 1"):
        read_table(tmp_path / "c.arrow", HOST)
    newer = RecordType("client", 2, ClientRow, CLIENT.types)
    write_rows(tmp_path / "n.arrow", newer, client_rows(1))
    with pytest.raises(FormatError, match="version 2"):
        read_table(tmp_path / "n.arrow", CLIENT)


def test_columns_that_a_release_does_not_know_are_null_or_left_out(tmp_path: Path) -> None:
    types = list(CLIENT.types)
    fields = [pa.field(name, kind) for name, kind in zip(CLIENT.columns, types, strict=True)]
    other = [*fields[:-1], pa.field("added_later", pa.int64())]
    schema = pa.schema(other, metadata={"record": "client", "version": "1"})
    with pa.OSFile(str(tmp_path / "c.arrow"), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_batch(pa.record_batch([pa.array([1], field.type) for field in other], schema=schema))
    table = read_table(tmp_path / "c.arrow", CLIENT)
    assert table.column_names == list(CLIENT.columns)
    assert table.to_pylist()[0][CLIENT.columns[-1]] is None
    assert table.to_pylist()[0]["t_ns"] == 1


def test_a_file_that_is_no_arrow_is_refused_and_an_empty_one_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "x.arrow").write_text("hello, this is text")
    with pytest.raises(FormatError):
        read_table(tmp_path / "x.arrow", CLIENT)
    (tmp_path / "e.arrow").touch()
    assert read_table(tmp_path / "e.arrow", CLIENT).num_rows == 0


def test_files_carry_their_name_version_and_both_clocks(tmp_path: Path) -> None:
    write_rows(tmp_path / "c.arrow", CLIENT, client_rows(1))
    with open(tmp_path / "c.arrow", "rb") as file:
        marks = pa.ipc.open_stream(file).schema.metadata
    assert marks[b"record"] == b"client"
    assert {b"version", b"monotonic_ns", b"realtime_ns"} <= marks.keys()
