"""Attention-DP routing: which rank gets which new request. Every rank computes the same from the same numbers."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What a rank has under way: active requests and the tokens they hold."""

    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A new request as the router sees it; `target` is the rank that it asked for, if any."""

    request_id: int
    tokens: int
    target: int | None = None


def route(arrivals: Sequence[Arrival], loads: Sequence[RankLoad], capacity: int) -> list[list[int]]:
    """Return each rank's share as request ids.

    A target with room is obeyed first. The others go, longest first, to the rank with the fewest (tokens, requests), as
    long as it is below its share: the total over the ranks, rounded up, and never above `capacity` requests. What no
    rank has room for is left out, and may be offered again in the next turn.
    """
    counts = [load.requests for load in loads]
    tokens = [load.tokens for load in loads]
    shares: list[list[int]] = [[] for _ in loads]
    total = sum(counts) + len(arrivals)
    limit = min(capacity, -(-total // len(loads)))

    def assign(rank: int, arrival: Arrival) -> None:
        shares[rank].append(arrival.request_id)
        counts[rank] += 1
        tokens[rank] += arrival.tokens

    free: list[Arrival] = []
    for arrival in arrivals:
        if arrival.target is not None and counts[arrival.target] < capacity:
            assign(arrival.target, arrival)
        else:
            free.append(arrival)
    heap = [(tokens[rank], counts[rank], rank) for rank in range(len(loads)) if counts[rank] < limit]
    heapq.heapify(heap)
    for arrival in sorted(free, key=lambda one: -one.tokens):
        if not heap:
            break
        _, _, rank = heapq.heappop(heap)
        assign(rank, arrival)
        if counts[rank] < limit:
            heapq.heappush(heap, (tokens[rank], counts[rank], rank))
    return shares
