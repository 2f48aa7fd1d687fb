"""Watching many sockets at once, in plain gevent."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import gevent
import pytest

from loadgen.transport.kernelclock import SO_TIMESTAMPNS, KernelClock, stamp_arrivals
from loadgen.transport.reactor import Reactor

PAIRS = 20


class Reader:
    """One end of a connection; counts the bytes that its handler took."""

    def __init__(self, reactor: Reactor, *, patient: bool = True) -> None:
        self.mine, self.theirs = socket.socketpair()
        self.mine.setblocking(False)
        self.taken = 0
        self.reactor = reactor
        self.after = lambda: None
        reactor.add(self.mine.fileno(), self.take, patient=patient)

    def take(self) -> None:
        self.taken += len(self.mine.recv(4096))
        self.after()

    def close(self) -> None:
        if self.mine.fileno() >= 0:
            self.reactor.remove(self.mine.fileno())
        self.mine.close()
        self.theirs.close()


@pytest.fixture
def readers() -> Iterator[list[Reader]]:
    reactor = Reactor(KernelClock())
    with ExitStack() as stack:
        made = [Reader(reactor) for _ in range(PAIRS)]
        for reader in made:
            stack.callback(reader.close)
        yield made


def until(done: object) -> None:
    with gevent.Timeout(10):
        while not done():
            gevent.sleep(0.001)


def test_every_socket_is_served_however_many_are_ready_at_once(readers: list[Reader]) -> None:
    for turn in range(1, 6):
        for reader in readers:
            reader.theirs.send(b"x")
        until(lambda turn=turn: all(reader.taken == turn for reader in readers))


def test_a_single_arrival_after_a_burst_is_served_too(readers: list[Reader]) -> None:
    for reader in readers:
        reader.theirs.send(b"x")
    until(lambda: all(reader.taken == 1 for reader in readers))
    for _ in range(3):
        gevent.sleep(0.005)
        before = readers[0].taken
        readers[0].theirs.send(b"x")
        until(lambda before=before: readers[0].taken == before + 1)


def test_a_socket_that_was_closed_in_the_same_turn_is_left_alone(readers: list[Reader]) -> None:
    first = []

    def close_the_others() -> None:
        if not first:
            first.append(True)
            for other in readers:
                if not other.taken:
                    other.close()

    for reader in readers:
        reader.after = close_the_others
        reader.theirs.send(b"x")
    until(lambda: first)
    gevent.sleep(0.01)
    assert sum(reader.taken for reader in readers) == 1


def test_an_impatient_socket_joins_a_crowd_that_is_made_to_wait(readers: list[Reader]) -> None:
    for reader in readers:
        reader.theirs.send(b"x")
    until(lambda: all(reader.taken for reader in readers))
    hasty = Reader(readers[0].reactor, patient=False)
    hasty.theirs.send(b"x")
    until(lambda: hasty.taken == 1)
    hasty.close()


def test_a_reactor_without_sockets_can_be_used_again() -> None:
    reactor = Reactor(KernelClock())
    for _ in range(3):
        reader = Reader(reactor)
        reader.theirs.send(b"xy")
        until(lambda reader=reader: reader.taken == 2)
        reader.close()


def test_a_stamp_is_placed_on_the_monotonic_clock_and_none_is_zero() -> None:
    clock = KernelClock()
    stamp = struct.pack("qq", 12, 34)
    assert clock.arrival_ns([(socket.SOL_SOCKET, SO_TIMESTAMPNS, stamp)]) == 12_000_000_034 + clock.offset_ns
    assert clock.arrival_ns([]) == 0


def test_a_wall_clock_that_was_set_is_noticed_and_followed() -> None:
    clock = KernelClock()
    true_ns = clock.offset_ns
    clock.offset_ns += 5_000_000_000
    clock.refresh()
    assert clock.steps == 1
    assert abs(clock.offset_ns - true_ns) < 1_000_000_000


def test_the_longest_lag_is_given_once() -> None:
    clock = KernelClock()
    assert clock.take_worst_lag_ns() is None
    clock.worst_lag_ns = 7
    assert [clock.take_worst_lag_ns(), clock.take_worst_lag_ns()] == [7, None]


def test_a_closed_socket_cannot_be_stamped() -> None:
    held = socket.socket()
    held.close()
    assert not stamp_arrivals(held)
