"""A server that stops, or loses rank 0, answers what is in flight with an error, and leaves nothing behind."""

import asyncio
import signal

import pytest
from driver import FAST, alive, get, running_stack
from httpclient import PATHS, exchange, in_flight_when

pytestmark = pytest.mark.stack

SLOW = {**FAST, "REFSTACK_DEVICE_BASE_MS": "20"}


@pytest.mark.parametrize(
    "levers",
    [
        {"LAYOUT": "leader", "RANKS": "2"},
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
