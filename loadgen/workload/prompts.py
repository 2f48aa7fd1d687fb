"""Prompts as slices of a pool of token ids that is drawn once, rendered in whatever form an endpoint takes.

A slice stands behind a few tokens of its own, so that no two prompts share a prefix (a prefix cache would otherwise
answer) unless they are meant to, and making one costs a copy of bytes.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.workload.tokenizer import Vocabulary

FIRST_ID, LAST_ID = 256, 31999
USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
LONGEST_PIECE = 1 << 19
_POOL_TOKENS = 2 * LONGEST_PIECE
_OWN_TOKENS = 4
_OWN = struct.Struct("<4i")
_MASK = (1 << 64) - 1
# Frequent English words that byte-pair vocabularies hold whole with their blank, so that words are about tokens.
_WORD_LIST = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its "
    "about than into them can only other time new some could these two may first then do any like my now over such"
)
_WORDS = _WORD_LIST.split()


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a prompt: some tokens of its own, then the pool's from `start` to `end`. `role` is a chat role."""

    own: tuple[int, ...]
    start: int
    end: int
    role: str = USER

    @property
    def tokens(self) -> int:
        return len(self.own) + self.end - self.start


Pieces = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """A text that was given, escaped as the inside of a JSON string, and who says it (a chat role)."""

    role: str
    content: bytes


class Prompts:
    """The pool that pieces are cut from, and their rendering. Equal seeds give equal pools.

    With a vocabulary the pool is of its words alone, and texts have exactly as many tokens as they should.
    """

    def __init__(self, seed: int, vocabulary: Vocabulary | None = None) -> None:
        random = np.random.default_rng(seed)
        self._vocabulary = vocabulary
        if vocabulary is None:
            self._own_ids = list(range(FIRST_ID, LAST_ID + 1))
            self._ids = random.integers(FIRST_ID, LAST_ID + 1, size=_POOL_TOKENS, dtype=np.int32)
        else:
            self._own_ids = list(vocabulary.ids[: vocabulary.starters])
            self._ids = random.choice(np.array(vocabulary.ids, dtype=np.int32), size=_POOL_TOKENS)
            self._word_of = dict(zip(vocabulary.ids, [b" " + word.encode() for word in vocabulary.words], strict=True))
        self._bytes = self._ids.astype("<i4").tobytes()
        self._json = b""
        self._json_width = 0
        self._words = b""
        self._starts: list[int] = []

    def prepare(self, endpoint: str | None) -> None:
        """Render the pool for `json_ids` (completions) or text (chat, responses): a third of a second, done once."""
        if endpoint == "completions" and not self._json:
            digits = len(str(self._ids.max()))  # padded with blanks, which JSON allows: any slice is a memory copy
            self._json_width = digits + 1
            self._json = b"".join([b"%*d," % (digits, number) for number in self._ids.tolist()])
        if endpoint in ("chat", "responses") and not self._words:
            if self._vocabulary is None:
                words = [b" " + _WORDS[number % len(_WORDS)].encode() for number in self._ids.tolist()]
            else:
                words = [self._word_of[number] for number in self._ids.tolist()]
            self._words = b"".join(words)
            self._starts = [0, *np.cumsum([len(word) for word in words]).tolist()]

    def pieces(self, key: int, tokens: int, role: str = USER) -> Pieces:
        """Make the stretch of so many tokens that belongs to a 64-bit key: equal keys begin alike, others do not."""
        if tokens > LONGEST_PIECE:
            return self.pieces(key, LONGEST_PIECE, role) + self.pieces(mix(key), tokens - LONGEST_PIECE, role)
        ids = self._own_ids
        rest, one = divmod(mix(key), len(ids))
        rest, two = divmod(rest, len(ids))
        rest, three = divmod(rest, len(ids))
        own = (ids[one], ids[two], ids[three], ids[rest % len(ids)])
        if tokens < _OWN_TOKENS:
            return (Piece(own[:tokens], 0, 0, role),)
        start = key % (_POOL_TOKENS - LONGEST_PIECE)
        return (Piece(own, start, start + tokens - _OWN_TOKENS, role),)

    def int32(self, pieces: Pieces) -> bytes:
        """Give the prompt as little-endian int32 token ids."""
        parts = []
        for piece in pieces:
            own = piece.own
            parts.append(_OWN.pack(*own) if len(own) == _OWN_TOKENS else struct.pack(f"<{len(own)}i", *own))
            parts.append(self._bytes[4 * piece.start : 4 * piece.end])
        return b"".join(parts)

    def json_ids(self, pieces: Pieces) -> bytes:
        """Give the prompt's token ids as the inside of a JSON array."""
        self.prepare("completions")
        parts = []
        for piece in pieces:
            if piece.own:
                parts.append(b"%d,%d,%d,%d" % piece.own if len(piece.own) == _OWN_TOKENS else _join(piece.own))
            if piece.end > piece.start:
                parts.append(self._json[self._json_width * piece.start : self._json_width * piece.end - 1])
        return b",".join(parts)

    def text(self, pieces: Pieces) -> bytes:
        """Give a prompt as text without quotes: a word stands for a token, exactly so with a vocabulary."""
        self.prepare("chat")
        parts = []
        for piece in pieces:
            if self._vocabulary is None:
                parts += [b" %s%d" % (_WORDS[number % len(_WORDS)].encode(), number) for number in piece.own]
            else:
                parts += [self._word_of[number] for number in piece.own]
            parts.append(self._words[self._starts[piece.start] : self._starts[piece.end]])
        parts[0] = parts[0][1:]  # the blank before the first word
        return b"".join(parts)

    def messages(self, pieces: Pieces) -> bytes:
        """Give the prompt as the inside of a JSON array of chat messages, a new one wherever the role changes."""
        parts: list[Message] = []
        at = 0
        while at < len(pieces):
            end, role = at + 1, pieces[at].role
            while end < len(pieces) and pieces[end].role == role:
                end += 1
            parts.append(Message(role, self.text(pieces[at:end])))
            at = end
        return join_messages(parts)


def join_messages(messages: Sequence[Message]) -> bytes:
    """Give the inside of a JSON array of chat messages."""
    return b",".join([b'{"role":"%s","content":"%s"}' % (one.role.encode(), one.content) for one in messages])


def _join(ids: tuple[int, ...]) -> bytes:
    return b",".join([b"%d" % number for number in ids])


def mix(value: int) -> int:
    """Scramble 64 bits: one step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
