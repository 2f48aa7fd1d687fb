import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.direct import MAX_FRAME_BYTES, FrameError, FrameReader, frame


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=200)), max_size=8), st.data())
def test_frames_come_out_whole_however_the_bytes_were_split(
    frames: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(frame(kind, body) for kind, body in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader = FrameReader()
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += list(reader.feed(stream[begin:end]))
    assert found == frames


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1])
def test_a_length_that_no_peer_sends_is_an_error_and_not_an_allocation(length: int) -> None:
    with pytest.raises(FrameError):
        list(FrameReader().feed(length.to_bytes(4, "little") + b"\1"))
