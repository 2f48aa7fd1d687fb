"""The load process as the harness runs it: a real process, real servers, known answers."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from load_support import ROOT, Load, server, spec

from contracts.arrow import read_table
from contracts.load import LoadSpec, WorkloadSpec
from contracts.records import REQUESTS
from loadgen import kinds

USERS = 16
SHORT = WorkloadSpec(isl=20, osl=8, seed=3)
LONG = WorkloadSpec(isl=20, osl=400, seed=3)


@pytest.fixture(params=["http", "rpc"])
def paced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Give what a spec needs to reach a paced server by each drive."""
    if request.param == "rpc":
        with server("fake_direct.py", tmp_path / "socket", "paced"):
            yield {"drive": "rpc", "target": str(tmp_path / "socket")}
    else:
        with server("fake_http.py") as port:
            yield {"drive": "http", "target": f"http://127.0.0.1:{port}"}


def most_in_flight(rows: list[dict[str, Any]]) -> int:
    turns = sorted([(row["sent_ns"], 1) for row in rows] + [(row["end_ns"], -1) for row in rows])
    now = most = 0
    for _, turn in turns:
        now += turn
        most = max(most, now)
    return most


def test_a_run_records_every_request_with_its_known_answer(paced: dict[str, str], tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=USERS, first_user=100, worker=3, workload=SHORT, **paced)) as load:
        done = load.run_for(1.5)
        assert load.end() == (0, "")
        rows = load.rows()
    assert [event.event for event in load.events if event.event != "progress"] == ["ready", "ramped", "done"]
    assert done["completed"] == len(rows) > USERS
    assert (done["failed"], done["unfinished"]) == (0, 0)
    assert {row["error_kind"] for row in rows} == {None}
    assert {row["user"] for row in rows} == set(range(100, 100 + USERS))
    assert sorted(row["seq"] for row in rows) == list(range(len(rows)))
    assert {row["worker"] for row in rows} == {3}
    assert len({row["server_id"] for row in rows}) == len(rows)
    for row in rows:
        assert row["output_tokens"] == row["max_tokens"] == sum(row["chunk_tokens"])
        assert len(row["chunk_ns"]) == len(row["chunk_tokens"])
        assert row["sent_ns"] < row["first_byte_ns"] <= row["chunk_ns"][0] <= row["chunk_ns"][-1] <= row["end_ns"]
        assert row["finish_reason"] == "length"


def test_all_users_are_in_flight_in_closed_loop_and_never_more(paced: dict[str, str], tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=64, workload=LONG, **paced)) as load:
        load.run_for(1)
        assert load.end()[0] == 0
        assert most_in_flight(load.rows()) == 64
        assert max(row["in_flight"] for row in load.client_rows()) == 64


def test_what_is_in_flight_at_the_stop_is_drained_and_nothing_new_begins(paced: dict[str, str], tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=USERS, workload=LONG, drain_s=30.0, **paced)) as load:
        load.start()
        time.sleep(0.2)
        stop_ns = time.monotonic_ns()
        load.tell("stop")
        done = load.until("done")
        assert load.end()[0] == 0
        rows = load.rows()
    assert done["completed"] == len(rows) == USERS
    assert all(row["sent_ns"] < stop_ns < row["end_ns"] for row in rows)


def test_what_is_still_running_after_the_drain_is_recorded_as_unfinished(paced: dict[str, str], tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=USERS, workload=LONG, drain_s=0.2, **paced)) as load:
        load.start()
        time.sleep(0.1)
        load.tell("stop")
        done = load.until("done")
        assert load.end() == (0, "")
        rows = load.rows()
    assert done["unfinished"] == done["failed"] == len(rows) == USERS
    assert {row["error_kind"] for row in rows} == {kinds.UNFINISHED}
    assert all(row["chunk_ns"] for row in rows)


def test_the_window_ends_by_itself_at_its_time(paced: dict[str, str], tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=USERS, workload=SHORT, **paced)) as load:
        load.start()
        end_ns = time.monotonic_ns() + 500_000_000
        load.tell("steady", start_ns=end_ns - 400_000_000, end_ns=end_ns)
        assert load.until("done")["t_ns"] >= end_ns
        assert max(row["end_ns"] for row in load.rows()) >= end_ns


