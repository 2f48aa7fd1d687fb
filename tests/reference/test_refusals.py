"""What rank 0 does not take: ids that are under way, messages that are not ours. Both are counted; all else goes on."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from driver import FAST, Stack, get, running_stack
from httpclient import exchange

from harness.reference.engine.device import expected_tokens
from harness.reference.rpc.client import RPCClient
from harness.reference.rpc.envelope import RPCError, RPCRequest, RPCResponse, seal, unseal
from harness.reference.rpc.socket import Receiving
from harness.reference.settings import ReferenceSettings
from harness.reference.types import GenerationRequest, Response, SamplingParams, WorkerInfo
from harness.reference.worker import RpcWorker

KEY = b"k" * 32
RECEIVE = Receiving(by_event=True, poll_s=0.001)
SETTINGS = ReferenceSettings(device_base_ms=1.0, device_calls=1, kv_cache_blocks=4096, rpc_poll_ms=1.0)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/rpc"


@pytest.fixture
def client(address: str) -> Iterator[RPCClient]:
    """Rank 0 on a thread of the test, engine and all."""
    worker = RpcWorker(SETTINGS)
    thread = threading.Thread(target=worker.run, args=(address, KEY))
    thread.start()
    client = RPCClient(address, KEY, receive=RECEIVE)
    client.method("setup_engine").remote()
    yield client
    client.method("shutdown").remote()
    thread.join()
    client.close()


def request(client_id: int, tokens: int = 40) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return GenerationRequest([client_id], sampling, streaming=True, arrival_time=0.0).set_id(client_id)


async def answers(client: RPCClient, client_ids: set[int]) -> dict[int, list[int]]:
    """Collect the tokens of these requests until each has ended."""
    found: dict[int, list[int]] = {client_id: [] for client_id in client_ids}
    left = set(client_ids)
    stream: AsyncIterator[list[Response]] = client.method("fetch_responses_loop_async", 0).remote_streaming()
    async for responses in stream:
        for response in responses:
            assert response.client_id in left, "no response after the last one, none for what was refused"
            found[response.client_id] += response.token_ids
            left -= {response.client_id} if response.is_final else set()
        if not left:
            break
    return found


def test_a_client_id_that_is_under_way_is_refused_and_counted_and_its_first_request_goes_on(client: RPCClient) -> None:
    client.method("submit", request(5)).remote()
    with pytest.raises(RPCError, match=r"DuplicateClientId.*\[5\]"):
        client.method("submit", request(5, tokens=3)).remote()
    with pytest.raises(RPCError, match=r"DuplicateClientId.*\[5, 6\]"):
        client.method("submit_batch", [request(6), request(5), request(7), request(6)]).remote()
    found = asyncio.run(answers(client, {5, 6, 7}))
    assert found == {client_id: expected_tokens([client_id], 40) for client_id in (5, 6, 7)}
    info: WorkerInfo = client.method("info").remote()
    assert info.duplicate_ids == 3


def test_a_client_id_may_come_again_when_its_request_has_ended(client: RPCClient) -> None:
    client.method("submit", request(5)).remote()
    asyncio.run(answers(client, {5}))
    client.method("submit", request(5)).remote()
    info: WorkerInfo = client.method("info").remote()
    assert (info.duplicate_ids, info.submit_requests) == (0, 2)


def altered() -> list[bytes]:
    """A real request with real seal, cut and changed in every way that a wire might; and what is no message at all."""
    sealed = seal(RPCRequest("shutdown", (), {}, need_response=False), KEY)
    cuts = [sealed[:length] for length in (0, 1, 31, 32, 33, len(sealed) // 2, len(sealed) - 1)]
    flips = [bytes([*sealed[:at], sealed[at] ^ 1, *sealed[at + 1 :]]) for at in (0, len(sealed) // 2, len(sealed) - 1)]
    foreign = seal(RPCRequest("shutdown", (), {}, need_response=False), b"another key" * 3)
    return [*cuts, *flips, sealed + b"\0", sealed[1:], foreign]


def send_all(address: str, messages: list[bytes]) -> None:
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(address)
    for message in messages:
        stranger.send(message)
    stranger.close()  # lingers until all is sent
    context.term()


def until(what: Any, count: int) -> None:
    deadline = threading.Event()
    for _ in range(1000):
        if what() >= count:
            break
        deadline.wait(0.01)
    assert what() == count


def test_altered_messages_are_refused_and_counted_and_rank_0_lives_on(client: RPCClient, address: str) -> None:
    messages = altered()
    send_all(address, messages)
    until(lambda: client.method("info").remote().refused_messages, len(messages))
    client.method("submit", request(1)).remote()
    assert asyncio.run(answers(client, {1})) == {1: expected_tokens([1], 40)}


def test_altered_answers_are_refused_and_counted_and_the_proxy_waits_for_the_right_one(address: str) -> None:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(address)
    client = RPCClient(address, KEY, receive=RECEIVE)
    waiting = client.method("add", 2, 2).remote_future()
    peer, sealed = router.recv_multipart()
    answer = seal(RPCResponse(unseal(sealed, KEY).request_id, 4), KEY)
    for message in (answer[:-1], b"", answer[:20] + b"x" + answer[21:], answer):
        router.send_multipart([peer, message])
    assert waiting.result(10) == 4
    assert client.refused_messages == 3
    client.close()
    router.close(0)
    context.term()


@pytest.mark.stack
@pytest.mark.parametrize("layout", ["pool", "leader", "thread"])
def test_the_stack_counts_what_it_refused_and_lives_on(layout: str) -> None:
    def refused(stack: Stack) -> int:
        count: int = get(stack, "/server_info")["refused"]["messages_at_rank0"]
        return count

    with running_stack(REFSTACK_LAYOUT=layout, **FAST) as stack:
        (folder,) = stack.folder.glob("refstack-*")
        messages = altered()
        send_all(f"ipc://{folder}/rpc", messages)
        until(lambda: refused(stack), len(messages))
        status, _ = asyncio.run(exchange(stack.url, "/v1/completions", {"prompt": [1], "max_tokens": 3}))
        assert status == 200
