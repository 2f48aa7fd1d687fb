"""Exact tracing: spans from events by hand, and a real process where the rights and symbols are there."""

import json
from pathlib import Path

import pytest
from gil_support import running

from analysis.gil.exact import account, overlap
from contracts.errors import UsageError
from harness.observers.gil.exact import library, probes, spans_of
from loadgen.cli.main import main

MS = 1_000_000
WINDOW = (0, 100 * MS)


def test_waits_and_holds_follow_from_the_four_events() -> None:
    events = {
        1: [(10 * MS, "take_gil"), (30 * MS, "take_gil_return"), (60 * MS, "drop_gil"), (61 * MS, "drop_gil_return")],
        2: [(5 * MS, "take_gil_return"), (30 * MS, "drop_gil"), (70 * MS, "take_gil")],
    }
    trace = spans_of(events, WINDOW)
    assert trace.takes == {1: [(10 * MS, 30 * MS)], 2: [(0, 5 * MS), (70 * MS, 100 * MS)]}
    assert trace.holds == {1: [(30 * MS, 60 * MS)], 2: [(5 * MS, 30 * MS)]}
    assert trace.drops[1] == [(60 * MS, 61 * MS)]
    assert trace.waits[1] == [(10 * MS, 30 * MS), (60 * MS, 61 * MS)]


def test_what_an_uncontended_call_takes_is_taken_off() -> None:
    events = {
        1: [(t * MS + dt, name) for t in range(1, 40) for dt, name in ((0, "take_gil"), (1500, "take_gil_return"))]
    }
    assert spans_of(events, WINDOW).takes == {1: []}


def test_shares_and_blame_are_exact() -> None:
    waits = {1: [(0, 20 * MS), (50 * MS, 60 * MS)]}
    holds = {2: [(0, 15 * MS)], 3: [(15 * MS, 18 * MS), (50 * MS, 60 * MS)], 1: [(20 * MS, 50 * MS)]}
    found = account(WINDOW, waits, holds, {1: "executor_loop", 2: "a", 3: "b"})
    loop = next(share for share in found.threads() if share.name == "executor_loop")
    assert (loop.wait, loop.held) == (0.3, 0.3)
    blame = {part.name: part.fraction for part in loop.blame}
    assert blame == pytest.approx({"a": 0.5, "b": 13 / 30, "(nobody)": 2 / 30})
    assert found.held_fraction == pytest.approx(0.58)
    assert found.switches_per_s == pytest.approx(30)  # 2, 3, 1, 3 within 0.1 s
    assert overlap([(0, 10)], [(5, 7), (9, 20)]) == 3


def test_a_process_that_may_not_be_traced_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gil", "4194999", "--exact"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.alone
def test_two_spinners_wait_for_each_other_half_of_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    with running("start('a', spin); start('b', spin); UP; time.sleep(60)") as process:
        try:
            with probes(library(process.pid)):
                pass
        except UsageError as error:
            pytest.skip(str(error))
        assert main(["gil", str(process.pid), "--exact", "--duration", "2", "--json"]) == 0
        left = Path("/sys/kernel/tracing/uprobe_events").read_text(encoding="utf-8")
    document = json.loads(capsys.readouterr().out)
    threads = {thread["name"]: thread for thread in document["threads"]}
    waits = threads["a"]["gil_wait_fraction"] + threads["b"]["gil_wait_fraction"]
    assert waits == pytest.approx(1.0, abs=0.1), "one of the two has it, on a full machine too"
    assert threads["a"]["blame"][0]["name"] == "b"
    assert "loadgen_gil" not in left
