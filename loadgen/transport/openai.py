"""What the events of a streamed response mean, in OpenAI's completions, chat and Responses APIs.

An event is stamped on arrival. JSON is parsed for the first token of a response, for the last events and for anything
unusual; an ordinary token in between is recognised by substrings, and mostly by one comparison: the same bytes before
and after its text as an event that was recognised already. That is safe because a quote inside a JSON string is
escaped, so that `"text":"` cannot occur inside a generated text.
"""

import json
from typing import Any

from loadgen import kinds
from loadgen.outcome import Cancel, FirstToken, Outcome
from loadgen.text import clean, excerpt
from loadgen.transport.deltas import Delta, chat_delta, completion_delta, error_in, finish_of, responses_delta
from loadgen.transport.http import Response
from loadgen.transport.sse import SseError, SseParser

_TEXT = (b'"text":"', b'"text": "')
_CONTENT = (b'"content":"', b'"content": "')
_THOUGHT = (b'"reasoning_content":"', b'"reasoning_content": "', b'"reasoning":"', b'"reasoning": "')
_NEEDLES = {"completions": _TEXT, "chat": _CONTENT + _THOUGHT, "responses": ()}
_RESPONSES_TOKEN = b'{"type":"response.output_text.delta"'
_PLAIN_BYTES = 65536
_MOST_TOKENS = 1 << 30  # what a record's column holds; a usage beyond it is nonsense


