"""A trace replayed by load processes: what is sent, when, and what becomes of a run whose trace ends or breaks."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trace_files
from load_support import Load, server, spec

from contracts.errors import UsageError
from contracts.load import LoadSpec, TraceSpec, WorkloadSpec
from loadgen.crew import Habits
from loadgen.workload.bodies import BodyTemplate
from loadgen.workload.synthetic import Draw
from loadgen.workload.traces.source import TraceWorkload

MS = 1_000_000
BURST = [(5 + n * 0.5, 20 + n, 2 + n % 3) for n in range(12)]


def trace_spec(path: Path, name: str, **changes: Any) -> WorkloadSpec:
    return WorkloadSpec("trace", 7, osl_spread=0, seed=3, trace=TraceSpec(str(path), name, "", **changes))


def draws_of(load_spec: LoadSpec, users: int = 1) -> list[Draw]:
    workload = TraceWorkload(load_spec)
    found = []
    for user in range(users):
        requests = workload.requests(user)
        found += list(iter(lambda: requests.next(1), None))  # noqa: B023
    return found


def ids_of(load_spec: LoadSpec, draws: Sequence[Draw]) -> list[list[int]]:
    prompts = TraceWorkload(load_spec).prompts
    return [json.loads(b"[%s]" % prompts.json_ids(draw.pieces)) for draw in draws]


def test_equal_hash_ids_are_equal_blocks_and_the_rest_is_a_lines_own(tmp_path: Path) -> None:
    rows = [(0, 1100, 1, (0, 1, 2)), (0, 1030, 1, (0, 1, 3)), (0, 700, 1, (0,)), (0, 700, 1, (0,)), (0, 512, 1, (5,))]
    one = spec(tmp_path, workload=trace_spec(trace_files.mooncake(tmp_path / "t", rows), "mooncake"))
    draws = draws_of(one)
    ids = ids_of(one, draws)
    assert [len(prompt) for prompt in ids] == [draw.prompt_tokens for draw in draws] == [1100, 1030, 700, 700, 512]
    assert ids[0][:1024] == ids[1][:1024]
    assert ids[0][:512] == ids[2][:512] == ids[3][:512]
    assert len({prompt[1024] for prompt in ids[:2]}) == 2
    assert ids[2][512:516] != ids[3][512:516]
    assert ids[4][:4] != ids[0][:4]
    assert ids == ids_of(one, draws_of(one))


def test_a_part_of_a_block_is_its_beginning(tmp_path: Path) -> None:
    rows = [(0, n, 1, (8,)) for n in (512, 300, 3, 1)]
    one = spec(tmp_path, workload=trace_spec(trace_files.mooncake(tmp_path / "t", rows), "mooncake"))
    whole, *parts = ids_of(one, draws_of(one))
    assert [whole[: len(part)] for part in parts] == parts


def test_prompts_of_csv_traces_have_nothing_in_common(tmp_path: Path) -> None:
    one = spec(tmp_path, workload=trace_spec(trace_files.burstgpt(tmp_path / "t", BURST), "burstgpt"))
    draws = draws_of(one)
    assert [(draw.prompt_tokens, draw.max_tokens) for draw in draws] == [row[1:] for row in BURST]
    assert len({tuple(prompt[:4]) for prompt in ids_of(one, draws)}) == len(BURST)


def test_given_prompts_are_sent_as_they_are(tmp_path: Path) -> None:
    text = 'Say "hi"\n\N{SNOWMAN} \ud800'
    rows = [{"prompt": text, "output_length": 3}, {"prompt": [4000000, 5, 6]}]
    one = spec(tmp_path, workload=trace_spec(trace_files.jsonl(tmp_path / "t", rows), "jsonl"))
    first, second = draws_of(one)
    prompts = TraceWorkload(one).prompts
    assert json.loads(BodyTemplate("completions", "m").render(prompts, first))["prompt"] == text
    assert json.loads(BodyTemplate("chat", "m").render(prompts, first))["messages"] == [
        {"role": "user", "content": text}
    ]
    assert json.loads(BodyTemplate("responses", "m").render(prompts, first))["input"] == text
    body = json.loads(BodyTemplate("completions", "m").render(prompts, second))
    assert (body["prompt"], body["max_tokens"], first.max_tokens) == ([4000000, 5, 6], 7, 3)
    assert second.prompt_tokens == 3


def test_a_conversation_is_a_session_with_its_own_answers_in_its_history(tmp_path: Path) -> None:
    path = trace_files.sharegpt(tmp_path / "t", [("a" * 8, "b" * 12, "c" * 4, "d"), ("e", "f")])
    one = spec(tmp_path, workload=trace_spec(path, "sharegpt"))
    draws = draws_of(one)
    assert [(draw.place.session, draw.place.turn, draw.place.trace_line) for draw in draws] == [
        (0, 0, 1), (0, 1, 1), (1, 0, 2)
    ]  # fmt: skip
    assert [(draw.prompt_tokens, draw.max_tokens) for draw in draws] == [(2, 3), (6, 1), (1, 1)]
    prompts = TraceWorkload(one).prompts
    messages = json.loads(BodyTemplate("chat", "m").render(prompts, draws[1]))["messages"]
    assert [(message["role"], message["content"]) for message in messages] == [
        ("user", "a" * 8), ("assistant", "b" * 12), ("user", "c" * 4)
    ]  # fmt: skip
    joined = json.loads(BodyTemplate("completions", "m").render(prompts, draws[1]))["prompt"]
    assert joined == "\n".join(("a" * 8, "b" * 12, "c" * 4))
    first_turns = draws_of(replace(one, workload=trace_spec(path, "sharegpt", turns=1)))
    assert [draw.place.trace_line for draw in first_turns] == [1, 2]


def test_the_same_lines_are_cut_whichever_users_take_them(tmp_path: Path) -> None:
    path = trace_files.burstgpt(tmp_path / "t", [(n, 20, 4) for n in range(400)])
    one = spec(tmp_path, workload=trace_spec(path, "burstgpt"))
    habits = Habits(abort_fraction=0.25, abort_after=2)
    cut = []
    for users in (1, 3):
        workload = TraceWorkload(one)
        turns = itertools.cycle([workload.requests(user) for user in range(users)])
        draws = [next(turns).next(None) for _ in range(400)]
        cut.append([draw.place.trace_line for draw in draws if habits.cut_after(workload, draw)])
    assert cut[0] == cut[1]
    assert len(cut[0]) == pytest.approx(100, rel=0.3)


@pytest.mark.parametrize(
    ("row", "changes", "named"),
    [
        ({"prompt": "text"}, {"drive": "rpc"}, "t:1: a prompt of text"),
        ({"prompt": [1]}, {"endpoint": "chat"}, "t:1: a prompt of token ids"),
        ({"prompt": [1]}, {"arrival": "trace"}, "t:1: no time"),
    ],
)
def test_what_a_drive_cannot_send_is_refused_by_line(
    tmp_path: Path, row: dict[str, Any], changes: dict[str, Any], named: str
) -> None:
    path = trace_files.jsonl(tmp_path / "t", [row])
    with pytest.raises(UsageError, match=named):
        draws_of(spec(tmp_path, workload=trace_spec(path, "jsonl"), **changes))


def run_to_the_end(load_spec: LoadSpec) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    with Load(load_spec) as load:
        load.start()
        load.until("quota")
        done = load.until("done")
        assert load.end() == (0, "")
        return dict(done), sorted(load.rows(), key=lambda row: row["trace_line"])


@pytest.mark.parametrize("drive", ["http", "rpc"])
def test_requests_are_due_at_the_traces_own_times(tmp_path: Path, drive: str) -> None:
    script = ("fake_http.py",) if drive == "http" else ("fake_direct.py", tmp_path / "socket", "paced")
    path = trace_files.burstgpt(tmp_path / "t", BURST)
    with server(*script) as line:
        target = f"http://127.0.0.1:{line}" if drive == "http" else str(tmp_path / "socket")
        done, rows = run_to_the_end(
            spec(
                tmp_path, drive=drive, target=target, arrival="trace",
                workload=trace_spec(path, "burstgpt", time_scale=10.0),
            )
        )  # fmt: skip
    assert (done["completed"], done["unsent"]) == (12, 0)
    assert [(row["prompt_tokens"], row["max_tokens"]) for row in rows] == [row[1:] for row in BURST]
    assert [row["trace_line"] for row in rows] == list(range(2, 14))
    due = [row["scheduled_ns"] for row in rows]
    assert [b - a for a, b in itertools.pairwise(due)] == [50 * MS] * 11
    assert all(row["sent_ns"] >= row["scheduled_ns"] for row in rows)


def test_in_closed_loop_a_user_takes_the_lines_in_order_and_the_load_ends_with_them(tmp_path: Path) -> None:
    path = trace_files.burstgpt(tmp_path / "t", BURST)
    with server("fake_http.py") as port:
        target = f"http://127.0.0.1:{port}"
        done, rows = run_to_the_end(spec(tmp_path, users=1, target=target, workload=trace_spec(path, "burstgpt")))
    assert done["completed"] == 12
    sent = [row["sent_ns"] for row in rows]
    assert sent == sorted(sent)
    assert {row["scheduled_ns"] for row in rows} == {None}


def test_a_trace_of_fewer_lines_than_users_still_ramps_and_ends(tmp_path: Path) -> None:
    path = trace_files.burstgpt(tmp_path / "t", BURST[:2])
    with server("fake_http.py") as port:
        target = f"http://127.0.0.1:{port}"
        done, _ = run_to_the_end(spec(tmp_path, users=8, target=target, workload=trace_spec(path, "burstgpt")))
    assert done["completed"] == 2


def test_load_processes_share_a_trace_out_on_one_clock(tmp_path: Path) -> None:
    path = trace_files.burstgpt(tmp_path / "t", BURST)
    offsets = {}
    with server("fake_http.py") as port:
        for worker in (0, 1):
            (tmp_path / str(worker)).mkdir()
            _, rows = run_to_the_end(
                spec(
                    tmp_path / str(worker), target=f"http://127.0.0.1:{port}", arrival="trace",
                    worker=worker, workers=2, workload=trace_spec(path, "burstgpt", time_scale=20.0),
                )
            )  # fmt: skip
            first = rows[0]["scheduled_ns"] - worker * 25 * MS
            offsets |= {row["trace_line"]: row["scheduled_ns"] - first for row in rows}
    assert offsets == {n + 2: n * 25 * MS for n in range(12)}


def test_what_was_due_and_not_sent_at_the_stop_is_counted(tmp_path: Path) -> None:
    path = trace_files.burstgpt(tmp_path / "t", [(n * 0.001, 20, 400) for n in range(1000)])
    with server("fake_http.py") as port:
        one = spec(
            tmp_path, users=2, target=f"http://127.0.0.1:{port}", arrival="trace", drain_s=0.1,
            workload=trace_spec(path, "burstgpt", time_scale=1000.0),
        )  # fmt: skip
        with Load(one) as load:
            load.start()
            load.until("progress")
            load.tell("stop")
            done = load.until("done")
            rows = load.rows()
    assert done["unsent"] + len(rows) == 1000


@pytest.mark.parametrize(
    ("arrival", "line"), [("closed", "not,a,row"), ("trace", "5,ChatGPT,1,2,3,log"), ("trace", "99,ChatGPT,0,2,3,log")]
)
def test_a_bad_line_ends_the_load_by_name_and_what_was_measured_is_kept(
    tmp_path: Path, arrival: str, line: str
) -> None:
    path = trace_files.burstgpt(tmp_path / "t", [(10 + n * 0.01, 20, 4) for n in range(20)])
    path.write_text("\n".join((*path.read_text().splitlines(), line, "100,ChatGPT,5,5,10,log")))
    with server("fake_http.py") as port:
        one = spec(
            tmp_path, users=4, target=f"http://127.0.0.1:{port}", arrival=arrival,
            workload=trace_spec(path, "burstgpt"),
        )  # fmt: skip
        with Load(one) as load:
            load.start()
            error = load.until("error")
            assert load.end() == (2, "")
            rows = load.rows()
    assert f"{path}:22: " in error["message"]
    assert {row["error_kind"] for row in rows} == {None}
    assert sorted(row["trace_line"] for row in rows) == list(range(2, 22))


def test_a_file_that_is_gone_by_then_is_an_error_event(tmp_path: Path) -> None:
    with Load(spec(tmp_path, target="http://127.0.0.1:9", workload=trace_spec(tmp_path / "no", "azure"))) as load:
        assert "cannot read the trace" in load.next_event().data["message"]
        assert load.end()[0] == 2
