"""The paced server's truth, and the judgement of a client against it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from contracts.arrow import write_rows
from contracts.errors import LoadError
from contracts.records import REQUESTS, RequestRow
from loadgen import selftest
from loadgen.cli.main import main
from loadgen.paced import Truth, read_truth
from loadgen.selftest import Level, Window, judge

MS = 1_000_000
GOOD = Level(
    users=8, requests=10, true_ttft_p50_ms=200, true_ttft_p99_ms=201, ttft_p50_error_ms=0.01, ttft_p99_error_ms=0.02,
    itl_p99_error_ms=0.0, load_kept=0.99, bounded_fraction=0.0, client_lag_p99_ms=1.0, cpu_us_per_token=14.0,
    server_late_ms=0.1, failed=0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def bad(level: Level) -> Level:
    return Level(**{**{name: getattr(level, name) for name in Level.__slots__}, "load_kept": 0.5})


def row(server_id: str, sent_ns: int, chunk_ns: list[int]) -> RequestRow:
    return RequestRow(
        worker=0, seq=0, user=0, server_id=server_id, prompt_tokens=1, max_tokens=2, scheduled_ns=None, sent_ns=sent_ns,
        first_byte_ns=chunk_ns[0], chunk_ns=chunk_ns, chunk_tokens=None, end_ns=chunk_ns[-1], status=200,
        finish_reason="length", output_tokens=2, output_tokens_source="usage", error_kind=None, error=None,
        arrival_clock="kernel", merged_chunks=0, client_lag_ns=3 * MS,
    )  # fmt: skip


def test_an_error_is_what_the_client_says_beyond_what_the_server_did(tmp_path: Path) -> None:
    truth = {"cmpl-0": Truth(100, np.array([100 + 200 * MS, 100 + 250 * MS]))}
    write_rows(tmp_path / "requests.arrow", REQUESTS, [row("cmpl-0", 50, [50 + 207 * MS, 50 + 261 * MS])])
    level = judge(Window(0, 1000 * MS, 0.001), truth, 1, tmp_path, 0)
    assert math.isclose(level.ttft_p50_error_ms, 7)
    assert math.isclose(level.itl_p99_error_ms, 4)
    assert math.isclose(level.cpu_us_per_token, 500)
    assert (level.requests, level.client_lag_p99_ms) == (1, 3)
    assert any("TTFT p50 is +7.0 ms off" in words for words in level.complaints)


def test_no_request_in_the_window_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    write_rows(tmp_path / "requests.arrow", REQUESTS, [row("cmpl-0", 50, [60, 70])])
    with pytest.raises(LoadError, match="seconds"):
        judge(Window(100, 200, 0), {}, 1, tmp_path, 0)


def test_the_paced_server_tells_the_times_of_every_token_it_sent(tmp_path: Path) -> None:
    with selftest.paced_server(tmp_path / "truth") as port:
        spec = selftest.load_spec(f"http://127.0.0.1:{port}", 4, tmp_path)
        selftest.run_load(spec, 0.1)
    truth = read_truth(tmp_path / "truth")
    assert len(truth) >= 4
    for one in truth.values():
        assert len(one.sends_ns) == selftest.OSL
        assert one.arrival_ns < one.sends_ns[0]
        assert list(one.sends_ns) == sorted(one.sends_ns)


def test_the_command_prints_a_level_and_up_to_where_it_can_be_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    main(["selftest", "--levels", "4", "--seconds", "1", "--json"])
    said = json.loads(capsys.readouterr().out)
    (level,) = said["levels"]
    assert level["users"] == 4
    assert level["failed"] == 0
    assert level["requests"] >= 1
    assert said["trusted_users"] in (4, None)


@pytest.mark.parametrize(
    ("first_bad", "status", "words"),
    [(99, 0, "Up to 4 users one load process on this machine"), (4, 0, "Up to 2 users"), (1, 1, "Not even 1 users")],
)
def test_the_exit_status_follows_the_lowest_level(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], first_bad: int, status: int, words: str
) -> None:
    measured = []

    def measure(users: int, _: float) -> Level:
        measured.append(users)
        level = Level(**{**{name: getattr(GOOD, name) for name in Level.__slots__}, "users": users})
        return bad(level) if users >= first_bad else level

    monkeypatch.setattr("loadgen.cli.selftest.measure", measure)
    assert main(["selftest", "--levels", "1,2,4"]) == status
    assert words in capsys.readouterr().out
    if first_bad == 1:
        assert measured == [1, 1]  # a second chance, and no higher level
