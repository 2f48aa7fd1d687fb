"""Seeded synthetic requests. Request n of user u is the same in every run, whatever the timing.

In a session that also holds for every later turn, as long as the answers before it came to the same number of tokens.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from contracts.load import SessionSpec, WorkloadSpec
from loadgen.workload.lengths import read_lengths
from loadgen.workload.prompts import ASSISTANT, SYSTEM, USER, Message, Pieces, Prompts, mix
from loadgen.workload.tokenizer import Tokenizer, Vocabulary

_MASK = (1 << 64) - 1
_PREFIX, _TURNS, _ANSWER = 0x9F1E, 0x7065, 0xA125  # what else than a prompt is drawn from a seed or a request


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request belongs, as far as that applies.

    The user's session and turn (from 0), the group of its shared prefix, its line in the trace, and when the trace says
    that it is due (ns from the schedule's beginning).
    """

    session: int | None = None
    turn: int | None = None
    shared_prefix: int | None = None
    trace_line: int | None = None
    due_ns: int | None = None


NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class Draw:
    """One request of the workload: its two lengths in tokens, and what its prompt is made of (pieces, or messages)."""

    user: int
    n: int
    prompt_tokens: int
    max_tokens: int
    pieces: Pieces
    place: Place = NOWHERE
    messages: tuple[Message, ...] | None = None


class Requests(Protocol):
    """One user's requests, one after the other."""

    def next(self, answer_tokens: int | None) -> Draw | None:
        """Give the next request; None when there is none left.

        `answer_tokens` is how many the last request brought; None after a failure, and at first.
        """


class Source(Protocol):
    """Where a load's requests come from: drawn, or taken from a trace."""

    prompts: Prompts

    def requests(self, user: int) -> Requests:
        """Give the requests of the user with this number."""

    def chance(self, draw: Draw, use: int) -> float:
        """Give a number from 0 to below 1 that belongs to this request and this use of it."""


class Workload:
    """Draws requests and renders their prompts. Draws from equal specs are equal. Raises UsageError."""

    def __init__(self, spec: WorkloadSpec) -> None:
        self._seed = mix(spec.seed & _MASK)
        self.prompts = Prompts(spec.seed, vocabulary_of(spec))
        inputs = read_lengths(spec.isl, spec.isl_spread, what="isl")
        outputs = inputs.partners
        self._shift = 0 if outputs else 32
        self._inputs = inputs.values
        self._outputs = outputs or read_lengths(spec.osl, spec.osl_spread, what="osl").values
        self._sessions = None if spec.session is None else _Sessions(spec.session)
        groups = range(spec.prefix.groups if spec.prefix else 0)
        tokens = spec.prefix.tokens if spec.prefix else 0
        self._prefixes = [
            self.prompts.pieces(mix(self._seed ^ _PREFIX ^ group << 16), tokens, SYSTEM) for group in groups
        ]
        self._prefix_tokens = tokens
        self._places = [Place(shared_prefix=group) for group in groups]

    def requests(self, user: int) -> Requests:
        """Give the requests of the user with this number, sessions or not."""
        return _Single(self, user) if self._sessions is None else _Turns(self, self._sessions, user)

    def draw(self, user: int, n: int) -> Draw:
        """Draw request `n` (from 0) of the user with this number, in O(1): the first of a session, if there are any."""
        a = mix(self._seed ^ (user << 32) ^ n)
        b = mix(a)
        prompt_tokens = self._inputs[a % len(self._inputs)]
        max_tokens = self._outputs[(a >> self._shift) % len(self._outputs)]
        pieces = self.prompts.pieces(b, prompt_tokens)
        if not self._prefixes:
            return Draw(user, n, prompt_tokens, max_tokens, pieces)
        group = (b >> 40) % len(self._prefixes)
        prompt_tokens += self._prefix_tokens
        return Draw(user, n, prompt_tokens, max_tokens, self._prefixes[group] + pieces, self._places[group])

    def output_tokens(self, key: int) -> int:
        """Draw a later turn's output tokens by a key of 64 bits."""
        return self._outputs[key % len(self._outputs)]

    def session_key(self, user: int, session: int) -> int:
        return mix(self._seed ^ (user << 32) ^ session ^ _TURNS << 48)

    def chance(self, draw: Draw, use: int) -> float:
        """Give a number from 0 to below 1 that belongs to this request and this use of it."""
        return chance(self._seed ^ (draw.user << 32) ^ draw.n, use)

    def token_ids(self, draw: Draw) -> list[int]:
        """Give the prompt as a list of token ids; for tests and tools, not for the hot path."""
        return list(np.frombuffer(self.prompts.int32(draw.pieces), dtype="<i4").tolist())


