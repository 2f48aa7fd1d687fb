"""Seeded synthetic requests. Request n of user u is the same in every run, whatever the timing.

A pool of token ids is drawn once; a prompt is a slice of it behind a few tokens that belong to this request alone, so
that no two prompts share a prefix (a prefix cache would otherwise answer) and making one costs a copy of bytes.
"""

from dataclasses import dataclass

import numpy as np

from contracts.load import WorkloadSpec

FIRST_ID, LAST_ID = 256, 31999
_IDS = LAST_ID - FIRST_ID + 1
_POOL_TOKENS = 1 << 20
_OWN_TOKENS = 4
_JSON_WIDTH = 6  # five digits, padded with blanks (JSON allows them), and a comma: any slice is a memory copy
_MASK = (1 << 64) - 1
# Frequent English words that byte-pair vocabularies hold whole with their blank, so that words are about tokens.
_WORD_LIST = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its "
    "about than into them can only other time new some could these two may first then do any like my now over such"
)
_WORDS = _WORD_LIST.split()


@dataclass(frozen=True, slots=True)
class Draw:
    """One request of the workload: its two lengths in tokens, and where in the pool its prompt lies."""

    user: int
    n: int
    prompt_tokens: int
    max_tokens: int
    offset: int
    own: tuple[int, ...]


class Workload:
    """Draws requests and renders their prompts. Draws from equal specs are equal."""

    def __init__(self, spec: WorkloadSpec) -> None:
        self._seed = _mix(spec.seed & _MASK)
        self._prompt = _bounds(spec.isl, spec.isl_spread)
        self._output = _bounds(spec.osl, spec.osl_spread)
        pool = max(_POOL_TOKENS, 2 * self._prompt[1])
        ids = np.random.default_rng(spec.seed).integers(FIRST_ID, LAST_ID + 1, size=pool, dtype=np.int32)
        self._pool = pool
        self._ids = ids
        self._bytes = ids.astype("<i4").tobytes()
        self._json = b""
        self._words = b""
        self._starts: list[int] = []

    def prepare(self, endpoint: str | None) -> None:
        """Render the pool for `json_ids` (completions) or `text` (chat, responses): a third of a second, done once."""
        if endpoint == "completions" and not self._json:
            self._json = b"".join([b"%5d," % number for number in self._ids.tolist()])
        if endpoint in ("chat", "responses") and not self._words:
            words = [_WORDS[number % len(_WORDS)].encode() + b" " for number in self._ids.tolist()]
            self._words = b"".join(words)
            self._starts = [0, *np.cumsum([len(word) for word in words]).tolist()]

    def draw(self, user: int, n: int) -> Draw:
        """Draw request `n` (from 0) of the user with this number, in O(1)."""
        a = _mix(self._seed ^ (user << 32) ^ n)
        b = _mix(a)
        low, high = self._prompt
        prompt_tokens = low + a % (high - low + 1)
        low, high = self._output
        max_tokens = low + (a >> 32) % (high - low + 1)
        own = []
        rest = _mix(b)
        for _ in range(min(_OWN_TOKENS, prompt_tokens)):
            rest, digit = divmod(rest, _IDS)
            own.append(FIRST_ID + digit)
        return Draw(user, n, prompt_tokens, max_tokens, b % (self._pool - prompt_tokens), tuple(own))

    def chance(self, draw: Draw, use: int) -> float:
        """Give a number from 0 to below 1 that belongs to this request and this use of it."""
        return (_mix(_mix(self._seed ^ (draw.user << 32) ^ draw.n) ^ (use << 48)) >> 11) / (1 << 53)

    def token_ids(self, draw: Draw) -> list[int]:
        """Give the prompt as a list of token ids; for tests and tools, not for the hot path."""
        return list(np.frombuffer(self.int32(draw), dtype="<i4").tolist())

    def int32(self, draw: Draw) -> bytes:
        """Give the prompt as little-endian int32 token ids."""
        own = np.asarray(draw.own, dtype="<i4").tobytes()
        start = 4 * (draw.offset + len(draw.own))
        return own + self._bytes[start : 4 * (draw.offset + draw.prompt_tokens)]

    def json_ids(self, draw: Draw) -> bytes:
        """Give the prompt's token ids as the inside of a JSON array."""
        self.prepare("completions")
        start = _JSON_WIDTH * (draw.offset + len(draw.own))
        own = b"".join(b"%d," % number for number in draw.own)
        return (own + self._json[start : _JSON_WIDTH * (draw.offset + draw.prompt_tokens)])[:-1]

    def text(self, draw: Draw) -> bytes:
        """Give a prompt of about as many tokens as text without quotes: one frequent word stands for one token."""
        self.prepare("chat")
        own = b"".join(_WORDS[number % len(_WORDS)].encode() + b"%d " % number for number in draw.own)
        start, end = self._starts[draw.offset + len(draw.own)], self._starts[draw.offset + draw.prompt_tokens]
        return own + self._words[start:end]


def _bounds(mean: int, spread: float) -> tuple[int, int]:
    return max(1, round(mean * (1 - spread))), max(1, round(mean * (1 + spread)))


def _mix(value: int) -> int:
    """Scramble 64 bits: one step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
