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
