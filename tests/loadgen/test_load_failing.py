"""Servers that fail everything, and those that only fail most of it."""

import resource
import socket
from pathlib import Path

import pytest
from load_support import Load, server, spec

from loadgen import kinds
from loadgen.failing import FailingRule

S = 1_000_000_000


def rule_after(*ends: tuple[int, str | None]) -> FailingRule:
    """Give a rule of 10 s and three failures that has seen requests end at these times, by kind."""
    rule = FailingRule(10, least=3)
    for t_ns, kind in ends:
        rule.ended(kind, "why", t_ns)
    return rule


FAILED = [(n * S, kinds.HTTP_5XX) for n in range(11)]


def test_everything_failing_for_the_span_is_said_with_kinds_and_the_last_reason() -> None:
    verdict = rule_after(*FAILED, (11 * S, kinds.CONNECT_REFUSED)).verdict(11 * S, 10 * S)
    assert verdict == "12 requests in 11 s, all failed (11 http_5xx, 1 connect_refused); the last: why"


@pytest.mark.parametrize("kind", [None, kinds.ABORTED])
def test_one_good_end_begins_the_span_anew(kind: str | None) -> None:
    rule = rule_after(*FAILED, (11 * S, kind), (12 * S, kinds.HTTP_5XX))
    assert rule.verdict(21 * S, None) is None


def test_a_token_begins_the_span_anew() -> None:
    rule = rule_after(*FAILED)
    rule.alive()
    assert rule.verdict(30 * S, None) is None


def test_a_request_that_began_before_the_first_failure_and_is_still_waited_for_forbids_it() -> None:
    rule = rule_after(*((n * S, kinds.HTTP_5XX) for n in range(5, 20)))
    assert rule.verdict(20 * S, 4 * S) is None
    assert rule.verdict(20 * S, 6 * S) is not None


@pytest.mark.parametrize("kind", [kinds.CANCELLED, kinds.UNFINISHED])
def test_what_the_load_itself_cut_short_is_no_failure_of_the_server(kind: str) -> None:
    assert rule_after(*((n * S, kind) for n in range(20))).verdict(30 * S, None) is None


def test_few_failures_and_a_span_of_zero_never_hold() -> None:
    assert rule_after(*FAILED[:2]).verdict(60 * S, None) is None
    never = FailingRule(0, least=1)
    never.ended(kinds.HTTP_5XX, None, 0)
    assert never.verdict(60 * S, None) is None


def test_a_load_against_a_dead_port_says_that_everything_fails(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with Load(spec(tmp_path, users=8, target=f"http://127.0.0.1:{port}", give_up_s=0.5)) as load:
        load.start()
        while not (failing := load.until("progress")["failing"]):
            pass
        load.tell("stop")
        done = load.until("done")
        assert load.end() == (0, "")
        assert len(load.rows()) == done["failed"] >= 20
    assert "connect_refused" in failing


def test_a_server_that_answers_one_request_in_ten_is_overloaded_and_not_failing(tmp_path: Path) -> None:
    with (
        server("fake_http.py") as port,
        Load(spec(tmp_path, users=40, model="every_tenth", target=f"http://127.0.0.1:{port}", give_up_s=1.0)) as load,
    ):
        done = load.run_for(3)
        assert load.end() == (0, "")
    assert done["failed"] > done["completed"] > 0
    assert {event.data["failing"] for event in load.events if event.event == "progress"} == {None}


@pytest.mark.parametrize(("case", "kind"), [("endless", kinds.UNFINISHED), ("endless_refusal", kinds.HTTP_5XX)])
def test_an_answer_without_end_is_cut_after_the_drain(tmp_path: Path, case: str, kind: str) -> None:
    with (
        server("fake_http.py") as port,
        Load(spec(tmp_path, users=2, model=case, target=f"http://127.0.0.1:{port}", drain_s=0.3)) as load,
    ):
        done = load.run_for(0.5)
        assert load.end() == (0, "")
        assert {row["error_kind"] for row in load.rows()} == {kind}
    assert done["failed"] == 2


def test_a_line_without_end_is_given_up_before_it_fills_the_memory(tmp_path: Path) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with (
        server("fake_http.py") as port,
        Load(spec(tmp_path, users=2, model="endless_line", target=f"http://127.0.0.1:{port}")) as load,
    ):
        load.run_for(0.5)
        assert load.end() == (0, "")
        assert {row["error_kind"] for row in load.rows()} == {kinds.BAD_STREAM}
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < max(before_kib, 1 << 20)
