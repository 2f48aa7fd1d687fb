"""Objectives on synthetic sweeps whose latencies are exact: TTFT 100 ms, TPOT 10 ms, times the cell's factor."""

from pathlib import Path

import pytest
from synthetic import Recipe, write_sweep

from analysis.slo import Term, hold, parse_slo
from analysis.study import study_sweep
from analysis.tables import load_sweep
from contracts.errors import UsageError


def test_terms_are_read_with_their_percentiles() -> None:
    assert parse_slo("ttft_ms:p95<2000, tpot_ms<60") == (Term("ttft_ms", 95, 2000), Term("tpot_ms", 99, 60))


@pytest.mark.parametrize(
    "text", ["", "ttft_ms", "ttft<5", "ttft_ms:p100<5", "ttft_ms>5", "ttft_ms<5,ttft_ms<6", "ttft_ms:p99<-5"]
)
def test_a_bad_objective_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--slo"):
        parse_slo(text)


def test_shares_and_goodput_are_exact(tmp_path: Path) -> None:
    (cell,) = load_sweep(write_sweep(tmp_path, [("1", 8, 0, Recipe())])).per_cell
    kept = hold(cell, parse_slo("ttft_ms:p99<101,tpot_ms<10.5"))
    assert kept is not None
    assert kept.met
    assert kept.shares == (1.0, 1.0)
    assert kept.goodput_req_s == pytest.approx(8 / 0.2, rel=0.02)  # 8 users, a request takes 200 ms
    missed = hold(cell, parse_slo("ttft_ms:p99<101,tpot_ms<9"))
    assert missed is not None
    assert not missed.met
    assert missed.goodput_req_s == 0


def test_failures_keep_to_nothing(tmp_path: Path) -> None:
    (cell,) = load_sweep(write_sweep(tmp_path, [("1", 8, 0, Recipe(fail_every=5))])).per_cell
    kept = hold(cell, parse_slo("ttft_ms:p90<1000"))
    assert kept is not None
    assert not kept.met
    assert kept.shares[0] == pytest.approx(0.8, abs=0.02)
    lenient = hold(cell, parse_slo("ttft_ms:p75<1000"))
    assert lenient is not None
    assert lenient.met


def test_the_highest_concurrency_is_the_last_of_those_that_met_it_in_every_block(tmp_path: Path) -> None:
    cells = [
        (value, concurrency, block, Recipe(factor=concurrency / 4 * (0.5 if value == "32" else 1.0)))
        for block in range(2)
        for value in ("1", "32")
        for concurrency in (4, 8, 16)
    ]
    study = study_sweep(write_sweep(tmp_path, cells), "ttft_ms:p99<210")
    assert study.slo is not None
    assert [(setting.short, highest) for setting, highest in study.slo.highest] == [("1", 8), ("32", 16)]
