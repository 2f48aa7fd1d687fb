"""A trace as a workload: each user takes the next request, or runs the next conversation to its end."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Final

import gevent

from contracts.errors import UsageError
from contracts.load import LoadSpec
from loadgen.workload.arrival import TRACE
from loadgen.workload.lengths import read_lengths
from loadgen.workload.prompts import ASSISTANT, USER, Message, Piece, Pieces, Prompts, mix
from loadgen.workload.synthetic import Draw, Place, Requests, chance, vocabulary_of
from loadgen.workload.tokenizer import Tokenizer
from loadgen.workload.traces.ahead import CountedAhead
from loadgen.workload.traces.entry import BLOCK_TOKENS, Entry
from loadgen.workload.traces.formats import TIMED
from loadgen.workload.traces.reader import TraceReader

_MASK = (1 << 64) - 1
_BLOCK, _LINE = 0xB10C, 0x119E
_KEPT_BLOCKS = 1 << 16
_BYTES_A_TOKEN = 4  # an estimate, where there is no tokenizer
_AT_ONCE = 500
TRACE_LEAD_NS: Final = 500_000_000  # from the ramp's end to the first line's time: the window shall be open by then


class TraceWorkload:
    """The share of a trace that one load process replays. Raises UsageError, here and whenever a request is taken.

    `next_ns` and `skip_to` make it a schedule, too: the trace's own times, from its first request on, divided by the
    time scale.
    """

    def __init__(self, spec: LoadSpec) -> None:
        trace = spec.workload.trace
        assert trace is not None
        self._seed = mix(spec.workload.seed & _MASK)
        self._reader = TraceReader(Path(trace.path), trace.format, spec.worker, spec.workers)
        self._next = self._reader.next
        if spec.workload.tokenizer is not None and self._reader.format not in TIMED:
            self._next = CountedAhead(self._reader, Tokenizer(Path(spec.workload.tokenizer.path))).next
        self._time_scale = trace.time_scale
        self._timed = spec.arrival == TRACE
        self._most_texts = None if trace.turns is None else 2 * trace.turns
        self._ids_only = spec.drive == "rpc"
        self._text_only = spec.drive == "http" and spec.endpoint != "completions"
        known = self._reader.format in TIMED
        self._outputs = () if known else read_lengths(spec.workload.osl, spec.workload.osl_spread, what="osl").values
        self._block = lru_cache(_KEPT_BLOCKS)(self._make_block)
        self.prompts = Prompts(spec.workload.seed, vocabulary_of(spec.workload))

    def requests(self, user: int) -> Requests:
        return _TraceRequests(self, user)

    def chance(self, draw: Draw, use: int) -> float:
        """Give a number from 0 to below 1 that belongs to this line and turn, whichever user runs it."""
        return chance(self._seed ^ ((draw.place.trace_line or 0) << 16) ^ (draw.place.turn or 0), use)

    def take(self) -> Entry | None:
        """Take the next line of this share; None at the end, and after a line that cannot be used."""
        entry = self._next()
        if entry is not None and self._timed and entry.at_ns is None:
            raise UsageError(f"{self._reader.path}:{entry.line}: no time, which --arrival trace needs")
        return entry

    def next_ns(self) -> int:
        """Take the next line for its due time alone; beyond all times at the end."""
        entry = self.take()
        return 1 << 62 if entry is None else self._due_ns(entry) or 0

    def skip_to(self, end_ns: int) -> int:
        """Take what else is due before `end_ns`, and say how many those were, as far as the trace can be read."""
        count = 0
        try:
            while self.next_ns() < end_ns:
                count += 1
                if count % _AT_ONCE == 0:
                    gevent.sleep(0)
        except UsageError:
            return count
        return count

    def draw(self, user: int, n: int, entry: Entry) -> Draw:
        """Make the request that a line stands for; of a conversation, its first turn."""
        place = Place(trace_line=entry.line, due_ns=self._due_ns(entry))
        if entry.texts:
            return self.turn(user, n, entry, 0, place)
        pieces = self._ids(entry) if entry.ids else self._blocks(entry)
        prompt_tokens = entry.prompt_tokens or 0
        return Draw(user, n, prompt_tokens, entry.max_tokens or self._output_tokens(entry), pieces, place)

    def turn(self, user: int, n: int, entry: Entry, turn: int, place: Place) -> Draw:
        """Make a conversation's turn: everything said before it, and what it asks."""
        if self._ids_only:
            raise UsageError(f"{self._reader.path}:{entry.line}: a prompt of text; --drive rpc takes token ids")
        texts = entry.texts[: 2 * turn + 1]
        counts = entry.counts or [-(-len(text.encode("utf-8", "replace")) // _BYTES_A_TOKEN) for text in entry.texts]
        answer = counts[len(texts)] if len(counts) > len(texts) else self._output_tokens(entry)
        messages = tuple(
            Message((USER, ASSISTANT)[number % 2], json.dumps(text)[1:-1].encode()) for number, text in enumerate(texts)
        )
        return Draw(user, n, sum(counts[: len(texts)]), entry.max_tokens or max(1, answer), (), place, messages)

    def turns(self, entry: Entry) -> int:
        """Count the turns of a conversation that are wanted; 1 for any other request."""
        texts = len(entry.texts) if self._most_texts is None else min(len(entry.texts), self._most_texts)
        return max(1, texts // 2)

    def _due_ns(self, entry: Entry) -> int | None:
        return round(entry.at_ns / self._time_scale) if self._timed and entry.at_ns is not None else None

    def _output_tokens(self, entry: Entry) -> int:
        return self._outputs[mix(self._seed ^ entry.line) % len(self._outputs)]

    def _ids(self, entry: Entry) -> Pieces:
        if self._text_only:
            raise UsageError(
                f"{self._reader.path}:{entry.line}: a prompt of token ids; use --endpoint completions or --drive rpc"
            )
        return (Piece(tuple(entry.ids), 0, 0),)

    def _blocks(self, entry: Entry) -> Pieces:
        """Put a prompt together from the blocks that its hash ids name; the rest of it is this line's own."""
        left = entry.prompt_tokens or 0
        pieces: list[Piece] = []
        for hash_id in entry.hash_ids:
            pieces += self._block(hash_id, min(left, BLOCK_TOKENS))
            left -= min(left, BLOCK_TOKENS)
        if left:
            pieces += self.prompts.pieces(mix(self._seed ^ entry.line ^ _LINE << 48), left)
        return tuple(pieces)

    def _make_block(self, hash_id: int, tokens: int) -> Pieces:
        return self.prompts.pieces(mix(self._seed ^ (hash_id & _MASK) ^ _BLOCK << 48), tokens)


class _TraceRequests:
    """What one user takes from the trace; a turn that failed ends its conversation."""

    def __init__(self, workload: TraceWorkload, user: int) -> None:
        self._workload = workload
        self._user = user
        self._n = -1
        self._session = -1
        self._turn = 0
        self._turns = 0
        self._entry: Entry | None = None

    def next(self, answer_tokens: int | None) -> Draw | None:
        workload = self._workload
        self._n += 1
        self._turn += 1
        if self._entry is not None and answer_tokens is not None and self._turn < self._turns:
            place = Place(self._session, self._turn, trace_line=self._entry.line)
            return workload.turn(self._user, self._n, self._entry, self._turn, place)
        self._entry = entry = workload.take()
        if entry is None:
            return None
        self._turn, self._turns = 0, workload.turns(entry)
        if len(entry.texts) < 2:
            return workload.draw(self._user, self._n, entry)
        self._session += 1
        return workload.turn(self._user, self._n, entry, 0, Place(self._session, 0, trace_line=entry.line))
