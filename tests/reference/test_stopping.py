"""A server that stops, or loses rank 0, answers what is in flight with an error, and leaves nothing behind."""

import asyncio
import json
import os
import signal

import pytest
from driver import FAST, DirectClient, Stack, alive, get, running_stack
from httpclient import PATHS, exchange

pytestmark = pytest.mark.stack

SLOW = {**FAST, "REFSTACK_DEVICE_BASE_MS": "20"}
LONG = {"max_tokens": 60_000, "ignore_eos": True}
EACH = 8


async def in_flight_when(stack: Stack, signalled: int, number: int, reason: str) -> None:
    """Have requests of all kinds in flight, signal a process, and check that each is answered with an error."""
    direct = await DirectClient.connect(stack.socket)
    held = [direct.submit([1, 2, n], 60_000)[1] for n in range(EACH)]
    bodies = [(chat, stream) for chat in (False, True) for stream in (False, True) for _ in range(EACH)]
    posts = [
        asyncio.create_task(
            exchange(
                stack.url,
                PATHS[chat],
                {**LONG, "stream": stream, "prompt": [1, 2], "messages": [{"role": "user", "content": "x"}]},
            )
        )
        for chat, stream in bodies
    ]
    while (await asyncio.to_thread(get, stack, "/server_info"))["in_flight"] < len(held) + len(posts):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    os.kill(signalled, number)
    for (_, stream), (status, content) in zip(bodies, await asyncio.gather(*posts), strict=True):
        assert status == (200 if stream else 503)
        last = content.decode().rstrip("\n").rpartition("\n\n")[2].removeprefix("data: ")
        error = json.loads(last)["error"]
        assert reason in error["message"]
        assert error["code"] == 503
    for answer in held:
        await asyncio.wait_for(answer.done.wait(), 20)
        assert answer.error is not None
        assert reason in answer.error
    await direct.close()


@pytest.mark.parametrize(
    "levers",
    [
        {"LAYOUT": "pool"},
        {"LAYOUT": "leader", "RANKS": "2"},
        {"LAYOUT": "thread"},
        {"HTTP_FRONTENDS": "2", "POSTPROC_WORKERS": "2"},
    ],
    ids=lambda levers: ",".join(f"{name}={value}" for name, value in levers.items()),
)
def test_a_stop_answers_what_is_in_flight_with_an_error_and_leaves_nothing_behind(levers: dict[str, str]) -> None:
    env = {f"REFSTACK_{name}": value for name, value in levers.items()}
    with running_stack(TLLM_RPC_SUBMIT_BATCH_MAX="4", **{**SLOW, **env}) as stack:
        processes = get(stack, "/server_info")["processes"]
        asyncio.run(in_flight_when(stack, stack.process.pid, signal.SIGINT, "the server is stopping"))
        assert stack.process.wait(20) == 0
        assert not any(alive(process["pid"]) for process in processes)
        assert {entry.name for entry in stack.folder.iterdir()} == {"server.log"}
        assert "Traceback" not in (stack.folder / "server.log").read_text()


@pytest.mark.parametrize("levers", [{}, {"LAYOUT": "leader", "HTTP_FRONTENDS": "2"}], ids=["pool", "leader"])
def test_what_is_in_flight_when_rank_0_dies_is_answered_with_an_error(levers: dict[str, str]) -> None:
    env = {f"REFSTACK_{name}": value for name, value in levers.items()}
    with running_stack(**{**SLOW, **env}) as stack:
        asyncio.run(in_flight_when(stack, stack.pids["rank0"], signal.SIGKILL, "rank 0's process has ended"))
        status, _ = asyncio.run(exchange(stack.url, PATHS[False], {"prompt": [1], "max_tokens": 3}))
        assert status == 503
