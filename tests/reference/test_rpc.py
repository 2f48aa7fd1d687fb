import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import zmq

from harness.reference.rpc.client import RPCClient
from harness.reference.rpc.envelope import RPCError, RPCTimeout
from harness.reference.rpc.server import RPCServer
from harness.reference.rpc.socket import Receiving

KEY = b"k" * 32
RECEIVE = Receiving(by_event=False, poll_s=0.001)
METHODS = frozenset({"add", "fail", "thread_name", "count", "break_off", "note", "sleep"})


class Target:
    def __init__(self) -> None:
        self.noted: list[int] = []
        self.noted_event = threading.Event()

    def add(self, a: int, b: int) -> int:
        return a + b

    def fail(self) -> None:
        raise ValueError("no")

    def thread_name(self) -> str:
        return threading.current_thread().name

    def note(self, value: int) -> None:
        self.noted.append(value)
        self.noted_event.set()

    def secret(self) -> str:
        return "not for everyone"

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def count(self, to: int) -> AsyncIterator[int]:
        for value in range(to):
            yield value

    async def break_off(self) -> AsyncIterator[int]:
        yield 1
        raise ValueError("broke off")


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/rpc"


@pytest.fixture
def server(target: Target, address: str) -> Iterator[RPCServer]:
    server = RPCServer(target, METHODS, address, KEY, tasks=6, receive=RECEIVE)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(server: RPCServer, address: str) -> Iterator[RPCClient]:
    client = RPCClient(address, KEY, receive=RECEIVE)
    yield client
    client.close()


def test_a_call_returns_what_the_method_returned(client: RPCClient) -> None:
    assert client.method("add", 2, 3).remote() == 5


def test_plain_methods_run_on_the_loops_thread_pool(client: RPCClient) -> None:
    assert client.method("thread_name").remote().startswith("asyncio_")


def test_a_remote_failure_reaches_the_caller_with_its_message(client: RPCClient) -> None:
    with pytest.raises(RPCError, match="ValueError: no"):
        client.method("fail").remote()


def test_only_the_named_methods_can_be_called(client: RPCClient) -> None:
    with pytest.raises(RPCError, match="no remote method"):
        client.method("secret").remote()


def test_an_answer_that_does_not_come_in_time_is_a_timeout(client: RPCClient) -> None:
    with pytest.raises(RPCTimeout):
        client.method("sleep", 30).remote(timeout_s=0.1)


def test_fire_and_forget_arrives(client: RPCClient, target: Target) -> None:
    assert client.method("note", 7).remote(need_response=False) is None
    assert target.noted_event.wait(10)
    assert target.noted == [7]


def test_a_future_call_runs_on_the_clients_own_pool(client: RPCClient) -> None:
    assert client.method("add", 1, 1).remote_future().result(10) == 2


def test_a_stream_yields_every_part_in_order_and_ends(client: RPCClient) -> None:
    async def collect() -> list[int]:
        return [value async for value in client.method("count", 100).remote_streaming()]

    assert asyncio.run(collect()) == list(range(100))


def test_a_stream_that_breaks_off_raises_at_its_consumer(client: RPCClient) -> None:
    async def collect() -> list[int]:
        return [value async for value in client.method("break_off").remote_streaming()]

    with pytest.raises(RPCError, match="broke off"):
        asyncio.run(collect())


def test_a_call_under_way_fails_when_the_client_is_closed(client: RPCClient) -> None:
    waiting = client.method("sleep", 3).remote_future()
    assert client.method("add", 1, 1).remote() == 2
    client.close()
    with pytest.raises(RPCError):
        waiting.result(10)


def test_a_message_with_a_wrong_key_is_dropped_and_the_server_goes_on(client: RPCClient, address: str) -> None:
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.LINGER, 0)
    stranger.connect(address)
    stranger.send(b"garbage that is long enough to carry a seal, but has none that is right")
    assert client.method("add", 2, 2).remote() == 4
    stranger.close()
    context.term()
