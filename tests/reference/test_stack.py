"""The stack as a whole: real processes, real sockets."""

import asyncio
import json
import os
import random
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driver import FAST, DirectClient, Stack, alive, get, random_prompt, running_stack, settled

from contracts import direct as wire
from harness.reference import tokens
from harness.reference.engine.device import expected_tokens

pytestmark = pytest.mark.stack

LAYOUTS = ["pool", "leader", "thread"]


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_streamed_and_whole_answers_have_the_same_tokens(layout: str) -> None:
    with running_stack(REFSTACK_LAYOUT=layout, **FAST) as stack:
        prompt = [300, 301, 302]
        expected = tokens.decode(expected_tokens(prompt, 20))
        body = {"prompt": prompt, "max_tokens": 20, "ignore_eos": True}
        _, whole = post(stack, "/v1/completions", body)
        _, content = post(stack, "/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
        *chunks, usage = events_of(content)
        assert json.loads(whole)["choices"][0]["text"] == expected
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
        assert usage["choices"] == []
        assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 20, "total_tokens": 23}
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


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
        ("/v1/nothing", {}, 404),
    ],
)
def test_errors_come_in_openais_form(stack: Stack, path: str, body: dict[str, Any], status: int) -> None:
    code, content = post(stack, path, body)
    error = json.loads(content)["error"]
    assert code == status
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


def test_observation_endpoints_answer(stack: Stack) -> None:
    assert get(stack, "/v1/models")["data"][0]["id"] == "reference"
    assert get(stack, "/version")["stack"] == "reference"
    post(stack, "/v1/completions", {"prompt": [1, 2], "max_tokens": 6})
    rows = get(stack, "/metrics")
    assert {"iter", "hostStepTimeMS", "inflightBatchingStats"} <= rows[0].keys()
    info = get(stack, "/server_info")
    names = {name for process in info["processes"] for name in process["threads"].values()}
    assert {"executor_loop", "rpc_server_thread", "rpc_client_loop", "rpc_proxy_main_loop", "MainThread"} <= names


def test_a_client_that_goes_away_aborts_its_request_on_rank_0(stack: Stack) -> None:
    host, port = stack.url.removeprefix("http://").split(":")
    for stream in ("true", "false"):
        body = f'{{"prompt":[1],"max_tokens":60000,"ignore_eos":true,"stream":{stream}}}'
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
            head += "\r\nContent-Type: application/json"
            connection.sendall(f"{head}\r\n\r\n{body}".encode())
            while get(stack, "/server_info")["active_requests"] == 0:
                time.sleep(0.01)
        info = settled(stack)
        assert info["kv_blocks"]["free"] == info["kv_blocks"]["total"]


def test_abort_on_the_direct_drive_ends_the_request_once_and_frees_everything(stack: Stack) -> None:
    async def scenario() -> None:
        client = await DirectClient.connect(stack.socket)
        tag, answer = client.submit([1, 2, 3], 60_000)
        while answer.parts < 3:  # noqa: ASYNC110 - progress, not an event
            await asyncio.sleep(0.005)
        client.abort(tag)
        await asyncio.wait_for(answer.done.wait(), 20)
        assert answer.finish == wire.CANCELLED
        assert answer.tokens == expected_tokens([1, 2, 3], len(answer.tokens))
        await client.close()

    asyncio.run(scenario())
    info = settled(stack)
    assert info["kv_blocks"]["free"] == info["kv_blocks"]["total"]


def test_a_load_process_that_vanishes_leaves_nothing_running(stack: Stack) -> None:
    async def scenario() -> None:
        client = await DirectClient.connect(stack.socket)
        for _ in range(20):
            client.submit([1, 2, 3], 60_000)
        await asyncio.sleep(0.3)
        await client.close()

    asyncio.run(scenario())
    settled(stack)


async def random_shapes(
    path: Path, count: int, rng: random.Random, expected: Callable[..., list[int]] = expected_tokens
) -> None:
    """Send `count` requests, some refused, some aborted; each must get exactly its own tokens, in order, once."""

    async def one(client: DirectClient, gate: asyncio.Semaphore) -> None:
        async with gate:
            prompt, length = random_prompt(rng), rng.randint(1, 24)
            kind = rng.random()
            if kind < 0.02:
                answer = await client.ask([], length)
                assert answer.error is not None
                assert "no tokens" in answer.error
            elif kind < 0.06:
                tag, answer = client.submit(prompt, 5000)
                await asyncio.sleep(rng.random() * 0.02)
                client.abort(tag)
                await asyncio.wait_for(answer.done.wait(), 60)
                assert answer.finish == wire.CANCELLED
                assert answer.tokens == expected(prompt, len(answer.tokens))
            else:
                ignore_eos = rng.random() < 0.5
                answer = await client.ask(prompt, length, ignore_eos=ignore_eos)
                assert answer.error is None
                assert answer.tokens == expected(prompt, length, ignore_eos=ignore_eos)

    client = await DirectClient.connect(path)
    gate = asyncio.Semaphore(200)
    await asyncio.gather(*(one(client, gate) for _ in range(count)))
    await client.close()


@pytest.mark.parametrize("batch", ["1", "32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_of_2500_requests_in_random_shapes_gets_exactly_its_own_tokens(layout: str, batch: str) -> None:
    """Six settings, 15,000 requests in all: in order, once, refused ones alone, whatever shares their batch."""
    with running_stack(REFSTACK_LAYOUT=layout, TLLM_RPC_SUBMIT_BATCH_MAX=batch, **FAST) as stack:
        asyncio.run(random_shapes(stack.socket, 2500, random.Random(f"{layout}{batch}")))
        info = settled(stack)
        sent = info["submit"]
        assert info["kv_blocks"]["free"] == info["kv_blocks"]["total"]
        assert sent["requests"] == 2500
        if batch == "1":
            assert sent["messages"] == 2500
        else:
            assert sent["messages"] < 1250


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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_stack_leaves_no_process_and_no_socket_file(layout: str, number: int) -> None:
    with running_stack(REFSTACK_LAYOUT=layout, **FAST) as stack:
        assert stack.stop(number) == 0
        assert {entry.name for entry in stack.folder.iterdir()} == {"server.log"}
        assert not any(alive(pid) for pid in stack.pids.values())


@pytest.mark.parametrize("layout", ["pool", "leader"])
def test_rank_0_ends_by_itself_and_removes_its_socket_when_the_proxy_is_killed(layout: str) -> None:
    with running_stack(REFSTACK_LAYOUT=layout, **FAST) as stack:
        stack.process.kill()
        stack.process.wait()
        deadline = time.monotonic() + 10
        while alive(stack.pids["rank0"]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not alive(stack.pids["rank0"])
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
