"""What analysis makes of the workload that a plan records: named in the report, and never compared with another one."""

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic import Recipe, write_sweep

from analysis.report.view import make_view
from analysis.study import Study, study_sweep
from analysis.versus import refusals

SESSIONS = {"session": {"turns": 3, "turn_isl": 100, "max_context": None}, "prefix": {"groups": 4, "tokens": 2048}}

TRACE = {"path": "/data/t.jsonl", "format": "mooncake", "digest": "ab", "time_scale": 2.0, "turns": None}


def sweep(path: Path, **workload: Any) -> Study:
    write_sweep(path, [("1", 4, 1, Recipe())])
    document = json.loads((path / "sweep.json").read_text())
    document["plan"] |= workload
    (path / "sweep.json").write_text(json.dumps(document))
    return study_sweep(path)


def test_equal_workloads_may_be_compared_and_absent_options_are_their_defaults(tmp_path: Path) -> None:
    old = sweep(tmp_path / "old")
    new = sweep(tmp_path / "new", arrival="closed", burstiness=1.0, think_s=0.0, session=None, prefix=None)
    assert refusals(old, new, cross_machine=False) == []


@pytest.mark.parametrize(
    ("workload", "named"),
    [
        ({"isl": "lognormal:mean=4096,cv=1"}, "isl is 4096 in one and lognormal:mean=4096,cv=1 in the other"),
        ({"lengths_digest": "ab"}, "lengths_digest"),
        ({"session": SESSIONS["session"]}, "session.turns is None in one and 3 in the other"),
        ({"prefix": SESSIONS["prefix"]}, "prefix.groups"),
        ({"arrival": "poisson", "rate_rps": 5.0}, "arrival is closed in one and poisson in the other"),
        ({"think_s": 1.0}, "think_s"),
        ({"trace": TRACE}, "trace.digest is None in one and ab in the other"),
    ],
)
def test_another_workload_is_refused_by_name(tmp_path: Path, workload: dict[str, Any], named: str) -> None:
    reasons = refusals(sweep(tmp_path / "one"), sweep(tmp_path / "two", **workload), cross_machine=False)
    assert any(named in reason for reason in reasons)


def test_the_report_says_which_workload_was_run(tmp_path: Path) -> None:
    meta = make_view(sweep(tmp_path / "one", **SESSIONS)).meta
    assert "ISL 4096" in meta
    assert "sessions of 3 turns, each with 100 new tokens" in meta
    assert "4 shared prefixes of 2048 tokens" in meta


def test_a_trace_is_named_instead_of_lengths_that_it_has_itself(tmp_path: Path) -> None:
    words = {"trace": TRACE, "arrival": "trace", "isl": "trace", "osl": "trace"}
    meta = make_view(sweep(tmp_path / "one", **words)).meta
    assert "trace t.jsonl (mooncake), at its own times x 2.0" in meta
    assert not [part for part in meta if "SL " in part]


def test_the_same_trace_at_another_place_may_be_compared(tmp_path: Path) -> None:
    one = sweep(tmp_path / "one", trace=TRACE)
    assert refusals(one, sweep(tmp_path / "two", trace=TRACE | {"path": "/other/t"}), cross_machine=False) == []


def test_users_who_think_are_not_missed_among_those_in_flight(tmp_path: Path) -> None:
    def codes_of(study: Study) -> set[str]:
        return {doubt.code for doubt in study.cells[0].doubts}

    def half(path: Path, **workload: Any) -> Study:
        write_sweep(path, [("1", 8, 1, Recipe(users=4))])
        document = json.loads((path / "sweep.json").read_text())
        document["plan"] |= workload
        (path / "sweep.json").write_text(json.dumps(document))
        return study_sweep(path)

    restless = half(tmp_path / "one")
    assert "concurrency_not_reached" in codes_of(restless)
    answered_s = restless.cells[0].metrics.e2e_ms.mean / 1000
    assert "concurrency_not_reached" not in codes_of(half(tmp_path / "two", think_s=answered_s))
    assert "concurrency_not_reached" in codes_of(half(tmp_path / "three", think_s=answered_s / 10))