def vocabulary_of(spec: WorkloadSpec) -> Vocabulary | None:
    """Load the vocabulary of a spec's tokenizer, if it names one. Raises UsageError."""
    return None if spec.tokenizer is None else Tokenizer(Path(spec.tokenizer.path)).vocabulary()


def chance(key: int, use: int) -> float:
    """Give a number from 0 to below 1 that belongs to a key and what it is for."""
    return (mix(mix(key) ^ (use << 48)) >> 11) / (1 << 53)


class _Sessions:
    """What all sessions have in common: their tables."""

    def __init__(self, spec: SessionSpec) -> None:
        self.turns = read_lengths(spec.turns, what="turns").values
        self.turn_isl = read_lengths(spec.turn_isl, what="turn-isl").values
        self.max_context = spec.max_context


class _Single:
    """Requests that know nothing of each other."""

    def __init__(self, workload: Workload, user: int) -> None:
        self._workload = workload
        self._user = user
        self._n = 0

    def next(self, answer_tokens: int | None) -> Draw:  # noqa: ARG002 - the protocol's
        draw = self._workload.draw(self._user, self._n)
        self._n += 1
        return draw


class _Turns:
    """One session after the other: a turn's prompt is the last one's, its answer, and some new tokens.

    The answer is stood for by as many tokens of the pool. A turn that failed ends its session.
    """

    def __init__(self, workload: Workload, sessions: _Sessions, user: int) -> None:
        self._workload = workload
        self._sessions = sessions
        self._user = user
        self._n = -1
        self._session = -1
        self._key = 0
        self._turn = 0
        self._left = 0
        self._last: Draw | None = None

    def next(self, answer_tokens: int | None) -> Draw:
        self._n += 1
        draw = None
        if self._left and self._last is not None and answer_tokens is not None:
            draw = self._go_on(self._last, min(answer_tokens, self._last.max_tokens))
        if draw is None:
            draw = self._begin()
        self._left -= 1
        self._last = draw
        return draw

    def _begin(self) -> Draw:
        self._session += 1
        self._turn = 0
        self._key = self._workload.session_key(self._user, self._session)
        self._left = self._sessions.turns[self._key % len(self._sessions.turns)]
        first = self._workload.draw(self._user, self._session)
        return replace(first, n=self._n, place=replace(first.place, session=self._session, turn=0))

    def _go_on(self, last: Draw, answer_tokens: int) -> Draw | None:
        self._turn += 1
        sessions = self._sessions
        key = mix(self._key ^ self._turn)
        new_tokens = sessions.turn_isl[(key >> 32) % len(sessions.turn_isl)]
        max_tokens = self._workload.output_tokens(key)
        prompt_tokens = last.prompt_tokens + answer_tokens + new_tokens
        if sessions.max_context is not None and prompt_tokens + max_tokens > sessions.max_context:
            return None
        prompts = self._workload.prompts
        answer = prompts.pieces(mix(key ^ _ANSWER), answer_tokens, ASSISTANT) if answer_tokens else ()
        pieces = (*last.pieces, *answer, *prompts.pieces(mix(key), new_tokens, USER))
        place = replace(last.place, turn=self._turn)
        return Draw(self._user, self._n, prompt_tokens, max_tokens, pieces, place)
