"""OpenAI's completions and chat API: request bodies, and what the events of a streamed response mean.

On arrival an event is stamped and, in the common case, recognised as one token by a few substring checks; JSON is
parsed only where those do not settle it (the first event, the last ones, empty texts, anything unusual). The checks
are safe because a quote inside a JSON string is escaped: `"text":"` cannot occur inside a generated text.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contracts.errors import UsageError
from loadgen import kinds
from loadgen.http import Response
from loadgen.outcome import FirstToken, Outcome
from loadgen.sse import SseError, SseParser
from loadgen.workload import Draw, Workload

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_DELTA_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_DELTA_CALLS = ("tool_calls", "function_call")
_MESSAGE_CHARS = 500
_MOST_TOKENS = 1 << 30  # what a record's column holds; a usage beyond it is nonsense


def endpoint_named(name: str) -> str:
    """Give the key of `PATHS` for a name or a path. Raises UsageError."""
    for key, path in PATHS.items():
        if name in (key, path):
            return key
    raise UsageError(f"unknown endpoint {name!r}; use one of {', '.join(PATHS)}")


@dataclass(frozen=True, slots=True)
class BodyTemplate:
    """The JSON bodies of one load: everything but the prompt and max_tokens is rendered once."""

    endpoint: str
    model: str

    def render(self, workload: Workload, draw: Draw) -> bytes:
        head = (
            b'{"model":%s,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"max_tokens":%d,'
            % (json.dumps(self.model).encode(), draw.max_tokens)
        )
        if self.endpoint == "chat":
            return b'%s"messages":[{"role":"user","content":"%s"}]}' % (head, workload.text(draw))
        return b'%s"prompt":[%s]}' % (head, workload.json_ids(draw))


class StreamReading:
    """What one streamed response has said so far; `feed` is the arrival path, `outcome` is for when it is over."""

    __slots__ = (
        "_chat", "_done", "_error", "_events", "_finish", "_id", "_kind", "_maybe_ns", "_on_first", "_parser", "_plain",
        "_times", "_unread", "_usage", "response",
    )  # fmt: skip

    def __init__(self, endpoint: str, on_first: FirstToken) -> None:
        self._chat = endpoint == "chat"
        self._on_first = on_first
        self._parser = SseParser()
        self._times: list[int] = []
        self._maybe_ns: int | None = None  # a finishing event with an empty text: a token, or only the notice
        self._events = 0
        self._unread = 0  # bytes before the first event
        self._plain: bytearray | None = None  # the body's beginning when it is no event stream
        self._id: str | None = None
        self._finish: str | None = None
        self._usage: int | None = None
        self._done = False
        self._kind: str | None = None
        self._error: str | None = None
        self.response = Response(self.feed)

    def feed(self, now_ns: int, data: bytes) -> None:
        """Take a piece of the body that arrived at `now_ns`. Never raises."""
        if self._kind is not None:
            return
        if self._events == 0:
            self._unread += len(data)
            if self._is_plain(data):
                return
        try:
            events = self._parser.feed(data)
        except SseError as error:
            self._fail(kinds.BAD_STREAM, str(error))
            return
        for payload, name in events:
            self._event(now_ns, payload, name)

    def outcome(self, max_tokens: int) -> Outcome:
        """Judge the response, which must be over."""
        response = self.response
        if response.error_kind is None and response.status == 200 and self._kind is None and self._plain is None:
            for payload, name in self._parser.finish():
                self._event(response.end_ns, payload, name)
        times = self._times
        if self._maybe_ns is not None and self._usage == len(times) + 1:
            times.append(self._maybe_ns)
        kind, error = self._verdict(response, max_tokens)
        one_each = self._usage == len(times)  # no chunk carries less than one, so each carries exactly one
        return Outcome(
            sent_ns=response.sent_ns,
            end_ns=response.end_ns,
            first_byte_ns=response.first_byte_ns,
            chunk_ns=times,
            chunk_tokens=[1] * len(times) if one_each else None,
            server_id=self._id or None,
            status=response.status,
            finish_reason=self._finish,
            output_tokens=len(times) if self._usage is None else self._usage,
            output_tokens_source="chunks" if self._usage is None else "usage",
            error_kind=kind,
            error=error,
            received_bytes=response.received_bytes,
        )

    def _verdict(self, response: Response, max_tokens: int) -> tuple[str | None, str | None]:
        terminal = self._done or self._finish is not None
        status = response.status
        if status is not None and status != 200:
            kind = {4: kinds.HTTP_4XX, 5: kinds.HTTP_5XX}.get(status // 100, kinds.HTTP_OTHER)
            return kind, f"status {status}: {_excerpt(response.error_body)}"
        if self._kind is not None:
            return self._kind, self._error
        if response.error_kind is not None and not (response.error_kind == kinds.CLOSED_EARLY and terminal):
            return response.error_kind, response.error
        if self._plain is not None:
            return _judge_plain(bytes(self._plain))
        return self._verdict_of_events(max_tokens, terminal=terminal)

    def _verdict_of_events(self, max_tokens: int, *, terminal: bool) -> tuple[str | None, str | None]:
        if self._events == 0 and self._unread:
            return kinds.BAD_STREAM, "the body holds no server-sent event"
        if not terminal:
            return kinds.NO_TERMINAL_EVENT, f"ended after {len(self._times)} chunks without finish reason or [DONE]"
        if not self._times and max_tokens > 0:
            return kinds.EMPTY, "ended well, but no chunk carried a token"
        return None, None

    def _is_plain(self, data: bytes) -> bool:
        if self._plain is None:
            if data.lstrip()[:1] not in (b"{", b"[", b"<"):
                return False
            self._plain = bytearray()
        if len(self._plain) < 65536:
            self._plain += data
        return True

    def _event(self, now_ns: int, data: bytes, name: bytes) -> None:
        if self._kind is not None:
            return
        self._events += 1
        if self._id is not None and not name and self._is_token(data):
            self._token(now_ns)
            return
        if data == b"[DONE]":
            self._done = True
            return
        self._parse(now_ns, data, name)

    def _token(self, now_ns: int) -> None:
        if not self._times:
            self._on_first(now_ns - self.response.sent_ns)
        self._times.append(now_ns)

    def _is_token(self, data: bytes) -> bool:
        """Say whether the event is certainly one ordinary token; False only means that it must be parsed."""
        if b'"finish_reason":null' not in data and b'"finish_reason": null' not in data:
            return False
        if b'"error"' in data:
            return False
        if not self._chat:
            return b'"text":"' in data or b'"text": "' in data
        if b'"content":"' in data:
            return b'"content":""' not in data
        return b'"content": "' in data and b'"content": ""' not in data

    def _parse(self, now_ns: int, data: bytes, name: bytes) -> None:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            kind = kinds.ERROR_IN_STREAM if name == b"error" else kinds.BAD_STREAM
            self._fail(kind, f"not JSON: {_excerpt(data)}")
            return
        error = _error_in(document)
        if error is not None or name == b"error":
            self._fail(kinds.ERROR_IN_STREAM, error or _excerpt(data))
            return
        if not isinstance(document, dict):
            self._fail(kinds.BAD_STREAM, f"not an object: {_excerpt(data)}")
            return
        if self._id is None:
            self._id = _clean(document.get("id") or "")
        usage = document.get("usage")
        if isinstance(usage, dict):
            count = usage.get("completion_tokens")
            if isinstance(count, int) and 0 <= count <= _MOST_TOKENS:
                self._usage = count
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._choice(now_ns, choice)

    def _choice(self, now_ns: int, choice: Mapping[str, Any]) -> None:
        finish = choice.get("finish_reason")
        if self._chat:
            delta = choice.get("delta")
            delta = delta if isinstance(delta, dict) else {}
            full = any(delta.get(key) for key in (*_DELTA_TEXTS, *_DELTA_CALLS)) or bool(choice.get("token_ids"))
            empty = delta.get("content") == "" and "role" not in delta
        else:
            full = bool(choice.get("text")) or bool(choice.get("token_ids"))
            empty = choice.get("text") == ""
        if full or (empty and not finish):
            self._token(now_ns)
        elif empty:
            self._maybe_ns = now_ns
        if finish:
            self._finish = _clean(finish)

    def _fail(self, kind: str, message: str) -> None:
        self._kind = kind
        self._error = message


def _error_in(document: Any) -> str | None:
    """Give the message of an error object, in the forms that OpenAI, vLLM, SGLang and FastAPI use."""
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if not error and document.get("object") == "error":
        error = document
    if not error and "choices" not in document:
        error = document.get("detail")
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return _clean(message or error)


def _judge_plain(body: bytes) -> tuple[str, str]:
    try:
        error = _error_in(json.loads(body))
    except (ValueError, RecursionError):
        error = None
    if error is not None:
        return kinds.ERROR_BODY, error
    return kinds.BAD_STREAM, f"the body is no event stream: {_excerpt(body)}"


def _clean(value: Any) -> str:
    """Make text of whatever the server sent: bounded, and without lone surrogates, which no file could hold."""
    return str(value)[:_MESSAGE_CHARS].encode("utf-8", "replace").decode()


def _excerpt(data: bytes | bytearray) -> str:
    return data[:_MESSAGE_CHARS].decode("utf-8", "replace")
