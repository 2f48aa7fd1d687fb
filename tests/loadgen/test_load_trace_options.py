"""The trace's options: the spec they make, what is recorded of it, and what is refused before anything starts."""

import argparse
from pathlib import Path

import pytest
import trace_files

from contracts.errors import UsageError
from contracts.load import TraceSpec, WorkloadSpec
from harness.plan import LoadPlan
from loadgen.cli.load_options import add_load_options, load_plan
from loadgen.files import digest


def plan_of(*words: object, drive: str = "http") -> LoadPlan:
    parser = argparse.ArgumentParser()
    add_load_options(parser)
    return load_plan(parser.parse_args([str(word) for word in words]), drive, [4], duration_s=20, warmup_s=4)


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    return trace_files.mooncake(tmp_path / "m.jsonl", [(0, 600, 5, (0, 1)), (9, 600, 5, (0, 2))])


def test_a_trace_is_recognised_and_replayed_to_its_end(mooncake: Path) -> None:
    plan = plan_of("--trace", mooncake)
    assert plan.workload == WorkloadSpec(
        "trace", "trace", 0.1, 0.1, seed=1, trace=TraceSpec(str(mooncake), "mooncake", digest(mooncake))
    )
    assert (plan.duration_s, plan.requests, plan.warmup_s) == (None, None, 4)
    assert plan_of("--trace", mooncake, "--duration", 5).duration_s == 5


def test_at_its_own_times_nothing_of_a_trace_is_used_up_by_a_warm_up(mooncake: Path) -> None:
    plan = plan_of("--trace", mooncake, "--arrival", "trace", "--time-scale", 4)
    assert (plan.arrival, plan.rate_rps, plan.warmup_s) == ("trace", None, 0.0)
    assert plan.workload.trace.time_scale == 4.0
    assert plan_of("--trace", mooncake, "--arrival", "trace", "--warmup", 3).warmup_s == 3


def test_a_trace_may_be_run_at_a_rate_of_ones_own(mooncake: Path) -> None:
    assert plan_of("--trace", mooncake, "--arrival", "poisson", "--rate", 5).rate_rps == 5


def test_the_digest_tells_contents_apart(mooncake: Path) -> None:
    before = plan_of("--trace", mooncake).workload.trace.digest
    trace_files.mooncake(mooncake, [(0, 600, 5, (0, 1)), (9, 601, 5, (0, 2))])
    assert plan_of("--trace", mooncake).workload.trace.digest != before


def test_turns_limit_a_conversation(tmp_path: Path) -> None:
    path = trace_files.sharegpt(tmp_path / "s.json", [("a", "b", "c", "d")])
    workload = plan_of("--trace", path, "--turns", 1, "--osl", 9, "--endpoint", "chat").workload
    assert (workload.trace.turns, workload.session, workload.osl) == (1, None, 9)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--isl", 5], "--isl is of drawn requests"),
        (["--shared-prefix", "2:10"], "--shared-prefix is of drawn requests"),
        (["--profile", "agentic-coding"], "--profile is of drawn requests"),
        (["--osl", 5], "says itself how many"),
        (["--turns", 2], "ShareGPT"),
        (["--time-scale", 2], "give --arrival trace"),
        (["--arrival", "trace", "--rate", 5], "goes with --rate"),
        (["--trace-format", "azure"], "no column 'TIMESTAMP'"),
    ],
)
def test_what_does_not_go_with_a_trace_is_refused(mooncake: Path, words: list[object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        plan_of("--trace", mooncake, *words)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--time-scale", 2], "give --trace FILE"),
        (["--trace-format", "azure"], "give --trace FILE"),
        (["--arrival", "trace"], "give --trace FILE"),
        (["--trace", "/nowhere/at/all"], "cannot read the trace"),
    ],
)
def test_what_needs_a_trace_is_refused_without(words: list[object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        plan_of(*words)


def test_a_trace_must_suit_the_arrival_the_drive_and_the_endpoint(tmp_path: Path) -> None:
    texts = trace_files.jsonl(tmp_path / "texts", [{"prompt": "a"}])
    ids = trace_files.jsonl(tmp_path / "ids", [{"prompt": [5]}])
    with pytest.raises(UsageError, match="has no times"):
        plan_of("--trace", texts, "--arrival", "trace")
    with pytest.raises(UsageError, match="takes token ids"):
        plan_of("--trace", texts, drive="rpc")
    with pytest.raises(UsageError, match="chat does not take"):
        plan_of("--trace", ids, "--endpoint", "chat")
    assert plan_of("--trace", ids, drive="rpc").workload.trace.format == "jsonl"


def test_a_bad_line_among_the_first_is_found_before_anything_starts(mooncake: Path) -> None:
    mooncake.write_text(mooncake.read_text() + "bad\n")
    with pytest.raises(UsageError, match=r"m\.jsonl:3: not JSON"):
        plan_of("--trace", mooncake)
