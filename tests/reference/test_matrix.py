"""Whatever the layout, the way of submitting and the wire format: what a client may rely on, on one stack each."""

import asyncio
import json
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from driver import (
    FAST,
    Answer,
    DirectClient,
    Stack,
    alive,
    altered,
    get,
    random_shapes,
    running_stack,
    send_all,
    settled,
    until,
)
from httpclient import (
    FIRST,
    PATHS,
    check_streamed,
    check_whole,
    exchange,
    generation_only,
    http_shapes,
    in_flight_when,
    usage_of,
)

from contracts import direct as wire
from harness.reference import tokens
from harness.reference.engine.device import expected_tokens

pytestmark = pytest.mark.stack

SLOTS = 64
KEPT_BUSY = 4000
REQUESTS = 720


@dataclass(frozen=True)
class Combination:
    layout: str
    submit: str
    token_ids: str

    @property
    def env(self) -> dict[str, str]:
        return {
            "REFSTACK_LAYOUT": self.layout,
            "REFSTACK_TOKEN_IDS": self.token_ids,
            "REFSTACK_SUBMIT": "in-process" if self.submit == "in-process" else "rpc",
            "TLLM_RPC_SUBMIT_BATCH_MAX": "8" if self.submit == "batched" else "1",
            "REFSTACK_MAX_BATCH_SIZE": str(SLOTS),
            # on one GIL a loop that hardly waits for its device starves the front end, which then tells too late
            **({"REFSTACK_DEVICE_BASE_MS": "3"} if self.layout == "thread" else {}),
        }

    def __str__(self) -> str:
        return f"{self.layout}-{self.submit}-{self.token_ids}"


COMBINATIONS = [
    Combination(layout, submit, token_ids)
    for layout in ("pool", "leader", "thread")
    for submit in ("single", "batched", "in-process")
    for token_ids in ("list", "int32")
    if submit != "in-process" or layout == "thread"
]
assert len(COMBINATIONS) * REQUESTS >= 10_000


@dataclass
class Case:
    combination: Combination
    stack: Stack

    @property
    def rng(self) -> random.Random:
        return random.Random(str(self.combination))

    def nothing_is_left(self) -> dict[str, Any]:
        info = settled(self.stack)
        assert info["kv_blocks"]["free"] == info["kv_blocks"]["total"]
        assert info["queued_requests"] == 0
        return info


@pytest.fixture(scope="module", params=COMBINATIONS, ids=str)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    with running_stack(**{**FAST, **request.param.env}) as stack:
        yield Case(request.param, stack)


def test_every_request_gets_exactly_its_own_tokens_in_order_and_once(case: Case) -> None:
    before = get(case.stack, "/server_info")
    received = asyncio.run(random_shapes(case.stack.socket, REQUESTS, case.rng))
    after = case.nothing_is_left()
    assert after["submit"]["requests"] - before["submit"]["requests"] == REQUESTS
    assert after["answered"]["requests"] - before["answered"]["requests"] == REQUESTS
    assert after["answered"]["output_tokens"] - before["answered"]["output_tokens"] == received
    messages = after["submit"]["messages"] - before["submit"]["messages"]
    if case.combination.submit == "batched":
        assert messages < REQUESTS / 2
    else:
        assert messages == REQUESTS


def test_streamed_and_whole_answers_over_http_are_right_and_clients_that_leave_leave_nothing(case: Case) -> None:
    asyncio.run(http_shapes(case.stack.url, 80, case.rng))
    case.nothing_is_left()


async def ended(answer: Answer) -> Answer:
    await asyncio.wait_for(answer.done.wait(), 60)
    return answer


def test_an_abort_ends_a_request_before_it_is_admitted_and_while_it_decodes(case: Case) -> None:
    async def scenario() -> None:
        client = await DirectClient.connect(case.stack.socket)
        running = [client.submit([1, 2, n], KEPT_BUSY) for n in range(SLOTS)]
        while any(answer.parts < 3 for _, answer in running):  # noqa: ASYNC110 - progress, not an event
            await asyncio.sleep(0.005)
        waiting = [client.submit([9, n], KEPT_BUSY) for n in range(8)]
        for tag, _ in waiting[:4]:
            client.abort(tag)
        while (await asyncio.to_thread(get, case.stack, "/server_info"))["queued_requests"] < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        for tag, _ in waiting[4:]:
            client.abort(tag)
        for _, answer in waiting:
            assert (await ended(answer)).finish == wire.CANCELLED
            assert answer.tokens == []
        for tag, _ in running:
            client.abort(tag)
        for n, (_, answer) in enumerate(running):
            assert (await ended(answer)).finish == wire.CANCELLED
            assert 3 <= len(answer.tokens) < KEPT_BUSY
            assert answer.tokens == expected_tokens([1, 2, n], len(answer.tokens))
        await client.close()

    asyncio.run(scenario())
    case.nothing_is_left()


