import pickle
from array import array
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.reference.rpc.envelope import MAC_BYTES, RPCRequest, RPCResponse, SealBroken, seal, unseal
from harness.reference.types import (
    DisaggregatedParams,
    ErrorResponse,
    Formatted,
    GenerationRequest,
    Response,
    SamplingParams,
    request_class,
)

KEY = b"k" * 32


class Bomb:
    """Unpickling this is noticed."""

    went_off = False

    def __reduce__(self) -> tuple[object, ...]:
        return (_ignite, ())


def _ignite() -> None:
    Bomb.went_off = True


TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=300)
DISAGGREGATED = st.none() | st.builds(
    DisaggregatedParams,
    request_type=st.just("generation_only"),
    first_gen_tokens=TOKENS,
    opaque_state=st.none() | st.binary(max_size=300),
)
RESPONSES = st.lists(
    st.builds(Response, st.integers(0, 2**62), TOKENS, st.integers(0, 9), st.booleans())
    | st.builds(ErrorResponse, st.integers(0, 2**62), st.text())
    | st.builds(Formatted, st.integers(0, 2**62), st.lists(st.binary()), st.integers(0, 9)),
    max_size=20,
)


@st.composite
def requests(draw: st.DrawFn) -> GenerationRequest:
    kind = request_class(draw(st.sampled_from(["list", "int32"])))
    sampling = SamplingParams(max_tokens=draw(st.integers(0, 2**40)), seed=draw(st.none() | st.integers()))
    made = kind(draw(TOKENS), sampling, streaming=draw(st.booleans()), arrival_time=draw(st.floats(0, 1e9)))
    made.disaggregated_params = draw(DISAGGREGATED)
    return made.set_id(draw(st.integers(0, 2**62)))


def contents(request: GenerationRequest) -> dict[str, Any]:
    """Return what a request holds, its tokens as a list however they travelled."""
    held = dict(vars(request))
    packed = held.pop("packed_token_ids", None)
    if packed is not None:
        assert held["prompt_token_ids"] is None, "on the receiving side there is no list"
        held["prompt_token_ids"] = array("i", packed).tolist()
    return held


@given(st.lists(requests(), max_size=5))
def test_requests_come_back_as_they_were_in_either_wire_format(batch: list[GenerationRequest]) -> None:
    envelope = RPCRequest("submit_batch", (batch,), {}, need_response=False)
    back: RPCRequest = unseal(seal(envelope, KEY), KEY)
    (received,) = back.args
    assert (back.method, back.request_id, back.need_response) == (envelope.method, envelope.request_id, False)
    assert [type(one) for one in received] == [type(one) for one in batch]
    assert [contents(one) for one in received] == [contents(one) for one in batch]


@given(RESPONSES)
def test_responses_come_back_as_they_were(responses: list[Any]) -> None:
    envelope = RPCResponse("id", responses, None, is_streaming=True, sequence=3, stream_status="data")
    assert unseal(seal(envelope, KEY), KEY) == envelope


SEALED = seal(RPCRequest("submit", ([1, 2, 3],), {}), KEY)


def test_no_part_of_a_message_passes_for_a_message() -> None:
    """Every cut at either end, and so every split of it in two."""
    for at in range(1, len(SEALED)):
        for part in (SEALED[:at], SEALED[at:]):
            with pytest.raises(SealBroken):
                unseal(part, KEY)


@given(st.integers(0, len(SEALED)), st.integers(0, len(SEALED)), st.binary(max_size=40))
def test_no_other_bytes_pass_for_a_message_whatever_is_put_in_or_taken_out(begin: int, end: int, put_in: bytes) -> None:
    altered = SEALED[:begin] + put_in + SEALED[end:]
    assume(altered != SEALED)
    with pytest.raises(SealBroken):
        unseal(altered, KEY)


def test_a_changed_bit_anywhere_breaks_the_seal() -> None:
    for at in range(8 * len(SEALED)):
        altered = bytearray(SEALED)
        altered[at // 8] ^= 1 << at % 8
        with pytest.raises(SealBroken):
            unseal(bytes(altered), KEY)


@pytest.mark.parametrize("message", [b"", b"x", b"x" * MAC_BYTES])
def test_a_message_too_short_for_a_seal_is_refused(message: bytes) -> None:
    with pytest.raises(SealBroken):
        unseal(message, KEY)


def test_nothing_is_unpickled_before_its_seal_was_verified() -> None:
    forged = pickle.dumps(Bomb()) + b"\0" * MAC_BYTES
    with pytest.raises(SealBroken):
        unseal(forged, KEY)
    with pytest.raises(SealBroken):
        unseal(seal(Bomb(), b"another key" * 3), KEY)
    assert not Bomb.went_off
    unseal(seal(Bomb(), KEY), KEY)
    assert Bomb.went_off, "the bomb would have been noticed"
