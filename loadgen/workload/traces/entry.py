"""One request of a trace, or one conversation, whatever the format it was written in."""

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_TOKENS = 512  # of one hash id in Mooncake's traces


class EntryError(ValueError):
    """A line that cannot be used; the message says why, the reader says where."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a line says; None or empty where it says nothing.

    `line` counts from 1 (conversations of a JSON array: the conversation's number). `at_ns` is on the trace's own
    clock. `hash_ids` name the prompt's blocks of 512 tokens. `ids` is a prompt of token ids; `texts` one of text, or a
    conversation: what was asked and what was answered, in turns; `counts` are the tokens of each, if they were counted.
    """

    line: int
    at_ns: int | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    hash_ids: Sequence[int] = ()
    ids: Sequence[int] = ()
    texts: Sequence[str] = ()
    counts: Sequence[int] = ()
