"""Shares of wall time and blame from exact spans of the GIL, in the words that the sampler's looks are told in."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from analysis.gil.looks import NOBODY, UNKNOWN, Blame, ThreadShare
from analysis.window import NS_PER_S

Spans = Sequence[tuple[int, int]]
LEAST_BLAME = 0.005


@dataclass(frozen=True, slots=True)
class ExactGil:
    """A process over the traced span; as analysis.gil.looks.GilTally tells it."""

    span_s: float
    held_fraction: float
    switches_per_s: float
    shares: tuple[ThreadShare, ...]

    def threads(self) -> tuple[ThreadShare, ...]:
        return self.shares


def account(
    window: tuple[int, int], waits: Mapping[int, Spans], holds: Mapping[int, Spans], names: Mapping[int, str]
) -> ExactGil:
    """Add spans up; all are inside the window and in order, and of one thread they do not overlap."""
    length = window[1] - window[0]
    turns = sorted((start, tid) for tid, spans in holds.items() for start, _ in spans)
    switches = sum(one[1] != other[1] for one, other in pairwise(turns))
    shares = []
    for tid in sorted({*waits, *holds}):
        waited = total(waits.get(tid, ()))
        shares.append(
            ThreadShare(
                tid=tid,
                name=names.get(tid, UNKNOWN),
                wait=waited / length,
                error=0.0,
                asleep=waited / length,
                held=total(holds.get(tid, ())) / length,
                running=0.0,
                blame=_blame(tid, waits.get(tid, ()), holds, names),
            )
        )
    return ExactGil(
        span_s=length / NS_PER_S,
        held_fraction=sum(share.held for share in shares),
        switches_per_s=switches / (length / NS_PER_S),
        shares=tuple(sorted(shares, key=lambda share: (-share.wait, -share.held, share.tid))),
    )


def _blame(tid: int, waits: Spans, holds: Mapping[int, Spans], names: Mapping[int, str]) -> tuple[Blame, ...]:
    waited = total(waits)
    if not waited:
        return ()
    found = [
        Blame(other, names.get(other, UNKNOWN), None, overlap(waits, spans) / waited)
        for other, spans in holds.items()
        if other != tid
    ]
    nobody = 1.0 - sum(blame.fraction for blame in found)
    found.append(Blame(None, NOBODY, None, max(nobody, 0.0)))
    kept = [blame for blame in found if blame.fraction >= LEAST_BLAME]
    return tuple(sorted(kept, key=lambda blame: -blame.fraction))


def total(spans: Spans) -> int:
    return sum(end - start for start, end in spans)


def overlap(waits: Spans, held: Spans) -> int:
    """Return for how long (ns) both a wait and a hold went on."""
    starts = [start for start, _ in held]
    both = 0
    for start, end in waits:
        at = max(bisect_left(starts, start) - 1, 0)
        while at < len(held) and held[at][0] < end:
            both += max(0, min(end, held[at][1]) - max(start, held[at][0]))
            at += 1
    return both
