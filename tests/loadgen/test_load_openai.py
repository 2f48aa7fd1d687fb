import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import UsageError
from contracts.load import WorkloadSpec
from loadgen import kinds
from loadgen.outcome import Outcome
from loadgen.transport.openai import StreamReading
from loadgen.workload.bodies import BodyTemplate, endpoint_named
from loadgen.workload.synthetic import Workload


def read(
    *documents: Any,
    endpoint: str = "completions",
    status: int = 200,
    max_tokens: int = 5,
    raw: bytes | None = None,
    separators: tuple[str, str] | None = None,
) -> Outcome:
    """Feed one event a nanosecond, from 101; give the outcome of a response that was sent at 100."""
    firsts = []
    reading = StreamReading(endpoint, firsts.append)
    response = reading.response
    response.sent_ns, response.status, response.end_ns = 100, status, 900
    pieces = [raw] if raw is not None else [
        b"data: %s\n\n" % (d if isinstance(d, bytes) else json.dumps(d, separators=separators).encode())
        for d in documents
    ]  # fmt: skip
    for number, piece in enumerate(pieces):
        response.received_bytes += len(piece)
        reading.feed(101 + number, piece)
    outcome = reading.outcome(max_tokens)
    assert firsts == [ns - 100 for ns in outcome.chunk_ns[:1]]
    return outcome


def text(value: str, finish: str | None = None) -> dict[str, Any]:
    return {"id": "r1", "choices": [{"index": 0, "text": value, "finish_reason": finish}]}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(count: int) -> dict[str, Any]:
    return {"id": "r1", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": count}}


DONE = b"[DONE]"


@pytest.mark.parametrize("separators", [None, (",", ":")])
def test_a_plain_completion_counts_each_chunk_once(separators: tuple[str, str] | None) -> None:
    outcome = read(text("a"), text("b"), text("c", "length"), usage(3), DONE, separators=separators)
    assert list(outcome.chunk_ns) == [101, 102, 103]
    assert list(outcome.chunk_tokens) == [1, 1, 1]
    assert (outcome.output_tokens, outcome.output_tokens_source) == (3, "usage")
    assert (outcome.finish_reason, outcome.server_id, outcome.error_kind) == ("length", "r1", None)


def test_a_completion_token_whose_text_is_empty_counts() -> None:
    assert list(read(text("a"), text(""), text("c", "stop"), DONE).chunk_ns) == [101, 102, 103]


def test_an_empty_finishing_text_is_a_token_only_if_the_usage_says_so() -> None:
    assert list(read(text("a"), text("", "stop"), usage(2), DONE).chunk_ns) == [101, 102]
    assert list(read(text("a"), text("", "stop"), usage(1), DONE).chunk_ns) == [101]
    assert list(read(text("a"), text("", "stop"), DONE).chunk_ns) == [101]


def test_a_role_only_opener_carries_no_token() -> None:
    outcome = read(delta(role="assistant", content=""), delta(content="a"), delta("stop"), DONE, endpoint="chat")
    assert list(outcome.chunk_ns) == [102]
    assert outcome.error_kind is None


def test_an_empty_content_without_a_role_is_a_token() -> None:
    documents = [delta(role="assistant"), delta(content=""), delta(content="a"), delta("stop"), DONE]
    assert list(read(*documents, endpoint="chat").chunk_ns) == [102, 103]


@pytest.mark.parametrize(
    "fields", [{"reasoning_content": "hm"}, {"tool_calls": [{"index": 0}]}, {"role": "a", "content": "b"}]
)
def test_thoughts_tool_calls_and_text_beside_a_role_carry_tokens(fields: dict[str, Any]) -> None:
    assert list(read(delta(**fields), delta("stop"), DONE, endpoint="chat").chunk_ns) == [101]


def test_a_usage_larger_than_the_chunks_leaves_the_tokens_of_a_chunk_unknown() -> None:
    outcome = read(text("ab"), text("cd", "length"), usage(4), DONE)
    assert outcome.chunk_tokens is None
    assert outcome.output_tokens == 4


def test_without_usage_the_chunks_are_counted() -> None:
    outcome = read(text("a"), text("b", "length"))
    assert (outcome.output_tokens, outcome.output_tokens_source, outcome.chunk_tokens) == (2, "chunks", None)
    assert outcome.error_kind is None


def test_a_generated_text_that_looks_like_an_error_is_a_token() -> None:
    sly = '","error":{"message":"x"},"finish_reason":null'
    outcome = read(text("a"), text(sly), text("error"), text('"error":'), text("b", "stop"), DONE)
    assert len(outcome.chunk_ns) == 5
    assert outcome.error_kind is None


@pytest.mark.parametrize(
    "error", [{"error": {"message": "boom", "code": 500}}, {"error": "boom"}, {"object": "error", "message": "boom"}]
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_object_anywhere_is_a_failure(error: dict[str, Any], place: int) -> None:
    documents = [text("a"), text("b", "length"), DONE]
    outcome = read(*documents[:place], error, *documents[place:])
    assert (outcome.error_kind, outcome.error) == (kinds.ERROR_IN_STREAM, "boom")


def test_an_error_event_is_a_failure_whatever_its_data() -> None:
    outcome = read(raw=b"data: %s\n\nevent: error\ndata: oh no\n\n" % json.dumps(text("a", "stop")).encode())
    assert outcome.error_kind == kinds.ERROR_IN_STREAM


def test_a_null_error_is_none() -> None:
    assert read({**text("a", "stop"), "error": None}, DONE).error_kind is None


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b'{"error": {"message": "no"}}', kinds.ERROR_BODY),
        (b'{"detail": "Not Found"}', kinds.ERROR_BODY),
        (b'{"id": "x", "choices": []}', kinds.BAD_STREAM),
        (b"<html>", kinds.BAD_STREAM),
        (b"hello\n\n", kinds.BAD_STREAM),
        (b"data: {broken\n\n", kinds.BAD_STREAM),
        (b"data: [1]\n\n", kinds.BAD_STREAM),
        (b"data: " + b"x" * (2 << 20), kinds.BAD_STREAM),
        (b"", kinds.NO_TERMINAL_EVENT),
        (b": only a comment\n\ndata: {}\n\n", kinds.NO_TERMINAL_EVENT),
        (b"data: [DONE]\n\n", kinds.EMPTY),
    ],
)
def test_a_body_that_is_no_good_stream_fails_with_its_kind(raw: bytes, kind: str) -> None:
    assert read(raw=raw).error_kind == kind


