"""The ceiling's search, on clients of known capacity; and what is kept of a self-test."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from test_load_selftest import GOOD

from loadgen.ceiling import describe, find_ceiling, tokens_per_s
from loadgen.cli import trust
from loadgen.cli.trust import Trust
from loadgen.selftest import Level


def client(capacity: int, asked: list[int], server_late_ms: float = 0.1) -> Callable[[int], Level]:
    def measure(users: int) -> Level:
        asked.append(users)
        late = users > capacity
        return replace(
            GOOD, users=users, client_lag_p99_ms=80.0 if late else 1.0, server_late_ms=server_late_ms if late else 0.1
        )

    return measure


def test_the_ceiling_is_closed_in_from_both_sides() -> None:
    asked: list[int] = []
    ceiling = find_ceiling(client(1400, asked))
    assert asked == [256, 512, 1024, 2048, 1536, 1280]
    assert ceiling.good is not None
    assert ceiling.late is not None
    assert (ceiling.good.users, ceiling.late.users) == (1280, 1536)
    assert f"{tokens_per_s(ceiling.good):,.0f} tokens/s" in describe(ceiling)[0]
    assert not ceiling.server_gave_out


def test_a_late_server_is_told_apart_from_a_late_client() -> None:
    ceiling = find_ceiling(client(600, [], server_late_ms=50))
    assert ceiling.server_gave_out
    assert any("paced server" in line for line in describe(ceiling))


def test_a_machine_that_is_never_in_time_has_no_ceiling() -> None:
    ceiling = find_ceiling(client(0, []))
    assert ceiling.good is None
    assert "256 users" in describe(ceiling)[0]


def test_a_machine_that_is_never_late_says_up_to_where_it_was_tried() -> None:
    ceiling = find_ceiling(client(10**9, []), most=1024)
    assert ceiling.late is None
    assert any("up to 1024 users" in line for line in describe(ceiling))


def test_a_self_test_is_remembered_on_its_own_machine_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert trust.recall() is None
    path = trust.save(Trust.now(1024, 2048, "only 80% of the load was kept"))
    assert path is not None
    found = trust.recall()
    assert found is not None
    assert (found["users"], found["failed_at"]) == (1024, 2048)
    path.write_text(path.read_text(encoding="utf-8").replace('"python": "3', '"python": "2'), encoding="utf-8")
    assert trust.recall() is None


def test_a_state_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert trust.save(Trust.now(1, None, "")) is None
