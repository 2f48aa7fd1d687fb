from hypothesis import given
from hypothesis import strategies as st

from harness.reference import tokens
from harness.reference.engine.device import expected_tokens
from harness.reference.types import EOS_ID, FIRST_TEXT_ID, VOCAB_SIZE


@given(st.lists(st.integers(FIRST_TEXT_ID, VOCAB_SIZE - 1)))
def test_sampled_text_turns_back_into_the_same_tokens(ids: list[int]) -> None:
    assert tokens.encode(tokens.decode(ids)) == ids


@given(st.text())
def test_any_text_is_a_prompt_of_its_bytes_and_words(text: str) -> None:
    ids = tokens.encode(text)
    rebuilt = b"".join(bytes([token]) if token < FIRST_TEXT_ID else f" w{token}".encode() for token in ids)
    assert rebuilt == text.encode("utf-8")


def test_end_of_sequence_has_no_text() -> None:
    assert tokens.decode([300, EOS_ID, 301]) == " w300 w301"


def test_the_model_answers_the_same_prompt_the_same_way_and_others_otherwise() -> None:
    assert expected_tokens([5, 6], 50) == expected_tokens([5, 6], 50)
    assert expected_tokens([5, 6], 50) != expected_tokens([6, 5], 50)
    assert expected_tokens([5, 6], 10) == expected_tokens([5, 6], 50)[:10]
