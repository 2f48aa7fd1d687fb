import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.transport.sse import SseError, SseEvent, SseParser

LINES = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data",
        b"data: \xc3\xa9",
        b": comment",
        b"event: error",
        b"id: 7",
        b"retry: 12",
        b"x: y",
        b"",
    ]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=20).map(
    lambda lines: b"".join(text + end for text, end in lines)
)


def parse(*pieces: bytes, finish: bool = True) -> list[SseEvent]:
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + (parser.finish() if finish else [])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@settings(deadline=None)
@given(STREAMS, st.lists(st.integers(0, 400), max_size=30), st.sampled_from([b"", b"\xef\xbb\xbf"]))
def test_any_split_of_the_bytes_gives_the_same_events(stream: bytes, places: list[int], mark: bytes) -> None:
    data = mark + stream
    assert parse(*cut(data, places)) == parse(data)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=12))
def test_arbitrary_bytes_never_raise(pieces: list[bytes]) -> None:
    parse(*pieces)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_separates_events(end: bytes) -> None:
    assert parse(b"data: a" + end * 2 + b"data: b" + end * 2) == [SseEvent(b"a"), SseEvent(b"b")]


def test_an_event_is_given_out_as_soon_as_its_blank_line_ended_with_a_bare_carriage_return() -> None:
    assert parse(b"data: a\r\n\r", finish=False) == [SseEvent(b"a")]


def test_several_data_lines_are_joined_by_a_newline() -> None:
    assert parse(b"data: a\ndata:\ndata: b\n\n") == [SseEvent(b"a\n\nb")]


def test_one_space_after_the_colon_is_dropped_and_only_one() -> None:
    assert parse(b"data:a\n\ndata:  b\n\n") == [SseEvent(b"a"), SseEvent(b" b")]


def test_an_event_name_belongs_to_one_event_only() -> None:
    assert parse(b"event: error\ndata: a\n\ndata: b\n\n") == [SseEvent(b"a", b"error"), SseEvent(b"b")]


def test_a_comment_or_an_event_without_data_is_no_event() -> None:
    assert parse(b": hello\n\nevent: ping\n\nid: 4\n\n") == []


def test_the_id_and_the_retry_time_are_remembered() -> None:
    parser = SseParser()
    parser.feed(b"id: 41\nid: bad\0\nretry: 250\nretry: soon\n\n")
    assert (parser.last_id, parser.retry_ms) == (b"41", 250)


def test_a_byte_order_mark_is_skipped_at_the_beginning_only() -> None:
    mark = b"\xef\xbb\xbf"
    assert parse(mark + b"data: a\n\n" + mark + b"data: b\n\n") == [SseEvent(b"a")]


def test_an_event_without_its_blank_line_comes_at_the_end() -> None:
    assert parse(b"data: [DONE]") == [SseEvent(b"[DONE]")]


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 40, b"data: x\n", b"x" * 9])
def test_an_event_that_outgrows_the_bound_is_an_error(piece: bytes) -> None:
    parser = SseParser(max_event_bytes=100)
    with pytest.raises(SseError, match="more than 100 bytes"):
        list(map(parser.feed, [piece] * 1000))


def test_many_events_never_reach_the_bound() -> None:
    parser = SseParser(max_event_bytes=50)
    for _ in range(100):
        assert parser.feed(b"data: 0123") == []
        assert parser.feed(b"456789\r\n\r\n") == [SseEvent(b"0123456789")]
