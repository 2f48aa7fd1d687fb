"""The direct drive's client against a real server, in plain gevent."""

import socket
import struct
from pathlib import Path

import gevent
import pytest
from fake_direct import expected_tokens
from load_support import server

from contracts.clock import NS_PER_MS
from contracts.load import WorkloadSpec
from loadgen import kinds
from loadgen.drives import direct_callers
from loadgen.outcome import Trouble
from loadgen.transport.direct import DirectLink
from loadgen.workload.synthetic import Workload

WORKLOAD = Workload(WorkloadSpec(isl=30, osl=20, isl_spread=0.9, osl_spread=0.9, seed=1))


def link_to(path: Path, *, read_timeout_s: float = 5.0, keep_tokens: bool = False) -> DirectLink:
    return DirectLink(str(path), 2.0, read_timeout_s, keep_tokens=keep_tokens)


def test_ten_thousand_requests_each_get_exactly_their_own_tokens_in_order_and_once(tmp_path: Path) -> None:
    right = []

    def user(link: DirectLink, number: int) -> None:
        for n in range(50):
            draw = WORKLOAD.draw(number, n)
            prompt = WORKLOAD.prompts.int32(draw.pieces)
            flight = link.submit(prompt, draw.max_tokens, on_first=lambda _: None)
            link.wait(flight)
            got = list(struct.unpack(f"<{len(flight.tokens) // 4}i", flight.tokens))
            right.append(got == expected_tokens(prompt, draw.max_tokens))
            assert flight.outcome(draw.max_tokens).output_tokens == draw.max_tokens

    with server("fake_direct.py", tmp_path / "socket", "paced", 0.001):
        link = link_to(tmp_path / "socket", keep_tokens=True)
        users = [gevent.spawn(user, link, number) for number in range(200)]
        gevent.joinall(users, raise_error=True)
        link.close()
    assert right == [True] * 10_000


def test_a_chunk_is_stamped_once_with_the_number_of_its_tokens(tmp_path: Path) -> None:
    firsts = []
    with server("fake_direct.py", tmp_path / "socket", "paced", 0.01):
        link = link_to(tmp_path / "socket")
        flight = link.submit(struct.pack("<2i", 1, 2), 30, on_first=firsts.append)
        link.wait(flight)
        link.close()
    outcome = flight.outcome(30)
    assert sum(outcome.chunk_tokens) == outcome.output_tokens == 30
    assert len(outcome.chunk_tokens) == len(outcome.chunk_ns)
    assert outcome.chunk_ns[-1] - outcome.chunk_ns[0] >= (len(outcome.chunk_ns) - 2) * 10 * NS_PER_MS
    assert firsts == [outcome.chunk_ns[0] - outcome.sent_ns]
    assert (outcome.server_id, outcome.finish_reason, outcome.output_tokens_source) == ("1000", "length", "wire")
    assert flight.tokens is None


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("fails", kinds.SERVER_ERROR),
        ("empty", kinds.EMPTY),
        ("cancels", kinds.CANCELLED),
        ("garbage", kinds.BAD_STREAM),
        ("lies", kinds.BAD_STREAM),
        ("leaves", kinds.CLOSED_EARLY),
        ("stalls", kinds.READ_TIMEOUT),
    ],
)
def test_each_misbehaviour_is_a_failure_of_its_kind_and_the_link_lives_on(tmp_path: Path, case: str, kind: str) -> None:
    with server("fake_direct.py", tmp_path / "socket", case):
        link = link_to(tmp_path / "socket", read_timeout_s=0.2)
        caller = direct_callers(WORKLOAD.prompts, link)()
        for n in range(2):
            outcome = caller.ask(WORKLOAD.draw(0, n), lambda _: None, lambda _: None)
            assert outcome.error_kind == kind
            assert outcome.error
        link.close()


def test_a_lost_connection_fails_all_in_flight(tmp_path: Path) -> None:
    with server("fake_direct.py", tmp_path / "socket", "stalls"):
        link = link_to(tmp_path / "socket")
        flights = [link.submit(b"\0\0\0\0", 5, on_first=lambda _: None) for _ in range(20)]
    for flight in flights:
        link.wait(flight)
    assert {flight.outcome(5).error_kind for flight in flights} == {kinds.CLOSED_EARLY}
    with pytest.raises(Trouble) as caught:
        link.submit(b"\0\0\0\0", 5, on_first=lambda _: None)
    assert caught.value.kind == kinds.CONNECT_REFUSED


def test_no_socket_at_the_path_is_a_refused_connection(tmp_path: Path) -> None:
    outcome = direct_callers(WORKLOAD.prompts, link_to(tmp_path / "none"))().ask(
        WORKLOAD.draw(0, 0), lambda _: None, lambda _: None
    )
    assert outcome.error_kind == kinds.CONNECT_REFUSED


def test_a_cancelled_request_is_aborted_at_the_server_and_the_others_go_on(tmp_path: Path) -> None:
    with server("fake_direct.py", tmp_path / "socket", "paced", 0.01):
        link = link_to(tmp_path / "socket")
        first, second = (link.submit(b"\1\0\0\0", 40, on_first=lambda _: None) for _ in range(2))
        gevent.sleep(0.05)
        link.cancel(first, kinds.UNFINISHED, "enough")
        link.wait(first)
        link.wait(second)
        link.close()
    assert first.outcome(40).error_kind == kinds.UNFINISHED
    assert second.outcome(40).error_kind is None
    assert second.outcome(40).output_tokens == 40


def test_a_server_that_stops_reading_ends_in_a_read_timeout(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "socket"))
        deaf.listen()
        link = link_to(tmp_path / "socket", read_timeout_s=0.3)
        flight = link.submit(bytes(16 << 20), 40, on_first=lambda _: None)
        link.wait(flight)
        link.close()
    assert flight.outcome(40).error_kind == kinds.READ_TIMEOUT


def test_closing_the_link_cancels_what_is_in_flight(tmp_path: Path) -> None:
    with server("fake_direct.py", tmp_path / "socket", "stalls"):
        link = link_to(tmp_path / "socket")
        flight = link.submit(b"\1\0\0\0", 40, on_first=lambda _: None)
        link.close()
        link.wait(flight)
    assert flight.outcome(40).error_kind == kinds.CANCELLED
