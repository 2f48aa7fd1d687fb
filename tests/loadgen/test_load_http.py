"""The HTTP transport against a real server, in plain gevent: nothing here is patched."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from load_support import HERE, server

from contracts.clock import NS_PER_MS, now_ns
from contracts.errors import UsageError
from contracts.load import WorkloadSpec
from loadgen import kinds
from loadgen.drives import Caller, HttpCaller, Sent
from loadgen.outcome import Outcome
from loadgen.transport.http import HttpConnection
from loadgen.transport.kernelclock import KernelClock
from loadgen.transport.reactor import Reactor
from loadgen.transport.target import HttpTarget
from loadgen.workload.bodies import PATHS, BodyTemplate
from loadgen.workload.synthetic import Workload

COUNT = 6
CERTIFICATE = HERE / "self_signed.pem"
WORKLOAD = Workload(WorkloadSpec(isl=10, osl=COUNT, osl_spread=0))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with server("fake_http.py") as line:
        yield int(line)


def caller_for(url: str, case: str, endpoint: str = "completions", **more: Any) -> Caller:
    settings = {"connect_timeout_s": 0.3, "read_timeout_s": 2.0, **more}
    target = HttpTarget.resolve(url, PATHS[endpoint], verify=settings.pop("verify", True))
    head = target.head(keep_alive=settings.get("keep_alive", True))
    connection = HttpConnection(target, Reactor(KernelClock()), **settings)
    return HttpCaller(WORKLOAD.prompts, BodyTemplate(endpoint, case), connection, head)


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
        ("retry_later", kinds.HTTP_4XX, 429, "(Retry-After: 7): slow"),
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


def test_headers_are_added_and_replace_ours_but_for_those_of_the_transport() -> None:
    target = HttpTarget.resolve("http://127.0.0.1:1", "/x")
    head = target.head("Bearer k", {"X-Route": "a", "accept": "*/*", "authorization": "Basic z"})
    assert b"X-Route: a\r\n" in head
    assert b"accept: */*\r\n" in head
    assert b"text/event-stream" not in head
    assert b"Bearer k" not in head
    for name, value in [("Content-Length", "1"), ("host", "b"), ("X\r\nY", "1"), ("X", "a\nb"), ("é", "1")]:
        with pytest.raises(UsageError):
            target.head(headers={name: value})


def test_a_late_reader_still_gets_the_kernels_times_and_says_what_is_bounded(port: int) -> None:
    caller = caller_for(f"http://127.0.0.1:{port}", "paced")
    awake_ns = 0

    def doze(_: Any) -> None:
        nonlocal awake_ns
        time.sleep(1.0)  # the whole event loop stands still, while the response comes
        awake_ns = now_ns()

    outcome = ask(caller, sent=doze)
    assert outcome.arrival_clock == "kernel"
    assert outcome.sent_ns < outcome.chunk_ns[0] < awake_ns
    assert outcome.chunk_ns[-1] < awake_ns
    assert outcome.merged_chunks == COUNT - len(set(outcome.chunk_ns)) > 0
    assert outcome.client_lag_ns > 0
    caller.close()


def test_a_stamp_from_before_the_wall_clock_was_set_is_not_believed(port: int) -> None:
    clock = KernelClock()
    target = HttpTarget.resolve(f"http://127.0.0.1:{port}", PATHS["completions"])
    connection = HttpConnection(target, Reactor(clock), 1, 2)
    caller = HttpCaller(WORKLOAD.prompts, BodyTemplate("completions", "paced"), connection, target.head())
    for step_ns in (-3_600_000_000_000, 3_600_000_000_000):
        clock.offset_ns += step_ns
        before = now_ns()
        outcome = ask(caller)
        assert outcome.arrival_clock == "mixed"
        assert before < outcome.sent_ns <= outcome.chunk_ns[0] <= outcome.chunk_ns[-1] < now_ns()
        clock.offset_ns -= step_ns
    caller.close()


def test_a_unix_socket_works_on_the_users_clock(tmp_path: Path) -> None:
    with server("fake_http.py", tmp_path / "socket") as path:
        caller = caller_for(f"unix:{path}", "paced")
        for n in range(2):
            outcome = ask(caller, n)
            assert (outcome.error_kind, outcome.arrival_clock, outcome.client_lag_ns) == (None, "user", None)
        caller.close()


@pytest.fixture(scope="module")
def tls_port() -> Iterator[int]:
    with server("fake_http.py", "127.0.0.1", CERTIFICATE) as line:
        yield int(line)


@pytest.mark.parametrize("case", ["paced", "crlf", "until_close", "closes_silently", "no_usage"])
def test_tls_carries_streams_with_the_kernels_times(tls_port: int, case: str) -> None:
    caller = caller_for(f"https://localhost:{tls_port}", case, verify=False)
    for n in range(3):
        outcome = ask(caller, n)
        assert (outcome.error_kind, outcome.error, outcome.output_tokens) == (None, None, COUNT)
        assert outcome.arrival_clock == "kernel"
    caller.close()


def test_a_self_signed_certificate_is_refused_unless_it_is_named_or_all_are_taken(
    tls_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = ask(caller_for(f"https://localhost:{tls_port}", "paced"))
    assert outcome.error_kind == kinds.CONNECT_FAILED
    assert "certificate" in outcome.error.lower()
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    caller = caller_for(f"https://localhost:{tls_port}", "paced")
    assert ask(caller).error_kind is None
    caller.close()


def test_a_plain_server_at_an_https_url_is_a_failed_connection(port: int) -> None:
    assert ask(caller_for(f"https://localhost:{port}", "paced", verify=False)).error_kind in (
        kinds.CONNECT_FAILED, kinds.CONNECT_TIMEOUT,
    )  # fmt: skip


@pytest.mark.parametrize(("keep_alive", "connections"), [(True, 1), (False, 4)])
def test_a_connection_is_kept_unless_a_new_one_is_wanted_for_each_request(keep_alive: bool, connections: int) -> None:
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            asked = 0
            while asked < 4:
                held, _ = listener.accept()
                accepted.append(held)
                while (data := held.recv(65536)) and asked < 4:
                    assert (b"Connection: close" in data) is not keep_alive
                    body = b'data: {"id":"a","choices":[{"text":"x","finish_reason":"stop"}]}\n\n'
                    held.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                    asked += 1
                    if not keep_alive or asked == 4:
                        break

        thread = threading.Thread(target=answer)
        thread.start()
        caller = caller_for(f"http://127.0.0.1:{listener.getsockname()[1]}", "x", keep_alive=keep_alive)
        assert [ask(caller, n).error_kind for n in range(4)] == [None] * 4
        caller.close()
        thread.join()
        for held in accepted:
            held.close()
    assert len(accepted) == connections


def test_a_request_is_cut_after_so_many_chunks_and_its_connection_is_not_used_again(port: int) -> None:
    caller = caller_for(f"http://127.0.0.1:{port}", "paced")
    outcome = caller.ask(WORKLOAD.draw(0, 0), lambda _: None, lambda _: None, 2)
    assert (outcome.error_kind, len(outcome.chunk_ns)) == (kinds.ABORTED, 2)
    assert ask(caller, 1).error_kind is None
    caller.close()
