"""Request bodies of OpenAI's completions, chat and Responses APIs, with what servers add to them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.errors import UsageError
from loadgen.workload.prompts import USER, Message, Prompts, join_messages
from loadgen.workload.synthetic import Draw

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "responses": "/v1/responses"}
_PROMPTS = ("prompt", "messages", "input")


def endpoint_named(name: str) -> str:
    """Give the key of `PATHS` for a name or a path. Raises UsageError."""
    for key, path in PATHS.items():
        if name in (key, path):
            return key
    raise UsageError(f"unknown endpoint {name!r}; use one of {', '.join(PATHS)}")


@dataclass(frozen=True, slots=True)
class BodyTemplate:
    """The JSON bodies of one load: everything but the prompt and the number of tokens is rendered once.

    `extra` fields are added, or replace ours; one whose value is None is left out, for servers that refuse what they
    do not know (`{"ignore_eos": None}`). A prompt, and the field of the number of tokens, stay ours.
    """

    endpoint: str
    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    _head: bytes = field(init=False, repr=False, default=b"")

    def __post_init__(self) -> None:
        limit = "max_output_tokens" if self.endpoint == "responses" else "max_tokens"
        for name in (limit, *_PROMPTS):
            if name in self.extra:
                raise UsageError(f"the body's field {name!r} is the workload's to set")
        fields: dict[str, Any] = {"model": self.model, "stream": True}
        if self.endpoint != "responses":
            fields["stream_options"] = {"include_usage": True}
        fields["ignore_eos"] = True
        fields.update(self.extra)
        known = {name: value for name, value in fields.items() if value is not None}
        head = json.dumps(known, separators=(",", ":"), allow_nan=False)[:-1] + ("," if known else "")
        object.__setattr__(self, "_head", f'{head}"{limit}":'.encode())

    def render(self, prompts: Prompts, draw: Draw) -> bytes:
        pieces = draw.pieces
        if draw.messages is not None:
            return self._render_given(draw.messages, draw.max_tokens)
        if self.endpoint == "completions":
            return b'%s%d,"prompt":[%s]}' % (self._head, draw.max_tokens, prompts.json_ids(pieces))
        if self.endpoint == "chat":
            return b'%s%d,"messages":[%s]}' % (self._head, draw.max_tokens, prompts.messages(pieces))
        if all(piece.role == USER for piece in pieces):
            return b'%s%d,"input":"%s"}' % (self._head, draw.max_tokens, prompts.text(pieces))
        return b'%s%d,"input":[%s]}' % (self._head, draw.max_tokens, prompts.messages(pieces))

    def _render_given(self, messages: Sequence[Message], max_tokens: int) -> bytes:
        """Put given texts into a body; completions, which know no messages, get them as lines of one text."""
        if self.endpoint == "completions":
            text = b"\\n".join([message.content for message in messages])
            return b'%s%d,"prompt":"%s"}' % (self._head, max_tokens, text)
        if self.endpoint == "chat":
            return b'%s%d,"messages":[%s]}' % (self._head, max_tokens, join_messages(messages))
        if len(messages) == 1:
            return b'%s%d,"input":"%s"}' % (self._head, max_tokens, messages[0].content)
        return b'%s%d,"input":[%s]}' % (self._head, max_tokens, join_messages(messages))
