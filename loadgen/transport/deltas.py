"""What one JSON event of a stream carries: how many tokens, a thought or an answer, an end, an error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.text import clean

_ANSWERS = ("content", "refusal", "tool_calls", "function_call")
_THOUGHTS = ("reasoning_content", "reasoning")
_TERMINAL = ("response.completed", "response.incomplete")


@dataclass(frozen=True, slots=True)
class Delta:
    """A chunk's tokens. `exact`: it said how many. `maybe`: a token only if the usage says so. `finish` ends all."""

    tokens: int = 0
    exact: bool = False
    thought: bool = False
    maybe: bool = False
    finish: str | None = None

    @staticmethod
    def together(deltas: Sequence["Delta"]) -> "Delta":
        """Add up the choices of one event: they came at the same time."""
        if len(deltas) == 1:
            return deltas[0]
        carrying = [delta for delta in deltas if delta.tokens]
        return Delta(
            tokens=sum(delta.tokens for delta in carrying),
            exact=all(delta.exact for delta in carrying),
            thought=bool(carrying) and all(delta.thought for delta in carrying),
        )


def completion_delta(choice: Mapping[str, Any]) -> Delta:
    """Read a choice of the completions API. A token whose text is empty counts; at the end only the usage can tell."""
    told = _told(choice)
    if told is not None:
        return Delta(tokens=told, exact=True)
    if choice.get("text"):
        return Delta(tokens=1)
    empty = choice.get("text") == ""
    if choice.get("finish_reason"):
        return Delta(maybe=empty)
    return Delta(tokens=int(empty))


def chat_delta(choice: Mapping[str, Any]) -> Delta:
    """Read a choice of the chat API: text, thoughts, refusals and tool calls carry tokens, a role does not."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        delta = {}
    answer = any(delta.get(key) for key in _ANSWERS)
    thought = not answer and any(delta.get(key) for key in _THOUGHTS)
    told = _told(choice)
    if told is not None:
        return Delta(tokens=told, exact=True, thought=thought)
    if answer or thought:
        return Delta(tokens=1, thought=thought)
    empty = delta.get("content") == "" and "role" not in delta
    if choice.get("finish_reason"):
        return Delta(maybe=empty)
    return Delta(tokens=int(empty))


def responses_delta(document: Mapping[str, Any]) -> Delta:
    """Read an event of the Responses API: every kind of delta carries a token; the last event ends the response."""
    kind = document.get("type")
    if not isinstance(kind, str):
        return Delta()
    if kind in _TERMINAL:
        return Delta(finish=_why(document.get("response")))
    if kind.endswith(".delta") and isinstance(document.get("delta"), str):
        return Delta(tokens=int(bool(document["delta"]) or "output_text" in kind), thought="reasoning" in kind)
    return Delta()


def finish_of(choice: Any) -> str | None:
    """Give a choice's finish reason."""
    reason = choice.get("finish_reason") if isinstance(choice, dict) else None
    return clean(reason) if reason else None


def error_in(document: Any) -> str | None:
    """Give the message of an error object, in the forms that OpenAI, vLLM, SGLang and FastAPI use."""
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if not error and (document.get("object") == "error" or document.get("type") == "error"):
        error = document
    response = document.get("response")
    if not error and document.get("type") == "response.failed":
        error = (response.get("error") if isinstance(response, dict) else None) or "the response failed"
    if not error and "choices" not in document and "type" not in document:
        error = document.get("detail")
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return clean(message or error)


def _told(choice: Mapping[str, Any]) -> int | None:
    """Give the number of tokens that the server itself tells: their ids, or one log-probability each."""
    ids = choice.get("token_ids")
    if isinstance(ids, list) and ids:
        return len(ids)
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        for key in ("tokens", "content"):
            listed = logprobs.get(key)
            if isinstance(listed, list) and listed:
                return len(listed)
    return None


def _why(response: Any) -> str:
    """Name the end as the other APIs do: stop, or what cut the response short."""
    if not isinstance(response, dict) or response.get("status") != "incomplete":
        return "stop"
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return "length" if reason == "max_output_tokens" else clean(reason or "incomplete")