@pytest.mark.parametrize(("status", "kind"), [(429, "http_4xx"), (503, "http_5xx"), (302, "http_other")])
def test_a_status_other_than_200_fails_with_its_class(status: int, kind: str) -> None:
    outcome = read(status=status)
    assert (outcome.error_kind, outcome.status) == (kind, status)


def test_a_transport_failure_before_the_terminal_event_is_the_failure() -> None:
    reading = StreamReading("completions", lambda _: None)
    reading.response.status, reading.response.error_kind = 200, kinds.CLOSED_EARLY
    reading.feed(1, b"data: %s\n\n" % json.dumps(text("a")).encode())
    assert reading.outcome(5).error_kind == kinds.CLOSED_EARLY


def test_a_close_after_the_terminal_event_is_no_failure() -> None:
    reading = StreamReading("completions", lambda _: None)
    reading.response.status, reading.response.error_kind = 200, kinds.CLOSED_EARLY
    reading.feed(1, b"data: %s\n\n" % json.dumps(text("a", "stop")).encode())
    assert reading.outcome(5).error_kind is None


def test_no_token_is_right_when_none_was_asked_for() -> None:
    assert read(text("", "length"), DONE, max_tokens=0).error_kind is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["id", "choices", "text", "delta", "usage", "content", "role", "finish_reason", "completion_tokens"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.lists(JSON | st.binary(max_size=20), max_size=5), st.sampled_from(["completions", "chat"]))
