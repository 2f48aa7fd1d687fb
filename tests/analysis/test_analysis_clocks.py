"""Other machines' clocks, from round trips with a known answer."""

import random
from pathlib import Path

import numpy as np

from analysis.clocks import load_clocks
from contracts.arrow import write_rows
from contracts.records import CLOCKS, ClockRow

S, MS = 1_000_000_000, 1_000_000


def trips(offset_at_start_ns: int, drift: float, seconds: int, worker: int = 1) -> list[ClockRow]:
    """Round trips each second to a clock with this offset and drift; delays are uneven and hide in both ways."""
    chance = random.Random(1)
    rows = []
    for second in range(seconds):
        out_ns, back_ns = (int(chance.expovariate(1 / MS)) + MS // 10 for _ in range(2))
        sent_ns = 5 * S + second * S
        read_at_ns = sent_ns + out_ns
        theirs_ns = read_at_ns + offset_at_start_ns + int(drift * (read_at_ns - 5 * S))
        middle_ns = sent_ns + (out_ns + back_ns) // 2
        rows.append(ClockRow(worker, middle_ns, theirs_ns - middle_ns, out_ns + back_ns))
    return rows


def test_an_offset_of_days_and_a_drift_are_known_within_the_error_that_is_stated(tmp_path: Path) -> None:
    offset_ns, drift = 9 * 86400 * S + 123_456_789, 50e-6
    write_rows(tmp_path / "clocks.arrow", CLOCKS, trips(offset_ns, drift, 120))
    clocks = load_clocks(tmp_path / "clocks.arrow")
    ours = np.arange(10 * S, 115 * S, S // 3, dtype=np.int64)
    theirs = ours + offset_ns + (drift * (ours - 5 * S)).astype(np.int64)
    wrong = theirs - clocks.shift(np.ones(len(ours)), theirs) - ours
    assert 0 < clocks.error_ms < 2
    assert np.abs(wrong).max() / MS <= clocks.error_ms


def test_each_worker_has_its_own_clock_and_those_here_have_none(tmp_path: Path) -> None:
    write_rows(tmp_path / "clocks.arrow", CLOCKS, [*trips(S, 0, 30, worker=0), *trips(-S, 0, 30, worker=2)])
    shift = load_clocks(tmp_path / "clocks.arrow").shift([0, 1, 2], [20 * S] * 3)
    assert np.abs(shift - np.array([S, 0, -S])).max() < MS


def test_no_file_means_one_clock(tmp_path: Path) -> None:
    clocks = load_clocks(tmp_path / "clocks.arrow")
    assert clocks.shift([0, 1], [1, 2]).tolist() == [0, 0]
    assert clocks.error_ms == 0
