import math
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.reference.ranks.link import CHUNK_BYTES, Link, LinkBroken, SharedMemory
from harness.reference.ranks.router import Arrival, RankLoad, route

LOADS = st.lists(st.builds(RankLoad, st.integers(0, 20), st.integers(0, 10_000)), min_size=1, max_size=8)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Arrival], list[RankLoad], int]:
    loads = draw(LOADS)
    targets = st.none() | st.integers(0, len(loads) - 1)
    count = draw(st.integers(0, 30))
    arrivals = [Arrival(n, draw(st.integers(1, 5000)), draw(targets)) for n in range(count)]
    return arrivals, loads, draw(st.integers(1, 40))


@given(cases())
def test_no_request_is_routed_twice_and_no_rank_beyond_its_capacity(
    case: tuple[list[Arrival], list[RankLoad], int],
) -> None:
    arrivals, loads, capacity = case
    shares = route(arrivals, loads, capacity)
    routed = [request_id for share in shares for request_id in share]
    assert len(routed) == len(set(routed))
    assert set(routed) <= {arrival.request_id for arrival in arrivals}
    for load, share in zip(loads, shares, strict=True):
        assert len(share) <= max(0, capacity - load.requests)


def routed_plainly(arrivals: list[Arrival], loads: list[RankLoad], capacity: int) -> list[list[int]]:
    """Do what `route` says it does, without its heap."""
    ranks = range(len(loads))
    counts, held = [load.requests for load in loads], [load.tokens for load in loads]
    shares: list[list[int]] = [[] for _ in ranks]
    limit = min(capacity, math.ceil((sum(counts) + len(arrivals)) / len(loads)))
    obeyed = []
    for arrival in arrivals:
        if arrival.target is not None and counts[arrival.target] < capacity:
            obeyed.append((arrival, arrival.target))
            counts[arrival.target] += 1
            held[arrival.target] += arrival.tokens
    taken = {arrival.request_id for arrival, _ in obeyed}
    for arrival, rank in obeyed:
        shares[rank].append(arrival.request_id)
    for arrival in sorted((one for one in arrivals if one.request_id not in taken), key=lambda one: -one.tokens):
        with_room = [rank for rank in ranks if counts[rank] < limit]
        if with_room:
            rank = min(with_room, key=lambda rank: (held[rank], counts[rank], rank))
            shares[rank].append(arrival.request_id)
            counts[rank] += 1
            held[rank] += arrival.tokens
    return shares


@given(cases())
def test_targets_come_first_then_the_longest_goes_to_the_least_loaded(
    case: tuple[list[Arrival], list[RankLoad], int],
) -> None:
    assert route(*case) == routed_plainly(*case)


@given(cases())
def test_a_request_is_left_out_only_when_every_rank_is_full(case: tuple[list[Arrival], list[RankLoad], int]) -> None:
    arrivals, loads, capacity = case
    shares = route(arrivals, loads, capacity)
    if sum(map(len, shares)) < len(arrivals):
        assert all(load.requests + len(share) >= capacity for load, share in zip(loads, shares, strict=True))


@given(cases())
def test_every_rank_computes_the_same_routing(case: tuple[list[Arrival], list[RankLoad], int]) -> None:
    assert route(*case) == route(*case)


def test_a_targeted_request_goes_to_its_rank_while_there_is_room() -> None:
    shares = route([Arrival(1, 10, target=1), Arrival(2, 10, target=1)], [RankLoad(0, 0), RankLoad(3, 99)], 4)
    assert shares == [[2], [1]]


def test_long_requests_are_placed_first_each_on_the_rank_with_the_fewest_tokens() -> None:
    shares = route([Arrival(1, 5), Arrival(2, 100), Arrival(3, 50)], [RankLoad(0, 0), RankLoad(0, 0)], 10)
    assert shares == [[2], [3, 1]]


def test_idle_ranks_share_evenly() -> None:
    shares = route([Arrival(n, 7) for n in range(10)], [RankLoad(0, 0)] * 4, 100)
    assert sorted(len(share) for share in shares) == [2, 2, 3, 3]


@pytest.mark.parametrize("size", [0, 1, 100, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 5, 3])
def test_a_broadcast_arrives_whole_whatever_its_size_and_whatever_was_there_before(size: int) -> None:
    left, right = socket.socketpair()
    sender, receiver = Link(left), Link(right)
    memory = SharedMemory.create()
    memory.write(b"what an earlier turn left" * 10)
    payload = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    memory.write(payload)
    sender.announce(payload)
    assert receiver.receive_broadcast(memory) == payload
    sender.close()
    with pytest.raises(LinkBroken):
        receiver.receive(1)
    receiver.close()
    memory.close()