def test_a_client_that_vanishes_leaves_nothing_running(case: Case) -> None:
    async def scenario() -> None:
        client = await DirectClient.connect(case.stack.socket)
        answers = [client.submit([1, 2, n], 60_000)[1] for n in range(SLOTS + 6)]
        while not any(answer.parts for answer in answers):  # noqa: ASYNC110 - progress, not an event
            await asyncio.sleep(0.005)
        await client.close()

    asyncio.run(scenario())
    case.nothing_is_left()


def test_a_bad_request_fails_alone_whatever_shares_its_batch(case: Case) -> None:
    async def scenario() -> None:
        client = await DirectClient.connect(case.stack.socket)
        good = [[300, 301, n] for n in range(5)]
        answers = [
            client.submit(good[0], 9)[1],
            client.submit([], 9)[1],
            client.submit(good[1], 9)[1],
            client.submit([5], 10_000_000)[1],
            client.submit([5], 0)[1],
            *(client.submit(prompt, 9)[1] for prompt in good[2:]),
        ]
        for answer in answers:
            await ended(answer)
        assert [answer.error is None for answer in answers] == [True, False, True, False, False, True, True, True]
        for answer, reason in zip(
            (answers[n] for n in (1, 3, 4)), ("no tokens", "max_seq_len", "max_tokens"), strict=True
        ):
            assert reason in str(answer.error)
        for answer, prompt in zip((a for a in answers if a.error is None), good, strict=True):
            assert answer.tokens == expected_tokens(prompt, 9)
        await client.close()

    asyncio.run(scenario())
    case.nothing_is_left()


def test_generation_only_requests_begin_at_their_second_token_without_a_prefill(case: Case) -> None:
    """The answer is the context server's token, then the model's from the second on; no step reads a prompt."""
    rng = case.rng
    settled(case.stack)
    get(case.stack, "/metrics")

    async def one(chat: bool, packed: bool, stream: bool, length: int) -> None:
        prompt = [rng.randrange(256, 32_000) for _ in range(rng.randint(1, 200))]
        body = generation_only(prompt, length, chat=chat, packed=packed, stream=stream)
        status, content = await exchange(case.stack.url, PATHS[chat], body)
        assert status == 200, content
        text = tokens.decode([FIRST, *expected_tokens(prompt, length)[1:]])
        usage = usage_of(prompt, length)
        (check_streamed if stream else check_whole)(content, text, usage, chat=chat)

    async def scenario() -> None:
        shapes = [
            (chat, packed, stream) for chat in (True, False) for packed in (True, False) for stream in (True, False)
        ]
        await asyncio.gather(*(one(*shape, length) for shape in shapes for length in (1, 2, 40)))

    asyncio.run(scenario())
    rows = get(case.stack, "/metrics")
    stats = [row["inflightBatchingStats"] for row in rows]
    assert sum(row["numGenRequests"] for row in stats) == 8 * (0 + 1 + 39)
    assert sum(row["numContextRequests"] for row in stats) == 0
    case.nothing_is_left()


def test_altered_messages_are_refused_and_counted_and_the_stack_lives_on(case: Case) -> None:
    def refused() -> int:
        count: int = get(case.stack, "/server_info")["refused"]["messages_at_rank0"]
        return count

    (folder,) = case.stack.folder.glob("refstack-*")
    messages = altered(b"not this stack's" * 2)
    send_all(f"ipc://{folder}/rpc", messages)
    until(refused, len(messages))
    status, _ = asyncio.run(exchange(case.stack.url, PATHS[False], {"prompt": [1], "max_tokens": 3}))
    assert status == 200


def test_a_stop_answers_what_is_in_flight_with_an_error_and_leaves_nothing_behind(case: Case) -> None:
    """The last test of each combination: it ends the stack, by either signal."""
    stack = case.stack
    number = (signal.SIGINT, signal.SIGTERM)[COMBINATIONS.index(case.combination) % 2]
    processes = get(stack, "/server_info")["processes"]
    asyncio.run(in_flight_when(stack, stack.process.pid, number, "the server is stopping"))
    assert stack.process.wait(20) == 0
    assert not any(alive(process["pid"]) for process in processes)
    assert {entry.name for entry in stack.folder.iterdir()} == {"server.log"}
    log = (stack.folder / "server.log").read_text()
    assert "Traceback" not in log
    assert "Warning" not in log
    assert json.dumps(stack.url)[1:-1] in log