class StreamReading:
    """What one streamed response has said so far; `feed` is the arrival path, `outcome` is for when it is over.

    With `cut_after` the request is cancelled, by `cut`, as soon as so many chunks carried a token.
    """

    __slots__ = (
        "_api", "_counts", "_cut", "_cut_after", "_done", "_error", "_events", "_exact", "_finish", "_first_answer_ns",
        "_id", "_kind", "_maybe_ns", "_on_first", "_parser", "_plain", "_sniffed", "_thought", "_times",
        "_unread", "_usage", "response",
    )  # fmt: skip

    def __init__(
        self, endpoint: str, on_first: FirstToken, cut_after: int | None = None, cut: Cancel | None = None
    ) -> None:
        self._api = endpoint
        self._on_first = on_first
        self._cut_after = cut_after
        self._cut = cut
        self._parser = SseParser()
        self._counts: dict[int, int] = {}  # of the chunks that carry other than one token
        self._exact = True  # every token-carrying event said how many tokens it holds
        self._maybe_ns: int | None = None  # a finishing event with an empty text: a token, or only the notice
        self._thought = False
        self._first_answer_ns: int | None = None
        self._events = 0
        self._unread = 0  # bytes before the first event
        self._sniffed = False  # the body's first byte that is not blank was seen
        self._plain: bytearray | None = None  # the body's beginning when it is no event stream
        self._id: str | None = None
        self._finish: str | None = None
        self._usage: int | None = None
        self._done = False
        self._kind: str | None = None
        self._error: str | None = None
        self.response = Response(self.feed)
        self._times = self.response.plain_ns  # where those land, too, that never come here

    def feed(self, now_ns: int, data: bytes) -> None:
        """Take a piece of the body that arrived at `now_ns`. Never raises."""
        if self._kind is not None:
            return
        self.response.prefix = b""
        if self._events == 0:
            self._unread += len(data)
            if self._is_plain(data):
                return
        try:
            events = self._parser.feed(data)
        except SseError as error:
            self._fail(kinds.BAD_STREAM, str(error))
            return
        needle = None
        for payload, name in events:
            needle = self._event(now_ns, payload, name)
        if needle is not None and len(events) == 1 and self._parser.clean and self._cut_after is None:
            self._learn(data, needle)

    def outcome(self, max_tokens: int) -> Outcome:
        """Judge the response, which must be over."""
        response = self.response
        if response.error_kind is None and response.status == 200 and self._kind is None and self._plain is None:
            for payload, name in self._parser.finish():
                self._event(response.end_ns, payload, name)
        times = self._times
        if self._maybe_ns is not None and self._usage == self._counted() + 1:
            times.append(self._maybe_ns)
        kind, error = self._verdict(response) or self._verdict_of_events(max_tokens)
        exact = bool(times) and self._exact
        known = exact or self._usage == self._counted()  # no chunk carries fewer than we counted
        tokens, source = self._usage, "usage"
        if tokens is None:
            tokens, source = (self._counted(), "wire") if exact else (len(times), "chunks")
        return Outcome(
            sent_ns=response.sent_ns,
            end_ns=response.end_ns,
            first_byte_ns=response.first_byte_ns,
            chunk_ns=times,
            chunk_tokens=self._chunk_tokens() if known else None,
            server_id=self._id or None,
            status=response.status,
            finish_reason=self._finish,
            output_tokens=tokens,
            output_tokens_source=source,
            error_kind=kind,
            error=error,
            received_bytes=response.received_bytes,
            arrival_clock=response.arrival_clock,
            merged_chunks=len(times) - len(set(times)),
            client_lag_ns=response.lag_ns if response.stamped else None,
            first_answer_ns=self._first_answer_ns,
        )

    def _counted(self) -> int:
        return len(self._times) + sum(self._counts.values()) - len(self._counts)

    def _chunk_tokens(self) -> list[int]:
        tokens = [1] * len(self._times)
        for place, count in self._counts.items():
            tokens[place] = count
        return tokens

    def _verdict(self, response: Response) -> tuple[str, str | None] | None:
        """Judge what the events need not be asked about."""
        status = response.status
        if status is not None and status != 200:
            kind = {4: kinds.HTTP_4XX, 5: kinds.HTTP_5XX}.get(status // 100, kinds.HTTP_OTHER)
            later = "" if response.retry_after is None else f" (Retry-After: {excerpt(response.retry_after)})"
            return kind, f"status {status}{later}: {excerpt(response.error_body)}"
        if self._kind is not None:
            return self._kind, self._error
        if response.error_kind is not None and not (response.error_kind == kinds.CLOSED_EARLY and self._terminal):
            return response.error_kind, response.error
        if self._plain is not None:
            return _judge_plain(bytes(self._plain))
        return None

    @property
    def _terminal(self) -> bool:
        return self._done or self._finish is not None

    def _verdict_of_events(self, max_tokens: int) -> tuple[str | None, str | None]:
        if self._events == 0 and self._unread:
            return kinds.BAD_STREAM, "the body holds no server-sent event"
        if not self._terminal:
            return kinds.NO_TERMINAL_EVENT, f"ended after {len(self._times)} chunks without finish reason or [DONE]"
        if not self._times and max_tokens > 0:
            return kinds.EMPTY, "ended well, but no chunk carried a token"
        return None, None

    def _learn(self, data: bytes, needle: bytes) -> None:
        """Keep what surrounds the text of this event, if it is all of one `data:` line."""
        start = data.find(needle) + len(needle)
        end = data.find(b'"', start)
        if data.startswith(b"data: ") and data.find(b"\n") == len(data) - 2 and b"\\" not in data[start:end]:
            self.response.prefix, self.response.suffix = data[:start], data[end:] + b"\r\n"

    def _is_plain(self, data: bytes) -> bool:
        """Keep a body that is no event stream, as its first byte tells that is not blank."""
        if not self._sniffed:
            start = data.lstrip()[:1]
            self._sniffed = bool(start)
            if start in (b"{", b"[", b"<"):
                self._plain = bytearray()
        if self._plain is None:
            return False
        if len(self._plain) < _PLAIN_BYTES:
            self._plain += data
        return True

    def _event(self, now_ns: int, data: bytes, name: bytes) -> bytes | None:
        """Take an event; give the mark before its text if it was an ordinary token that needed no parsing."""
        if self._kind is not None:
            return None
        self._events += 1
        if self._times and self._counts_as_one(name):
            if data.startswith(_RESPONSES_TOKEN) and self._api == "responses":
                self._token(now_ns, 1)
                return None
            needle = self._ordinary(data)
            if needle is not None:
                self._token(now_ns, 1, thought=needle in _THOUGHT)
                return needle
        if data == b"[DONE]":
            self._done = True
        else:
            self._parse(now_ns, data, name)
        return None

    def _counts_as_one(self, name: bytes) -> bool:
        """Say whether events need no look at how many tokens they hold: those of this response do not tell."""
        return not self._exact and (not name or self._api == "responses")

    def _ordinary(self, data: bytes) -> bytes | None:
        """Give the mark before the text if the event is certainly one token; None only means that it must be parsed."""
        if b'"finish_reason":null' not in data and b'"finish_reason": null' not in data:
            return None
        if data.count(b'"finish_reason"') != 1 or b'"error"' in data:
            return None
        for needle in _NEEDLES[self._api]:
            at = data.find(needle)
            if at >= 0 and (data[at + len(needle) : at + len(needle) + 1] != b'"' or needle in _TEXT):
                return needle
        return None

    def _token(self, now_ns: int, count: int, *, thought: bool = False) -> None:
        if thought:
            self._thought = True
        elif self._thought and self._first_answer_ns is None:
            self._first_answer_ns = now_ns
        if count != 1:
            self._counts[len(self._times)] = count
        self._times.append(now_ns)
        if len(self._times) == 1:
            self._on_first(now_ns - self.response.sent_ns)
        if len(self._times) == self._cut_after and self._cut is not None:
            self._cut(kinds.ABORTED, f"cut after {self._cut_after} chunks, as the load was told to")

    def _parse(self, now_ns: int, data: bytes, name: bytes) -> None:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            kind = kinds.ERROR_IN_STREAM if name == b"error" else kinds.BAD_STREAM
            self._fail(kind, f"not JSON: {excerpt(data)}")
            return
        error = error_in(document)
        if error is not None or name == b"error":
            self._fail(kinds.ERROR_IN_STREAM, error or excerpt(data))
        elif not isinstance(document, dict):
            self._fail(kinds.BAD_STREAM, f"not an object: {excerpt(data)}")
        elif self._api == "responses":
            self._take(now_ns, responses_delta(document), document.get("response"))
        else:
            read = chat_delta if self._api == "chat" else completion_delta
            choices = document.get("choices")
            known = [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
            deltas = [read(choice) for choice in known]
            for choice, delta in zip(known, deltas, strict=True):
                self._finish = finish_of(choice) or self._finish
                if delta.maybe:
                    self._maybe_ns = now_ns
            self._take(now_ns, Delta.together(deltas), document)

    def _take(self, now_ns: int, delta: Delta, document: Any) -> None:
        """Take a chunk's tokens, and the response's id, end and usage where it tells them."""
        if isinstance(document, dict):
            if self._id is None:
                self._id = clean(document.get("id") or "")
            usage = document.get("usage")
            if isinstance(usage, dict):
                count = usage.get("output_tokens" if self._api == "responses" else "completion_tokens")
                if isinstance(count, int) and 0 <= count <= _MOST_TOKENS:
                    self._usage = count
        if delta.finish is not None:
            self._finish = delta.finish
        if delta.tokens:
            self._exact = self._exact and delta.exact
            self._token(now_ns, delta.tokens, thought=delta.thought)

    def _fail(self, kind: str, message: str) -> None:
        self._kind = kind
        self._error = message


def _judge_plain(body: bytes) -> tuple[str, str]:
    try:
        error = error_in(json.loads(body))
    except (ValueError, RecursionError):
        error = None
    if error is not None:
        return kinds.ERROR_BODY, error
    return kinds.BAD_STREAM, f"the body is no event stream: {excerpt(body)}"
