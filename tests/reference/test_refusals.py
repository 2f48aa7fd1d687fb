"""What rank 0 does not take: ids that are under way, messages that are not ours. Both are counted; all else goes on."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import zmq
from driver import altered, send_all, until

from harness.reference.engine.device import expected_tokens
from harness.reference.rpc.client import RPCClient
from harness.reference.rpc.envelope import RPCError, RPCResponse, seal, unseal
from harness.reference.rpc.socket import Receiving
from harness.reference.settings import ReferenceSettings
from harness.reference.types import GenerationRequest, Response, SamplingParams, WorkerInfo, request_class
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


def request(client_id: int, tokens: int = 40, wire_format: str = "list") -> GenerationRequest:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return request_class(wire_format)([client_id], sampling, streaming=True, arrival_time=0.0).set_id(client_id)


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


@pytest.mark.parametrize("wire_format", ["list", "int32"])
def test_a_client_id_that_is_under_way_is_refused_and_counted_and_its_first_request_goes_on(
    client: RPCClient, wire_format: str
) -> None:
    def of(client_id: int) -> GenerationRequest:
        return request(client_id, wire_format=wire_format)

    client.method("submit", of(5)).remote()
    with pytest.raises(RPCError, match=r"DuplicateClientId.*\[5\]"):
        client.method("submit", of(5)).remote()
    with pytest.raises(RPCError, match=r"DuplicateClientId.*\[5, 6\]"):
        client.method("submit_batch", [of(6), of(5), of(7), of(6)]).remote()
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


def test_altered_messages_are_refused_and_counted_and_rank_0_lives_on(client: RPCClient, address: str) -> None:
    messages = altered(KEY)
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