def test_no_document_whatever_its_types_raises(documents: list[Any], endpoint: str) -> None:
    reading = StreamReading(endpoint, lambda _: None)
    reading.response.status = 200
    for document in documents:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        reading.feed(1, b"data: %s\n\n" % data)
    outcome = reading.outcome(1)
    for value in (outcome.server_id, outcome.finish_reason, outcome.error):
        assert value is None or value.encode()
    assert 0 <= outcome.output_tokens < 1 << 31


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_body_is_json_with_what_a_server_needs(endpoint: str) -> None:
    workload = Workload(WorkloadSpec(isl=12, osl=4, isl_spread=0))
    draw = workload.draw(1, 2)
    body = json.loads(BodyTemplate(endpoint, 'a "model"').render(workload.prompts, draw))
    prompt = body.pop("messages", None) or body.pop("prompt")
    assert body == {
        "model": 'a "model"',
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "max_tokens": draw.max_tokens,
    }
    if endpoint == "chat":
        assert prompt == [{"role": "user", "content": workload.prompts.text(draw.pieces).decode()}]
    else:
        assert prompt == workload.token_ids(draw)


def test_an_endpoint_may_be_named_or_given_as_its_path() -> None:
    assert [endpoint_named(name) for name in ("chat", "/v1/completions")] == ["chat", "completions"]
    with pytest.raises(UsageError, match="embeddings"):
        endpoint_named("embeddings")


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_extra_body_fields_are_added_replace_ours_or_take_them_out(endpoint: str) -> None:
    workload = Workload(WorkloadSpec(isl=12, osl=4))
    extra = {"ignore_eos": None, "temperature": 0.5, "stream_options": {"include_usage": False}}
    body = json.loads(BodyTemplate(endpoint, "m", extra).render(workload.prompts, workload.draw(0, 0)))
    assert "ignore_eos" not in body
    assert (body["temperature"], body["stream_options"]) == (0.5, {"include_usage": False})


@pytest.mark.parametrize("name", ["prompt", "messages", "max_tokens"])
def test_an_extra_field_that_the_workload_sets_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        BodyTemplate("completions", "m", {name: 1})


def test_the_responses_api_takes_the_prompt_as_input_and_its_own_limit() -> None:
    workload = Workload(WorkloadSpec(isl=12, osl=4))
    draw = workload.draw(0, 0)
    body = json.loads(BodyTemplate("responses", "m").render(workload.prompts, draw))
    assert (body["input"], body["max_output_tokens"]) == (workload.prompts.text(draw.pieces).decode(), draw.max_tokens)
    assert "stream_options" not in body


def responses(*tail: dict[str, Any]) -> list[dict[str, Any]]:
    created = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "error": None}}
    added = {"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}}
    return [created, added, *tail]


def piece(text_: str, kind: str = "response.output_text.delta") -> dict[str, Any]:
    return {"type": kind, "item_id": "i", "delta": text_}


def ended(status: str = "completed", tokens: int = 2) -> dict[str, Any]:
    cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
    response = {"id": "resp_1", "status": status, "error": None, "incomplete_details": cut}
    return {"type": f"response.{status}", "response": {**response, "usage": {"output_tokens": tokens}}}


def test_a_response_of_the_responses_api_is_read_by_its_deltas_and_its_end() -> None:
    outcome = read(*responses(piece("a"), piece("b"), ended()), endpoint="responses", separators=(",", ":"))
    assert list(outcome.chunk_ns) == [103, 104]
    assert (outcome.output_tokens, outcome.finish_reason, outcome.server_id) == (2, "stop", "resp_1")
    assert outcome.error_kind is None
    assert read(*responses(piece("a"), ended("incomplete")), endpoint="responses").finish_reason == "length"


def test_a_responses_api_stream_without_its_last_event_is_cut() -> None:
    assert read(*responses(piece("a")), endpoint="responses").error_kind == kinds.NO_TERMINAL_EVENT


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "server_error", "message": "boom"},
        {"type": "response.failed", "response": {"status": "failed", "error": {"message": "boom"}}},
    ],
)
def test_a_failed_response_is_a_failure(event: dict[str, Any]) -> None:
    outcome = read(*responses(piece("a"), event), endpoint="responses")
    assert (outcome.error_kind, outcome.error) == (kinds.ERROR_IN_STREAM, "boom")


