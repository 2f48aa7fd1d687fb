"""From a request's responses to the bytes of its HTTP answer: detokenise, then spell out OpenAI's chunks or body.

It is one piece of work that runs in one of two places: on the HTTP loop, or in the post-processing processes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from harness.reference import tokens
from harness.reference.frontend import protocol as oai
from harness.reference.types import Formatted, Response


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What a request's answer is to look like; known when the request comes in. `created` is in Unix seconds."""

    chat: bool
    streaming: bool
    include_usage: bool
    model: str
    created: int
    prompt_tokens: int

    def response_id(self, client_id: int) -> str:
        return f"{'chatcmpl' if self.chat else 'cmpl'}-{client_id}"


class Spelling(Protocol):
    """The parts of an answer as JSON: those of a streamed one, and the body of a whole one."""

    def opener(self) -> bytes: ...

    def chunk(self, text: str, finish_reason: str | None) -> bytes: ...

    def usage(self, counted: oai.Usage) -> bytes: ...

    def whole(self, text: str, finish_reason: str | None, counted: oai.Usage) -> bytes: ...


class ModelSpelling:
    """Pydantic models, dumped by pydantic: as in the original."""

    def __init__(self, response_id: str, form: AnswerForm) -> None:
        self._head: dict[str, Any] = {"id": response_id, "created": form.created, "model": form.model}
        self._chat = form.chat

    def opener(self) -> bytes:
        return self._delta(oai.ChatMessage(role="assistant"), None)

    def chunk(self, text: str, finish_reason: str | None) -> bytes:
        if self._chat:
            return self._delta(oai.ChatMessage(content=text), finish_reason)
        choice = oai.CompletionChoice(text=text, finish_reason=finish_reason)
        return _without_usage(oai.Completion(**self._head, choices=[choice]))

    def _delta(self, message: oai.ChatMessage, finish_reason: str | None) -> bytes:
        choice = oai.ChatDeltaChoice(delta=message, finish_reason=finish_reason)
        return _without_usage(oai.ChatChunk(**self._head, choices=[choice]))

    def usage(self, counted: oai.Usage) -> bytes:
        kind = oai.ChatChunk if self._chat else oai.Completion
        return kind(**self._head, choices=[], usage=counted).model_dump_json().encode()

    def whole(self, text: str, finish_reason: str | None, counted: oai.Usage) -> bytes:
        if self._chat:
            message = oai.ChatMessage(role="assistant", content=text)
            answer = oai.ChatChoice(message=message, finish_reason=finish_reason)
            return oai.ChatCompletion(**self._head, choices=[answer], usage=counted).model_dump_json().encode()
        choice = oai.CompletionChoice(text=text, finish_reason=finish_reason)
        return oai.Completion(**self._head, choices=[choice], usage=counted).model_dump_json().encode()


def _without_usage(part: BaseModel) -> bytes:
    return part.model_dump_json(exclude={"usage"}).encode()


class PlainSpelling:
    """Plain dicts, dumped by orjson; byte for byte what ModelSpelling writes."""

    def __init__(self, response_id: str, form: AnswerForm) -> None:
        import orjson

        self._dumps: Callable[[Any], bytes] = orjson.dumps
        self._chat = form.chat
        kind = "chat.completion.chunk" if form.chat else "text_completion"
        self._head = {"id": response_id, "object": kind, "created": form.created, "model": form.model}

    def opener(self) -> bytes:
        return self._delta({"role": "assistant", "content": None}, None)

    def chunk(self, text: str, finish_reason: str | None) -> bytes:
        if self._chat:
            return self._delta({"role": None, "content": text}, finish_reason)
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return self._dumps({**self._head, "choices": [choice]})

    def _delta(self, message: dict[str, str | None], finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": message, "logprobs": None, "finish_reason": finish_reason}
        return self._dumps({**self._head, "choices": [choice]})

    def usage(self, counted: oai.Usage) -> bytes:
        return self._dumps({**self._head, "choices": [], "usage": _plain(counted)})

    def whole(self, text: str, finish_reason: str | None, counted: oai.Usage) -> bytes:
        choice: dict[str, Any] = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        head = self._head
        if self._chat:
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
            head = {**head, "object": "chat.completion"}
        return self._dumps({**head, "choices": [choice], "usage": _plain(counted)})


def _plain(counted: oai.Usage) -> dict[str, int]:
    return {
        "prompt_tokens": counted.prompt_tokens,
        "completion_tokens": counted.completion_tokens,
        "total_tokens": counted.total_tokens,
    }


class AnswerWriter:
    """Writes one request's answer, response by response."""

    def __init__(self, client_id: int, form: AnswerForm, json_library: str) -> None:
        make = PlainSpelling if json_library == "orjson" else ModelSpelling
        self._spelling: Spelling = make(form.response_id(client_id), form)
        self._form = form
        self._text: list[str] = []
        self._output_tokens = 0
        self._opened = False

    def write(self, response: Response) -> Formatted:
        """Return what this response adds to the answer: events of a stream; of a whole answer the body, at its end."""
        text = tokens.decode(response.token_ids)
        self._output_tokens += len(response.token_ids)
        pieces = self._events(text, response) if self._form.streaming else self._body(text, response)
        return Formatted(response.client_id, pieces, len(response.token_ids), response.is_final, response.timing)

    def _events(self, text: str, response: Response) -> list[bytes]:
        parts = [] if self._opened or not self._form.chat else [self._spelling.opener()]
        self._opened = True
        parts.append(self._spelling.chunk(text, response.finish_reason))
        if response.is_final and self._form.include_usage:
            parts.append(self._spelling.usage(self._counted()))
        return [b"data: %b\n\n" % part for part in parts]

    def _body(self, text: str, response: Response) -> list[bytes]:
        self._text.append(text)
        if not response.is_final:
            return []
        return [self._spelling.whole("".join(self._text), response.finish_reason, self._counted())]

    def _counted(self) -> oai.Usage:
        return oai.Usage.of(self._form.prompt_tokens, self._output_tokens)
