"""The stack as a whole: real processes, real sockets."""

import asyncio
import json
import os
import random
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from driver import FAST, Stack, alive, get, kill_and_await_the_end_of, random_shapes, running_stack, settled

from contracts.clock import NS_PER_S, clock_pair
from harness.observers.iterlog import parse_line
from harness.reference import tokens

pytestmark = pytest.mark.stack

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
HANDED_OVER = {"request_type": "generation_only", "first_gen_tokens": [300]}


def post(stack: Stack, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    request = urllib.request.Request(
        stack.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def events_of(content: bytes) -> list[Any]:
    data = [line[6:] for line in content.decode().split("\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


@pytest.fixture(scope="module")
def stack() -> Any:
    with running_stack(**FAST) as running:
        yield running


def test_chat_opens_with_the_role_and_streams_the_text_of_the_whole_answer(stack: Stack) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "ignore_eos": True}
    _, whole = post(stack, "/v1/chat/completions", body)
    _, content = post(stack, "/v1/chat/completions", {**body, "stream": True})
    opener, *chunks = events_of(content)
    assert opener["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == json.loads(whole)["choices"][0]["message"]["content"]


def test_a_prompt_may_be_text_or_token_ids(stack: Stack) -> None:
    ids = tokens.encode("some text")
    answers = [
        json.loads(post(stack, "/v1/completions", {"prompt": prompt, "max_tokens": 5, "ignore_eos": True})[1])
        for prompt in ("some text", ids, [ids])
    ]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": [], "max_tokens": 5}, 400),
        ("/v1/completions", {"prompt": [1], "max_tokens": 0}, 400),
        ("/v1/completions", {"prompt": [-1], "max_tokens": 5}, 400),
        ("/v1/completions", {"prompt": [1], "max_tokens": 10_000_000}, 400),
        ("/v1/completions", {"max_tokens": 5}, 400),
        ("/v1/completions", {"prompt": [1], "n": 2}, 400),
        ("/v1/chat/completions", {"messages": []}, 400),
        ("/v1/chat/completions", {**CHAT, "prompt_token_ids_b64": "AQAAAA=="}, 200),
        ("/v1/chat/completions", {**CHAT, "prompt_token_ids_b64": "AQAA"}, 400),
        ("/v1/chat/completions", {**CHAT, "prompt_token_ids_b64": "not base64"}, 400),
        ("/v1/chat/completions", {**CHAT, "disaggregated_params": {"request_type": "generation_only"}}, 400),
        ("/v1/chat/completions", {**CHAT, "disaggregated_params": {"request_type": "context_only"}}, 400),
        ("/v1/chat/completions", {**CHAT, "disaggregated_params": {"request_type": "context_and_generation"}}, 200),
        (
            "/v1/completions",
            {"prompt": [1], "disaggregated_params": {**HANDED_OVER, "encoded_opaque_state": "!"}},
            400,
        ),
        ("/v1/completions", {"prompt": [1], "disaggregated_params": {**HANDED_OVER, "first_gen_tokens": [-1]}}, 400),
        ("/v1/nothing", {}, 404),
    ],
)
def test_bad_bodies_are_refused_in_openais_form(stack: Stack, path: str, body: dict[str, Any], status: int) -> None:
    code, content = post(stack, path, body)
    assert code == status
    if status == 200:
        return
    error = json.loads(content)["error"]
    assert error["message"]
    assert error["code"] == status


def test_a_request_refused_by_rank_0_ends_its_stream_with_an_error_event(stack: Stack) -> None:
    _, content = post(stack, "/v1/completions", {"prompt": [1], "max_tokens": 10_000_000, "stream": True})
    assert "max_seq_len" in json.loads(content.decode().removeprefix("data: "))["error"]["message"]


def test_perf_metrics_order_the_times_of_each_request_and_drain(stack: Stack) -> None:
    get(stack, "/perf_metrics")
    _, content = post(stack, "/v1/completions", {"prompt": [1, 2], "max_tokens": 6, "ignore_eos": True})
    (record,) = get(stack, "/perf_metrics")
    assert record["response_id"] == json.loads(content)["id"]
    times = record["perf_metrics"]["timing_metrics"]
    order = [
        "server_arrival_time", "arrival_time", "first_scheduled_time", "first_token_time", "server_first_token_time",
    ]  # fmt: skip
    assert [times[name] for name in order] == sorted(times[name] for name in order)
    assert times["first_token_time"] <= times["last_token_time"]
    assert get(stack, "/perf_metrics") == []


def test_perf_metrics_have_the_originals_names_and_count_blocks(stack: Stack) -> None:
    get(stack, "/perf_metrics")
    disaggregated = {**HANDED_OVER, "ctx_request_id": 77}
    body = {"prompt": list(range(1, 65)), "max_tokens": 40, "ignore_eos": True, "disaggregated_params": disaggregated}
    post(stack, "/v1/completions", body)
    (record,) = get(stack, "/perf_metrics")
    assert record["ctx_request_id"] == 77
    metrics = record["perf_metrics"]
    assert metrics["last_iter"] - metrics["first_iter"] >= 39
    assert metrics["kv_cache_metrics"] == {
        "num_total_allocated_blocks": 4,
        "num_new_allocated_blocks": 4,
        "num_reused_blocks": 0,
        "num_missed_blocks": 2,
    }


@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize("form", ["extended", "original", "original-rc15"])
def test_iteration_stats_and_log_lines_of_every_form_tell_the_same_turns(form: str, overlap: str) -> None:
    with running_stack(REFSTACK_ITER_LOG=form, REFSTACK_OVERLAP=overlap, **FAST) as stack:
        post(stack, "/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 6, "ignore_eos": True})
        settled(stack)
        rows = get(stack, "/metrics")
        assert get(stack, "/metrics") == []
        log = (stack.folder / "server.log").read_text().splitlines()
    lines = [line for line in (parse_line(text, clock_pair()) for text in log) if line is not None]
    assert [line.iteration for line in lines] == [row["iter"] for row in rows]
    assert [line.host_step_ms for line in lines] == [row["hostStepTimeMS"] for row in rows]
    assert [line.prev_device_step_ms for line in lines] == [row.get("prevDeviceStepTimeMS") for row in rows]
    batches = [row["inflightBatchingStats"] for row in rows]
    assert [line.scheduled_requests for line in lines] == [one["numScheduledRequests"] for one in batches]
    assert [line.ctx_tokens for line in lines] == [one["numCtxTokens"] for one in batches]
    assert [line.generation_tokens for line in lines] == [one["numGenRequests"] for one in batches]
    assert sum(one["numContextRequests"] for one in batches) == 1
    assert sum(one["numCtxTokens"] for one in batches) == 3
    assert sum(one["numGenRequests"] for one in batches) == 5
    assert sum(row["numCompletedRequests"] for row in rows) == 1
    assert {row["schedulerMode"] for row in rows} == {"overlap" if overlap == "on" else "non_overlap"}
    assert all(row["kvCacheStats"]["maxNumBlocks"] == 524_288 for row in rows)
    assert rows[0]["newActiveRequestsQueueLatencyMS"] > 0
    extended = form == "extended"
    assert all((line.rpc_requests is not None) == (line.gil_wait_ms is not None) == extended for line in lines)
    assert all((line.kv_cache_util is None) == (form == "original-rc15") for line in lines)
    now_ns = clock_pair().monotonic_ns
    assert all(now_ns - 60 * NS_PER_S < line.t_ns < now_ns for line in lines)


def test_observation_endpoints_answer(stack: Stack) -> None:
    assert get(stack, "/v1/models")["data"][0]["id"] == "reference"
    assert get(stack, "/version")["stack"] == "reference"
    info = get(stack, "/server_info")
    names = {name for process in info["processes"] for name in process["threads"].values()}
    assert {"executor_loop", "rpc_server_thread", "rpc_client_loop", "rpc_proxy_main_loop", "MainThread"} <= names


@pytest.mark.parametrize(
    "levers",
    [
        {"TOKEN_IDS": "int32"},
        {"TOKEN_IDS": "int32", "RANKS": "3"},
        {"RANKS": "2", "ROOT_UNPICKLE": "on", "DOUBLE_GETTER": "on"},
        {"ENQUEUE_COPY": "deepcopy"},
        {"ENQUEUE_COPY": "none"},
        {"RPC_RECEIVE": "event"},
        {"LAYOUT": "leader", "RANKS": "2"},
        {"SUBMIT": "in-process", "LAYOUT": "thread"},
        {"SUBMIT": "in-process", "LAYOUT": "thread", "ENQUEUE_COPY": "none", "RANKS": "2"},
        {"OVERLAP": "off"},
        {"POSTPROC_WORKERS": "2"},
        {"HTTP_FRONTENDS": "2"},
        {"HOST_WORK": "lean", "STREAM_INTERVAL": "3"},
        {"GC": "frozen", "SWITCH_INTERVAL_MS": "1", "GIL_PROBE": "off"},
        {"MAX_BATCH_SIZE": "7", "RANKS": "2"},
    ],
    ids=lambda levers: ",".join(f"{name}={value}" for name, value in levers.items()),
)
def test_no_lever_changes_what_a_request_is_answered(levers: dict[str, str]) -> None:
    env = {f"REFSTACK_{name}": value for name, value in levers.items()}
    with running_stack(TLLM_RPC_SUBMIT_BATCH_MAX="8", **{**FAST, **env}) as stack:
        asyncio.run(random_shapes(stack.socket, 400, random.Random(str(levers))))
        info = settled(stack)
        assert info["kv_blocks"]["free"] == info["kv_blocks"]["total"]
        if levers.get("SUBMIT") == "in-process":
            assert info["submit"]["messages"] == info["submit"]["requests"], "nothing was batched, nothing was sent"
        assert stack.stop() == 0
        roles = {process["role"] for process in info["processes"]}
        assert len([role for role in roles if role.startswith("rank")]) >= int(levers.get("RANKS", "1")) - 1
        assert not any(alive(process["pid"]) for process in info["processes"])


@pytest.mark.parametrize("layout", ["pool", "leader"])
def test_rank_0_ends_by_itself_and_removes_its_socket_when_the_proxy_is_killed(layout: str) -> None:
    with running_stack(REFSTACK_LAYOUT=layout, **FAST) as stack:
        kill_and_await_the_end_of(stack, [stack.pids["rank0"]])
        assert not list(stack.folder.glob("refstack-*"))


def test_the_stack_says_so_when_rank_0_dies() -> None:
    with running_stack(**FAST) as stack:
        os.kill(stack.pids["rank0"], signal.SIGKILL)
        deadline = time.monotonic() + 10
        code = 200
        while code == 200 and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(stack.url + "/health", timeout=5) as answer:
                    code = answer.status
            except urllib.error.HTTPError as error:
                with error:
                    code = error.code
        assert code == 503


def test_the_leader_process_runs_rank_0_on_a_thread_while_its_main_thread_waits() -> None:
    with running_stack(REFSTACK_LAYOUT="leader", **FAST) as stack:
        (rank0,) = [process for process in get(stack, "/server_info")["processes"] if process["role"] == "rank0"]
        assert rank0["pid"] != stack.process.pid
        assert {"MainThread", "rank0_main_task", "executor_loop"} <= set(rank0["threads"].values())


def test_the_key_is_in_no_argument_and_in_no_log() -> None:
    with running_stack(TLLM_LOG_LEVEL="debug", **FAST) as stack:
        post(stack, "/v1/completions", {"prompt": [1], "max_tokens": 2})
        for pid in stack.pids.values():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            assert not any(len(word) >= 64 and set(word) <= set("0123456789abcdef") for word in words)
        log = (stack.folder / "server.log").read_text()
        assert not any(len(w) == 64 and set(w) <= set("0123456789abcdef") for w in log.replace("'", " ").split())