def test_thoughts_count_as_tokens_and_the_first_answer_is_told_apart() -> None:
    thought, answer = delta(reasoning_content="hm"), delta(content="yes")
    outcome = read(thought, thought, thought, answer, answer, delta("stop"), DONE, endpoint="chat")
    assert list(outcome.chunk_ns) == [101, 102, 103, 104, 105]
    assert outcome.first_answer_ns == 104
    deltas = [piece("hm", "response.reasoning_text.delta"), piece("a"), piece("b"), ended(tokens=3)]
    assert read(*responses(*deltas), endpoint="responses").first_answer_ns == 104
    assert read(answer, answer, delta("stop"), DONE, endpoint="chat").first_answer_ns is None


def test_choices_that_come_in_one_event_are_one_chunk_of_several_tokens() -> None:
    both = {"id": "r", "choices": [{"index": k, "text": "x", "finish_reason": None} for k in range(2)]}
    outcome = read(both, both, text("x", "stop"), usage(5), DONE)
    assert (list(outcome.chunk_ns), list(outcome.chunk_tokens)) == ([101, 102, 103], [2, 2, 1])
    assert outcome.output_tokens == 5


@pytest.mark.parametrize(
    "told", [{"token_ids": [5, 6, 7]}, {"logprobs": {"tokens": ["a", "b", "c"]}}, {"logprobs": {"content": [{}] * 3}}]
)
def test_a_chunk_that_tells_its_tokens_is_taken_at_its_word(told: dict[str, Any]) -> None:
    choice = {"index": 0, "text": "abc", "finish_reason": None, **told}
    outcome = read({"id": "r", "choices": [choice]}, {"id": "r", "choices": [{**choice, "finish_reason": "stop"}]})
    assert (list(outcome.chunk_tokens), outcome.output_tokens, outcome.output_tokens_source) == ([3, 3], 6, "wire")


def test_the_time_to_come_back_is_kept_with_the_refusal() -> None:
    reading = StreamReading("chat", lambda _: None)
    reading.response.status, reading.response.retry_after = 429, b"7"
    reading.response.error_body += b"slow down"
    assert reading.outcome(1).error == "status 429 (Retry-After: 7): slow down"


def test_a_request_is_cut_at_the_wanted_chunk_and_only_once() -> None:
    cuts = []
    reading = StreamReading("completions", lambda _: None, 3, lambda kind, _: cuts.append(kind))
    for number in range(5):
        reading.feed(number, b"data: %s\n\n" % json.dumps(text("a")).encode())
    assert cuts == [kinds.ABORTED]


def test_chunks_of_one_read_are_counted_as_merged_but_for_the_last() -> None:
    reading = StreamReading("completions", lambda _: None)
    reading.response.status = 200
    one = b"data: %s\n\n" % json.dumps(text("a")).encode()
    for now, count in ((1, 1), (2, 3), (3, 1)):
        reading.feed(now, one * count)
    outcome = reading.outcome(5)
    assert (list(outcome.chunk_ns), outcome.merged_chunks) == ([1, 2, 2, 2, 3], 2)


@pytest.mark.parametrize("size", [1, 2, 5, 6, 7, 30])
def test_any_split_of_a_stream_gives_the_same_tokens(size: int) -> None:
    documents = [text("a"), text("b"), text('"'), text("c", "length"), usage(4)]
    raw = b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in documents) + b"data: [DONE]\n\n"
    reading = StreamReading("completions", lambda _: None)
    reading.response.status = 200
    for place in range(0, len(raw), size):
        reading.feed(1 + place, raw[place : place + size])
    outcome = reading.outcome(4)
    assert (outcome.error_kind, len(outcome.chunk_ns), outcome.output_tokens) == (None, 4, 4)
