"""The load's last seconds over several processes, from what each of them tells once a second."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.load import LoadEvent, LoadSpec, WorkloadSpec
from harness.loadcrew import LoadCrew
from harness.loadlink import Heard

S = 1_000_000_000


class Link:
    """A load process that says what the test has it say."""

    pid = None
    expendable = True

    def __init__(self, heard: Heard) -> None:
        self.heard = heard
        self.missing: str | None = None

    def say(self, event: str, **data: Any) -> None:
        line = LoadEvent(event, data).to_line()
        self.heard(LoadEvent.from_line(json.dumps(json.loads(line))))

    def tell(self, line: str) -> None: ...

    def why_ended(self) -> str:
        return "lost"

    def hang_up(self) -> None: ...

    def stop(self, deadline_s: float) -> str | None:
        return self.missing


def crew_of(count: int, tmp_path: Path) -> tuple[LoadCrew, Sequence[Link]]:
    links: list[Link] = []

    def open_link(_: LoadSpec, heard: Heard) -> Link:
        links.append(Link(heard))
        return links[-1]

    specs = [
        LoadSpec(
            drive="rpc", target="", endpoint="", model="", worker=n, users=1, first_user=n, spawn_rate=1.0, quota=None,
            drain_s=1.0, connect_timeout_s=1.0, read_timeout_s=1.0, workload=WorkloadSpec(1, 1),
            requests_path=str(tmp_path / "r"), client_path=str(tmp_path / "c"),
        )
        for n in range(count)
    ]  # fmt: skip
    return LoadCrew(specs, open_link), links


def progress(t_s: float, completed: int, first_tokens: int, ttft_ms: list[float]) -> dict[str, Any]:
    counts = {"users": 8, "in_flight": 8, "failed": 0, "failing": None}
    return {"t_ns": int(t_s * S), "completed": completed, "first_tokens": first_tokens, "ttft_ms": ttft_ms, **counts}


def hear_all(crew: LoadCrew) -> None:
    crew.wait_for("quota", timeout_s=5, stage="test", enough=crew._heard.empty)


def test_rates_add_up_over_processes_whatever_their_clocks_say(tmp_path: Path) -> None:
    crew, links = crew_of(2, tmp_path)
    for t in range(10):
        links[0].say("progress", **progress(t, 100 * t, 100, [10.0, 20.0]))
        links[1].say("progress", **progress(5000 + t, 50 * t, 4, [30.0] * 4))
    hear_all(crew)
    tally = crew.tally()
    assert tally.completed == 900 + 450
    assert tally.recent.req_s == pytest.approx(150.0)
    assert tally.recent.first_tokens == 6 * 104, "the last five seconds: six turns of each"
    assert sum(weight for _, weight in tally.recent.ttft_ms) == pytest.approx(6 * 104)
    assert dict(tally.recent.ttft_ms) == {10.0: 50.0, 20.0: 50.0, 30.0: 1.0}


def test_a_first_progress_gives_no_rate_and_a_lost_process_none_any_more(tmp_path: Path) -> None:
    crew, links = crew_of(2, tmp_path)
    links[0].say("progress", **progress(1, 7, 0, []))
    hear_all(crew)
    assert crew.tally().recent.req_s is None
    for t in range(2, 4):
        links[0].say("progress", **progress(t, 7 * t, 2, [1.0, 2.0]))
        links[1].say("progress", **progress(t, 9 * t, 2, [3.0, 4.0]))
    hear_all(crew)
    assert crew.tally().recent.req_s == pytest.approx(7 + 9)
    links[1].heard(None)
    hear_all(crew)
    assert crew.tally().recent.req_s == pytest.approx(7)
    assert {value for value, _ in crew.tally().recent.ttft_ms} == {1.0, 2.0}


def test_a_load_machine_of_an_older_release_tells_less_and_is_no_trouble(tmp_path: Path) -> None:
    crew, links = crew_of(1, tmp_path)
    told = progress(1, 7, 0, [5.0])
    del told["first_tokens"]
    links[0].say("progress", **told)
    hear_all(crew)
    assert crew.tally().recent.ttft_ms == [(5.0, 1.0)]


def test_a_machine_whose_last_records_do_not_come_is_lost_though_it_was_done(tmp_path: Path) -> None:
    crew, links = crew_of(2, tmp_path)
    for link in links:
        link.say("done", completed=10)
    crew.wait_for("done", timeout_s=5, stage="test")
    links[1].missing = "on far: its last records did not come"
    crew.stop(0.1)
    assert crew.lost == {1: "on far: its last records did not come"}
