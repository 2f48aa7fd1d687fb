"""Several HTTP front ends on one executor."""

import asyncio
import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from driver import FAST, Stack, alive, get, kill_and_await_the_end_of, running_stack, settled
from httpclient import exchange

from contracts.errors import UsageError
from harness.reference.frontend.server import listen

BODY = {"prompt": [300, 301], "max_tokens": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack(REFSTACK_HTTP_FRONTENDS="3", **FAST) as running:
        yield running


def ask_many(stack: Stack, count: int) -> list[int]:
    """Ask over as many connections, and return the client ids of the answers."""

    async def scenario() -> list[tuple[int, bytes]]:
        return await asyncio.gather(*(exchange(stack.url, "/v1/completions", BODY) for _ in range(count)))

    return [int(json.loads(content)["id"].removeprefix("cmpl-")) for _, content in asyncio.run(scenario())]


@pytest.mark.stack
def test_connections_are_shared_out_and_client_ids_are_unique(stack: Stack) -> None:
    ids = ask_many(stack, 120)
    assert len(set(ids)) == 120
    assert {client_id % 3 for client_id in ids} == {0, 1, 2}, "each front end served some"


@pytest.mark.stack
def test_perf_metrics_give_every_front_ends_requests_once(stack: Stack) -> None:
    settled(stack)
    get(stack, "/perf_metrics")
    ids = ask_many(stack, 60)
    assert sorted(record["request_id"] for record in get(stack, "/perf_metrics")) == sorted(ids)
    assert get(stack, "/perf_metrics") == []


@pytest.mark.stack
def test_server_info_lists_all_processes_whichever_front_end_is_asked(stack: Stack) -> None:
    answers: list[dict[str, Any]] = [get(stack, "/server_info") for _ in range(20)]
    for info in answers:
        roles = {process["role"]: process["pid"] for process in info["processes"]}
        assert set(roles) == {"proxy", "frontend1", "frontend2", "rank0"}
        assert roles["proxy"] == stack.pids["proxy"]
        assert all("rpc_client_loop" in process["threads"].values() for process in info["processes"][:3])


@pytest.mark.stack
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_ends_all_front_ends(number: int) -> None:
    with running_stack(REFSTACK_HTTP_FRONTENDS="2", **FAST) as stack:
        pids = [process["pid"] for process in get(stack, "/server_info")["processes"]]
        assert stack.stop(number) == 0
        assert not any(alive(pid) for pid in pids)
        assert {entry.name for entry in stack.folder.iterdir()} == {"server.log"}


@pytest.mark.stack
def test_front_ends_end_by_themselves_when_the_first_is_killed() -> None:
    with running_stack(REFSTACK_HTTP_FRONTENDS="3", **FAST) as stack:
        pids = [process["pid"] for process in get(stack, "/server_info")["processes"]]
        kill_and_await_the_end_of(stack, pids)


@pytest.mark.stack
@pytest.mark.parametrize("victim", ["rank0", "frontend1"])
def test_every_front_end_says_so_when_rank_0_or_another_front_end_dies(victim: str) -> None:
    with running_stack(REFSTACK_HTTP_FRONTENDS="3", **FAST) as stack:
        pids = {process["role"]: process["pid"] for process in get(stack, "/server_info")["processes"]}
        os.kill(pids[victim], signal.SIGKILL)
        deadline = time.monotonic() + 10
        in_a_row = 0
        while in_a_row < 30 and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(stack.url + "/health", timeout=5):
                    in_a_row = 0
            except urllib.error.HTTPError as error:
                with error:
                    in_a_row += 1
            except OSError:  # it was the victim's to answer
                in_a_row = 0
        assert in_a_row == 30


def test_a_port_that_is_taken_is_refused_also_by_those_who_would_share_it() -> None:
    for sharing in (1, 2):
        taken = listen("127.0.0.1", 0, sharing)
        port = taken[0].getsockname()[1]
        try:
            for count in (1, 3):
                with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}"):
                    listen("127.0.0.1", port, count)
        finally:
            for listener in taken:
                listener.close()


def test_listeners_share_one_free_port() -> None:
    listeners = listen("127.0.0.1", 0, 3)
    ports = {listener.getsockname()[1] for listener in listeners}
    for listener in listeners:
        listener.close()
    assert len(ports) == 1
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", ports.pop()))
