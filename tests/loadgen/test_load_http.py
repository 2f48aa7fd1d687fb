"""The HTTP transport against a real server, in plain gevent: nothing here is patched."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from load_support import server

from contracts.clock import NS_PER_MS, now_ns
from contracts.errors import UsageError
from contracts.load import WorkloadSpec
from loadgen import kinds
from loadgen.bodies import PATHS, BodyTemplate
from loadgen.drives import Caller, HttpCaller, Sent
from loadgen.http import HttpConnection
from loadgen.kernelclock import KernelClock
from loadgen.outcome import Outcome
from loadgen.reactor import Reactor
from loadgen.target import HttpTarget
from loadgen.workload import Workload

COUNT = 6
WORKLOAD = Workload(WorkloadSpec(isl=10, osl=COUNT, osl_spread=0))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with server("fake_http.py") as line:
        yield int(line)


def caller_for(url: str, case: str, endpoint: str = "completions", **more: Any) -> Caller:
    settings = {"connect_timeout_s": 0.3, "read_timeout_s": 2.0, **more}
    target = HttpTarget.resolve(url, PATHS[endpoint], verify=False)
    head = target.head(keep_alive=settings.get("keep_alive", True))
    connection = HttpConnection(target, Reactor(KernelClock()), **settings)
    return HttpCaller(WORKLOAD, BodyTemplate(endpoint, case), connection, head)


def ask(caller: Caller, n: int = 0, sent: Sent = lambda _: None) -> Outcome:
    return caller.ask(WORKLOAD.draw(0, n), sent, lambda _: None)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_paced_stream_is_seen_token_by_token_and_never_early(port: int, endpoint: str) -> None:
    caller = caller_for(f"http://127.0.0.1:{port}", "paced", endpoint)
    for n in range(3):
        outcome = ask(caller, n)
        assert (outcome.error_kind, outcome.status, outcome.finish_reason) == (None, 200, "length")
        assert (outcome.output_tokens, outcome.output_tokens_source) == (COUNT, "usage")
        assert len(outcome.chunk_ns) == COUNT
        assert outcome.server_id.startswith("cmpl-")
        assert outcome.chunk_ns[0] - outcome.sent_ns >= 20 * NS_PER_MS
        assert outcome.chunk_ns[-1] - outcome.sent_ns >= (20 + 5 * (COUNT - 1)) * NS_PER_MS
        assert outcome.sent_ns < outcome.first_byte_ns <= outcome.chunk_ns[0]
        assert list(outcome.chunk_ns) == sorted(outcome.chunk_ns)
        assert outcome.end_ns >= outcome.chunk_ns[-1]
    caller.close()


@pytest.mark.parametrize("case", ["crlf", "no_usage", "until_close", "closes_silently"])
def test_odd_but_right_streams_succeed_again_and_again(port: int, case: str) -> None:
    caller = caller_for(f"http://127.0.0.1:{port}", case)
    for n in range(3):
        outcome = ask(caller, n)
        assert (outcome.error_kind, outcome.error, outcome.output_tokens) == (None, None, COUNT)
    caller.close()


@pytest.mark.parametrize(
    ("case", "kind", "status", "message"),
    [
        ("status_429", kinds.HTTP_4XX, 429, "slow down"),
        ("status_503", kinds.HTTP_5XX, 503, "overloaded"),
        ("status_204", kinds.HTTP_OTHER, 204, "204"),
        ("error_body", kinds.ERROR_BODY, 200, "no such model"),
        ("not_sse", kinds.BAD_STREAM, 200, "hello"),
        ("bad_json", kinds.BAD_STREAM, 200, "not JSON"),
        ("not_http", kinds.BAD_STREAM, None, "not HTTP"),
        ("error_in_stream", kinds.ERROR_IN_STREAM, 200, "out of memory"),
        ("no_terminal", kinds.NO_TERMINAL_EVENT, 200, "1 chunks"),
        ("closed_early", kinds.CLOSED_EARLY, 200, "closed after"),
        ("empty", kinds.EMPTY, 200, "no chunk"),
    ],
)
def test_each_misbehaviour_is_a_failure_of_its_kind(port: int, case: str, kind: str, status: int, message: str) -> None:
    caller = caller_for(f"http://127.0.0.1:{port}", case)
    for n in range(2):
        outcome = ask(caller, n)
        assert (outcome.error_kind, outcome.status) == (kind, status)
        assert message in outcome.error
        assert outcome.end_ns >= outcome.sent_ns
    caller.close()


def test_a_silent_server_ends_in_a_read_timeout_and_the_tokens_so_far_are_kept(port: int) -> None:
    caller = caller_for(f"http://127.0.0.1:{port}", "stall", read_timeout_s=0.2)
    outcome = ask(caller)
    assert (outcome.error_kind, len(outcome.chunk_ns)) == (kinds.READ_TIMEOUT, 1)
    assert outcome.end_ns - outcome.chunk_ns[-1] >= 200 * NS_PER_MS
    caller.close()


def test_a_cancelled_request_ends_with_the_given_kind_and_the_next_one_is_fine(port: int) -> None:
    caller = caller_for(f"http://127.0.0.1:{port}", "paced")
    outcome = ask(caller, sent=lambda cancel: cancel(kinds.UNFINISHED, "enough"))
    assert (outcome.error_kind, outcome.error) == (kinds.UNFINISHED, "enough")
    assert ask(caller).error_kind is None
    caller.close()


def test_nobody_at_the_port_is_a_refused_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    before = now_ns()
    outcome = ask(caller_for(f"http://127.0.0.1:{port}", "paced"))
    assert (outcome.error_kind, outcome.status) == (kinds.CONNECT_REFUSED, None)
    assert before <= outcome.sent_ns <= outcome.end_ns


def test_a_listener_whose_queue_is_full_ends_in_a_connect_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        others = [socket.socket() for _ in range(4)]
        for other in others:
            other.setblocking(False)
            other.connect_ex(address)
        outcome = ask(caller_for(f"http://127.0.0.1:{address[1]}", "paced"))
        for other in others:
            other.close()
    assert outcome.error_kind == kinds.CONNECT_TIMEOUT


def test_a_server_that_stops_reading_ends_in_a_read_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        caller = caller_for(f"http://127.0.0.1:{deaf.getsockname()[1]}", "x" * (16 << 20), read_timeout_s=0.3)
        outcome = ask(caller)
    assert outcome.error_kind == kinds.READ_TIMEOUT


def test_an_answer_before_the_whole_request_was_sent_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            for _ in range(2):
                held, _ = listener.accept()
                with held:
                    held.recv(1)
                    held.sendall(b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 3\r\n\r\nbig")
                    with contextlib.suppress(OSError):
                        while held.recv(1 << 20) and not over.is_set():
                            over.wait(0.01)

        over = threading.Event()
        thread = threading.Thread(target=refuse)
        thread.start()
        caller = caller_for(f"http://127.0.0.1:{listener.getsockname()[1]}", "x" * (16 << 20))
        outcomes = [ask(caller, n) for n in range(2)]
        over.set()
        thread.join()
    assert {(outcome.error_kind, outcome.status) for outcome in outcomes} == {(kinds.HTTP_4XX, 413)}


def test_a_head_without_end_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def flood() -> None:
            held, _ = listener.accept()
            with held:
                held.recv(65536)
                with contextlib.suppress(OSError):
                    held.sendall(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * (1 << 18))

        thread = threading.Thread(target=flood)
        thread.start()
        outcome = ask(caller_for(f"http://127.0.0.1:{listener.getsockname()[1]}", "paced"))
        thread.join()
    assert outcome.error_kind == kinds.BAD_STREAM
    assert "head" in outcome.error


def test_ipv6_works() -> None:
    with server("fake_http.py", "::1") as port:
        caller = caller_for(f"http://[::1]:{port}/v1", "paced")
        assert ask(caller).error_kind is None
        caller.close()


def test_a_base_url_keeps_its_path_and_its_version_is_not_doubled() -> None:
    paths = [
        HttpTarget.resolve(f"http://127.0.0.1:1{end}", "/v1/completions").path for end in ("", "/", "/v1", "/a/v1/")
    ]
    assert paths == ["/v1/completions", "/v1/completions", "/v1/completions", "/a/v1/completions"]


@pytest.mark.parametrize(
    "url", ["127.0.0.1:80", "ftp://127.0.0.1", "http://", "http://x:99999", "http://nowhere.invalid"]
)
def test_a_url_that_cannot_be_used_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="cannot"):
        HttpTarget.resolve(url, "/")


def test_the_key_goes_into_the_head_and_nowhere_else() -> None:
    target = HttpTarget.resolve("http://127.0.0.1:1", "/x")
    assert b"Authorization: Bearer k\r\n" in target.head("Bearer k")
    assert b"Authorization" not in target.head()
    assert "Bearer" not in repr(target)
