"""A trace's texts, counted ahead: tokenising takes a millisecond a thousand tokens, which no request shall wait for."""

from collections import deque
from dataclasses import replace

import gevent
from gevent.lock import BoundedSemaphore

from contracts.errors import UsageError
from loadgen.workload.tokenizer import Tokenizer
from loadgen.workload.traces.entry import Entry
from loadgen.workload.traces.reader import TraceReader

_BATCH = 64
_LOW = 256


class CountedAhead:
    """Gives a reader's entries in order, with the tokens of their texts; some hundred are ready before they are wanted.

    The counting is done in a thread, without the GIL; whoever wants an entry meanwhile gets one, if any is ready.
    """

    def __init__(self, reader: TraceReader, tokenizer: Tokenizer) -> None:
        self._reader = reader
        self._tokenizer = tokenizer
        self._ready: deque[Entry] = deque()
        self._filling = BoundedSemaphore()
        self._over = False
        self._error: UsageError | None = None

    def next(self) -> Entry | None:
        """Give the next entry, or None at the end. Raises UsageError as the reader does, at the same place."""
        while not self._ready and not self._over:
            self._fill()
        if self._ready:
            if len(self._ready) < _LOW and not self._over and not self._filling.locked():
                gevent.spawn(self._fill)
            return self._ready.popleft()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    def _fill(self) -> None:
        with self._filling:
            if self._over or len(self._ready) >= _LOW:
                return
            batch, over, error = self._read()
            texts = [text for entry in batch for text in entry.texts]
            counts = iter(gevent.get_hub().threadpool.apply(self._tokenizer.count, (texts,)))
            self._ready += [replace(entry, counts=[next(counts) for _ in entry.texts]) for entry in batch]
            self._over, self._error = over, error

    def _read(self) -> tuple[list[Entry], bool, UsageError | None]:
        batch: list[Entry] = []
        try:
            while len(batch) < _BATCH:
                entry = self._reader.next()
                if entry is None:
                    return batch, True, None
                batch.append(entry)
        except UsageError as error:
            return batch, True, error
        return batch, False, None
