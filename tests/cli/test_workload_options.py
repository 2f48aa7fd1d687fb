"""The workload's options: the spec they make, what is recorded of it, and what is refused before anything starts."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import UsageError
from contracts.load import LoadSpec, PrefixSpec, SessionSpec, WorkloadSpec
from harness.plan import LoadPlan, Plan
from loadgen.cli.load_options import add_load_options, load_plan
from loadgen.cli.workload_options import PROFILES


def plan_of(*words: object) -> LoadPlan:
    parser = argparse.ArgumentParser()
    add_load_options(parser)
    return load_plan(parser.parse_args([str(word) for word in words]), "http", [4], duration_s=20, warmup_s=4)


def test_without_options_the_workload_is_what_it_always_was() -> None:
    assert plan_of().workload == WorkloadSpec(4096, 64, 0.1, 0.1, seed=1)
    assert plan_of().think_s == 0.0


def test_each_option_finds_its_place_in_the_spec() -> None:
    words = ["--isl", "1024", "--osl", "lognormal:mean=64,cv=1", "--spread", "0"]
    words += ["--shared-prefix", "8:2048", "--turns", "5", "--turn-isl", "fixed:100", "--max-context", "9000"]
    assert plan_of(*words).workload == WorkloadSpec(
        1024, "lognormal:mean=64,cv=1", 0.0, 0.0, seed=1,
        prefix=PrefixSpec(8, 2048), session=SessionSpec(5, "fixed:100", 9000),
    )  # fmt: skip


def test_later_turns_bring_as_many_tokens_as_the_first_if_nothing_else_is_said() -> None:
    assert plan_of("--isl", "700", "--turns", "3").workload.session == SessionSpec(3, 700)


def test_a_profile_sets_defaults_that_options_override() -> None:
    profile = PROFILES["agentic-coding"]
    plan = plan_of("--profile", "agentic-coding", "--turns", "4", "--think", "0")
    assert plan.workload.session == SessionSpec(4, profile.turn_isl)
    assert (plan.workload.isl, plan.workload.prefix, plan.think_s) == (profile.isl, profile.prefix, 0.0)
    assert plan_of("--profile", "agentic-coding").think_s == profile.think_s


def test_a_pair_file_gives_both_lengths_and_its_contents_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "pairs"
    file.write_text("10 1\n")
    one = plan_of("--isl", f"@{file}").workload
    assert (one.isl, one.osl) == (f"@{file}", f"@{file}")
    file.write_text("10 2\n")
    assert plan_of("--isl", f"@{file}").workload.lengths_digest != one.lengths_digest


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--isl", "many"], "--isl 'many'"),
        (["--osl", "normal:mean=5"], "--osl 'normal:mean=5'"),
        (["--turn-isl", "5"], "give --turns"),
        (["--max-context", "5"], "give --turns"),
        (["--turns", "0"], "--turns '0'"),
        (["--isl", "@/nowhere/at/all"], "cannot read /nowhere/at/all"),
    ],
)
def test_a_workload_that_cannot_be_is_a_usage_error(words: list[str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        plan_of(*words)


def test_a_pair_file_beside_another_osl_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pairs").write_text("10 1\n")
    with pytest.raises(UsageError, match="without --osl"):
        plan_of("--isl", f"@{tmp_path / 'pairs'}", "--osl", "5")


@pytest.mark.parametrize("text", ["8", "8:", ":8", "0:5", "8:0", "8:-1", "a:b"])
def test_a_shared_prefix_takes_groups_and_tokens(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        plan_of("--shared-prefix", text)
    assert "GROUPS:TOKENS" in capsys.readouterr().err


def test_the_plan_and_the_spec_survive_json_with_the_whole_workload() -> None:
    load = plan_of("--profile", "agentic-coding", "--max-context", "131072")
    plan = Plan("reference", {}, [4], 1, 1, load, observe=False, quick=False)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    values = dict.fromkeys(LoadSpec.__dataclass_fields__, 1)
    spec = LoadSpec(**{**values, "workload": replace(load.workload, seed=7)})
    assert LoadSpec.from_json(spec.to_json()) == spec
