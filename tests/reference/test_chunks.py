import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.reference import tokens
from harness.reference.frontend.chunks import AnswerForm, AnswerWriter
from harness.reference.types import FIRST_TEXT_ID, VOCAB_SIZE, Response


def form_of(*, chat: bool, streaming: bool, include_usage: bool, model: str = "m") -> AnswerForm:
    return AnswerForm(
        chat=chat, streaming=streaming, include_usage=include_usage, model=model, created=5, prompt_tokens=3
    )


FORMS = st.builds(form_of, chat=st.booleans(), streaming=st.booleans(), include_usage=st.booleans(), model=st.text())
TOKENS = st.lists(st.lists(st.integers(FIRST_TEXT_ID, VOCAB_SIZE - 1)), min_size=1, max_size=5)


def write_all(form: AnswerForm, parts: list[list[int]], json_library: str) -> list[bytes]:
    writer = AnswerWriter(7, form, json_library)
    pieces: list[bytes] = []
    for number, ids in enumerate(parts, 1):
        final = number == len(parts)
        response = Response(7, ids, number, is_final=final, finish_reason="length" if final else None)
        pieces += writer.write(response).pieces
    return pieces


@given(FORMS, TOKENS)
def test_both_json_libraries_spell_an_answer_the_same_byte_for_byte(form: AnswerForm, parts: list[list[int]]) -> None:
    pytest.importorskip("orjson")
    assert write_all(form, parts, "stdlib") == write_all(form, parts, "orjson")


@given(TOKENS)
def test_a_whole_answer_is_one_body_at_the_end(parts: list[list[int]]) -> None:
    (body,) = write_all(form_of(chat=False, streaming=False, include_usage=False), parts, "stdlib")
    answer = json.loads(body)
    ids = [token for part in parts for token in part]
    assert answer["choices"][0]["text"] == tokens.decode(ids)
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": len(ids), "total_tokens": 3 + len(ids)}


def test_a_streamed_answer_has_an_event_for_each_response() -> None:
    pieces = write_all(form_of(chat=True, streaming=True, include_usage=True), [[300], [301, 302]], "stdlib")
    opener, first, second, usage = (json.loads(piece.removeprefix(b"data: ")) for piece in pieces)
    assert opener["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert [part["choices"][0]["delta"]["content"] for part in (first, second)] == [" w300", " w301 w302"]
    assert usage["usage"]["completion_tokens"] == 3
    assert {piece[-2:] for piece in pieces} == {b"\n\n"}