def test_a_quota_counts_the_requests_that_began_inside_the_window(paced: dict[str, str], tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=USERS, workload=SHORT, quota=40, **paced)) as load:
        load.start()
        time.sleep(0.3)
        start_ns = time.monotonic_ns()
        load.tell("steady", start_ns=start_ns, end_ns=None)
        quota = load.until("quota")
        load.tell("stop")
        load.until("done")
        ends = [row["end_ns"] for row in load.rows() if row["sent_ns"] >= start_ns]
    assert sum(end <= quota["t_ns"] for end in ends) >= 40
    assert [event.event for event in load.events].count("quota") == 1


def test_progress_tells_counts_and_first_tokens_each_second(paced: dict[str, str], tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=USERS, workload=SHORT, **paced)) as load:
        load.start()
        progress = load.until("progress")
    assert progress["users"] == USERS
    assert progress["completed"] > 0
    assert progress["failed"] == 0
    assert 0 < len(progress["ttft_ms"]) <= min(200, progress["first_tokens"])
    assert progress["first_tokens"] >= progress["completed"]


def test_the_ttfts_that_are_shown_are_an_even_draw_of_the_second(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from loadgen.recorder import Recorder
recorder = Recorder(0, Path(sys.argv[1], "requests.arrow"), Path(sys.argv[1], "client.arrow"), lambda _: None)
for n in range(10_000):
    recorder.first_token(n * 1_000_000)
count, kept = recorder.take_first_tokens()
print(count, len(kept), 3000 < sum(kept) / len(kept) < 7000, recorder.take_first_tokens())
recorder.close()
"""
    told = subprocess.check_output([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, text=True)
    assert told == "10000 200 True (0, [])\n"


def test_the_same_seed_sends_the_same_requests_whatever_the_timing(paced: dict[str, str], tmp_path: Path) -> None:
    lengths = []
    for turn, users in enumerate((2, 5)):
        folder = tmp_path / str(turn)
        folder.mkdir()
        with Load(spec(folder, users=users, workload=SHORT, **paced)) as load:
            load.run_for(0.5)
            mine = [row for row in load.rows() if row["user"] == 1]
        lengths.append([(row["prompt_tokens"], row["max_tokens"]) for row in sorted(mine, key=lambda row: row["seq"])])
    shared = min(map(len, lengths))
    assert shared > 1
    assert lengths[0][:shared] == lengths[1][:shared]


def busy_between(rows: list[dict[str, Any]], start_ns: int, end_ns: int) -> set[int]:
    return {row["user"] for row in rows if row["sent_ns"] < end_ns and row["end_ns"] > start_ns}


def test_users_come_and_go_in_one_load_and_none_is_cut_short(paced: dict[str, str], tmp_path: Path) -> None:
    spans = []
    with Load(spec(tmp_path, users=6, most_users=14, workload=SHORT, **paced)) as load:
        load.start()
        for users in (14, 3, 9):
            load.tell("users", users=users, ramp_s=0.2)
            load.until("ramped")
            start_ns = time.monotonic_ns()
            time.sleep(0.4)
            spans.append((users, start_ns, time.monotonic_ns()))
        load.tell("stop")
        done = load.until("done")
        assert load.end() == (0, "")
        rows = load.rows()
    assert (done["failed"], done["unfinished"]) == (0, 0)
    for users, start_ns, end_ns in spans:
        assert busy_between(rows, start_ns, end_ns) == set(range(users))


def test_a_ramp_of_users_is_even(paced: dict[str, str], tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=1, most_users=21, workload=LONG, **paced)) as load:
        load.start()
        start_ns = time.monotonic_ns()
        load.tell("users", users=21, ramp_s=2.0)
        load.until("ramped")
        load.tell("stop")
        load.until("done")
        sent: dict[int, int] = {}
        for row in sorted(load.rows(), key=lambda row: row["sent_ns"]):
            sent.setdefault(row["user"], row["sent_ns"] - start_ns)
    del sent[0]
    assert len(sent) == 20
    for place, t_ns in enumerate(sorted(sent.values())):
        assert t_ns >= place * 100_000_000


@pytest.mark.parametrize("users", [0, 7])
def test_users_beyond_what_was_announced_are_an_error_event(tmp_path: Path, users: int) -> None:
    with Load(spec(tmp_path, users=2, most_users=6, target="http://127.0.0.1:9")) as load:
        load.until("ready")
        load.tell("users", users=users, ramp_s=1)
        assert "announced for 1 to 6" in load.until("error")["message"]
        assert load.end()[0] == 2


def test_the_end_of_input_stops_at_once_and_leaves_readable_files(paced: dict[str, str], tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=USERS, workload=LONG, **paced)) as load:
        load.start()
        time.sleep(0.3)
        load.process.stdin.close()
        assert load.end() == (130, "")
        rows = load.rows()
    assert Counter(row["error_kind"] for row in rows) == {kinds.CANCELLED: USERS}


def test_a_sigterm_stops_at_once_and_leaves_readable_files(paced: dict[str, str], tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=USERS, workload=LONG, **paced)) as load:
        load.start()
        load.process.send_signal(signal.SIGTERM)
        assert load.end() == (130, "")
        assert len(load.rows()) == USERS


def test_a_reader_that_went_away_stops_the_load(paced: dict[str, str], tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=USERS, workload=SHORT, **paced)) as load:
        load.start()
        load.process.stdout.close()
        assert load.process.wait(30) == 130


def test_a_kill_loses_at_most_the_last_second(paced: dict[str, str], tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=USERS, workload=SHORT, **paced)) as load:
        load.start()
        seen = [load.until("progress")["completed"] for _ in range(3)]
        killed_ns = time.monotonic_ns()
        load.process.kill()
        load.process.wait()
        rows, client_rows = load.rows(), load.client_rows()
    assert len(rows) >= seen[0] > 0
    assert client_rows
    assert max(row["end_ns"] for row in rows) <= killed_ns


def test_an_idle_stop_before_any_start_is_done_with_no_rows(tmp_path: Path) -> None:
    with Load(spec(tmp_path, target="http://127.0.0.1:9")) as load:
        load.until("ready")
        load.tell("stop")
        assert load.until("done")["completed"] == 0
        assert load.rows() == []


def test_a_dead_server_is_not_hammered_and_the_ramp_still_ends(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with Load(spec(tmp_path, users=4, target=f"http://127.0.0.1:{port}")) as load:
        done = load.run_for(1)
        assert load.end() == (0, "")
        assert {row["error_kind"] for row in load.rows()} == {kinds.CONNECT_REFUSED}
    assert 4 < done["failed"] <= 4 * (5 + done["wall_s"])


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("status_503", kinds.HTTP_5XX),
        ("error_in_stream", kinds.ERROR_IN_STREAM),
        ("stall", kinds.READ_TIMEOUT),
    ],
)
def test_a_failing_server_gives_rows_of_its_kind_without_secrets(tmp_path: Path, case: str, kind: str) -> None:
    with (
        server("fake_http.py") as port,
        Load(
            spec(tmp_path, users=2, model=case, target=f"http://127.0.0.1:{port}", read_timeout_s=0.2),
            OPENAI_API_KEY="sk-secret-secret",
        ) as load,
    ):
        done = load.run_for(0.4)
        assert load.end() == (0, "")
        rows = load.rows()
    assert done["completed"] == 0
    assert {row["error_kind"] for row in rows} == {kind}
    assert not [row for row in rows if "sk-secret" in row["error"]]


def test_the_end_of_a_direct_server_is_told_as_closed_connections(tmp_path: Path) -> None:
    with Load(spec(tmp_path, users=4, drive="rpc", target=str(tmp_path / "socket"), workload=LONG)) as load:
        with server("fake_direct.py", tmp_path / "socket", "paced"):
            load.start()
        load.tell("stop")
        assert load.until("done")["failed"] == 4
        assert {row["error_kind"] for row in load.rows()} == {kinds.CLOSED_EARLY}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drive": "carrier pigeon"}, "unknown drive"),
        ({"target": "http://nowhere.invalid"}, "cannot resolve"),
        ({"requests_path": "/nowhere/requests.arrow"}, "/nowhere/requests.arrow"),
    ],
)
def test_a_spec_that_cannot_run_is_an_error_event_with_exit_status_2(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with Load(spec(tmp_path, **{"target": "http://127.0.0.1:9", **changes})) as load:
        event = load.next_event()
        assert event.event == "error"
        assert words in event.data["message"]
        assert load.end()[0] == 2


def test_a_first_line_that_is_no_spec_is_an_error_event() -> None:
    with Load('{"drive": "http"}') as load:
        assert "not a load spec" in load.next_event().data["message"]
        assert load.end()[0] == 2


def test_a_line_that_is_no_command_is_an_error_event(tmp_path: Path) -> None:
    with Load(spec(tmp_path, target="http://127.0.0.1:9")) as load:
        load.until("ready")
        load.tell_line("start please")
        assert "start please" in load.until("error")["message"]
        assert load.end()[0] == 1


def test_more_users_than_the_hard_file_limit_allows_is_an_error_event(tmp_path: Path) -> None:
    text = spec(tmp_path, users=300, target="http://127.0.0.1:9").to_json()
    script = f"ulimit -Sn 200; ulimit -Hn 256; exec {sys.executable} -m loadgen.process"
    ended = subprocess.run(
        ["bash", "-c", script], input=text + "\n", capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ended.returncode == 2
    assert "hard limit is 256" in json.loads(ended.stdout)["message"]


def test_a_low_soft_file_limit_is_raised(tmp_path: Path) -> None:
    with server("fake_http.py") as port:
        load_spec = spec(tmp_path, users=80, target=f"http://127.0.0.1:{port}")
        script = f"ulimit -Sn 90; exec {sys.executable} -m loadgen.process"
        with subprocess.Popen(
            ["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            process.stdin.write(load_spec.to_json() + '\n{"do": "start"}\n')
            process.stdin.flush()
            names = [json.loads(process.stdout.readline())["event"] for _ in range(2)]
            process.stdin.write('{"do": "stop"}\n')
            process.stdin.flush()
            while "done" not in process.stdout.readline():
                pass
    assert names == ["ready", "ramped"]
    rows = read_table(tmp_path / "requests.arrow", REQUESTS).to_pylist()
    assert {row["error_kind"] for row in rows} == {None}
    assert len({row["user"] for row in rows}) == 80


def test_nothing_but_the_process_and_the_users_brings_locust_in() -> None:
    code = (
        "import sys, loadgen, loadgen.crew, loadgen.drives, loadgen.recorder, loadgen.lines, loadgen.limits, socket\n"
        "from gevent.monkey import is_module_patched\n"
        "sys.exit('locust' in sys.modules or is_module_patched('socket') or is_module_patched('threading'))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


SEEN_BY_LOCUST = """
import sys
from pathlib import Path
from loadgen.users import LoadEnvironment, WorkloadUser
from loadgen.crew import Crew
from loadgen.transport.direct import DirectLink
from loadgen.drives import direct_callers
from loadgen.recorder import Recorder
from loadgen.workload.synthetic import Workload
from contracts.load import WorkloadSpec

folder, socket = sys.argv[1:]
workload = Workload(WorkloadSpec(isl=8, osl=4))
rows = []
recorder = Recorder(0, Path(folder, "requests.arrow"), Path(folder, "client.arrow"), rows.append)
callers = direct_callers(workload.prompts, DirectLink(socket, 1, 1))
crew = Crew(workload, recorder, callers, "submit", 2, 0, 100.0, lambda: None)
environment = LoadEnvironment(crew, WorkloadUser, request_type="RPC")
runner = environment.create_local_runner()
runner.start(2, spawn_rate=100)
while len(rows) < 6:
    runner.greenlet.join(0.05)
crew.stopping = True
while recorder.in_flight:
    runner.greenlet.join(0.05)
entry = environment.stats.get("submit", "RPC")
print(entry.num_requests == len(rows), entry.num_failures == sum(row.error_kind is not None for row in rows))
runner.quit()
recorder.close()
"""


@pytest.mark.parametrize("case", ["paced", "empty"])
def test_locust_own_statistics_see_every_request(tmp_path: Path, case: str) -> None:
    with server("fake_direct.py", tmp_path / "socket", case):
        command = [sys.executable, "-c", SEEN_BY_LOCUST, str(tmp_path), str(tmp_path / "socket")]
        assert subprocess.check_output(command, cwd=ROOT, text=True) == "True True\n"


def test_a_load_process_leaves_no_process_behind(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with server("fake_http.py") as port, Load(spec(tmp_path, target=f"http://127.0.0.1:{port}")) as load:
        load.run_for(0.2)
        load.end()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    assert not psutil.pid_exists(load.process.pid)


def test_a_spec_survives_its_line() -> None:
    one = LoadSpec(**{**json.loads(spec(ROOT).to_json()), "workload": SHORT})
    assert LoadSpec.from_json(one.to_json()) == one
