import random
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

from harness.reference.engine.device import expected_tokens
from harness.reference.engine.executor import Executor, RequestRefused
from harness.reference.engine.request import EngineRequest
from harness.reference.settings import ReferenceSettings
from harness.reference.types import ErrorResponse, Response, SamplingParams

HOSTS = ["faithful", "lean"]


def make_executor(**settings: object) -> Executor:
    values: dict[str, object] = {"device_base_ms": 0.2, "device_calls": 2, "max_batch_size": 16, **settings}
    executor = Executor(ReferenceSettings(**values), lambda: (0, 0), lambda: None)  # type: ignore[arg-type]
    executor.start()
    return executor


@pytest.fixture(params=HOSTS)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    executor = make_executor(host_work=request.param)
    yield executor
    executor.stop()


def enqueue(executor: Executor, client_id: int, prompt: list[int], *, streaming: bool = True, **params: object) -> int:
    sampling = SamplingParams(**{"ignore_eos": True, **params})  # type: ignore[arg-type]
    return executor.enqueue_request(
        EngineRequest(client_id, prompt, sampling, streaming=streaming, arrival_time=time.monotonic())
    )


def collect(executor: Executor, wanted: int) -> dict[int, list[Response]]:
    """Gather responses until `wanted` requests have ended."""
    found: dict[int, list[Response]] = defaultdict(list)
    ended = 0
    deadline = time.monotonic() + 30
    while ended < wanted:
        assert time.monotonic() < deadline, "the responses did not come"
        for response in executor.await_responses(0.1):
            assert isinstance(response, Response), response
            found[response.client_id].append(response)
            ended += response.is_final
    return found


def tokens_of(responses: list[Response]) -> list[int]:
    return [token for response in responses for token in response.token_ids]


def test_every_request_gets_exactly_the_models_tokens_in_order(executor: Executor) -> None:
    rng = random.Random(5)
    wanted = {n: ([rng.randrange(32_000) for _ in range(rng.randint(1, 200))], rng.randint(1, 90)) for n in range(60)}
    for client_id, (prompt, length) in wanted.items():
        enqueue(executor, client_id, prompt, max_tokens=length)
    for client_id, responses in collect(executor, len(wanted)).items():
        prompt, length = wanted[client_id]
        assert tokens_of(responses) == expected_tokens(prompt, length)
        assert [response.is_final for response in responses] == [False] * (len(responses) - 1) + [True]
        assert responses[-1].finish_reason == "length"


def test_a_streaming_request_is_in_every_steps_list_and_a_plain_one_in_the_last_only(executor: Executor) -> None:
    enqueue(executor, 1, [1, 2, 3], max_tokens=7)
    enqueue(executor, 2, [1, 2, 3], max_tokens=7, streaming=False)
    found = collect(executor, 2)
    assert [len(response.token_ids) for response in found[1]] == [1] * 7
    assert [len(response.token_ids) for response in found[2]] == [7]
    assert tokens_of(found[1]) == tokens_of(found[2])


@pytest.mark.parametrize("host_work", HOSTS)
def test_the_stream_interval_groups_all_tokens_but_the_first(host_work: str) -> None:
    executor = make_executor(host_work=host_work, stream_interval=4)
    try:
        enqueue(executor, 1, [9], max_tokens=10)
        responses = collect(executor, 1)[1]
        assert [len(response.token_ids) for response in responses] == [1, 4, 4, 1]
        assert tokens_of(responses) == expected_tokens([9], 10)
    finally:
        executor.stop()


def test_end_of_sequence_stops_unless_it_is_ignored(executor: Executor) -> None:
    prompt = next([n] for n in range(3, 2000) if 2 in expected_tokens([n], 40))
    short = expected_tokens(prompt, 40, ignore_eos=False)
    enqueue(executor, 1, prompt, max_tokens=40, ignore_eos=False)
    enqueue(executor, 2, prompt, max_tokens=40)
    found = collect(executor, 2)
    assert tokens_of(found[1]) == short
    assert found[1][-1].finish_reason == "stop"
    assert tokens_of(found[2]) == expected_tokens(prompt, 40)


def test_more_requests_than_slots_wait_their_turn(executor: Executor) -> None:
    for client_id in range(50):
        enqueue(executor, client_id, [client_id + 1], max_tokens=5)
    found = collect(executor, 50)
    assert all(tokens_of(found[n]) == expected_tokens([n + 1], 5) for n in range(50))


@pytest.mark.parametrize("host_work", HOSTS)
def test_a_small_cache_only_makes_requests_wait(host_work: str) -> None:
    executor = make_executor(host_work=host_work, kv_cache_blocks=8, tokens_per_block=4)
    try:
        for client_id in range(20):
            enqueue(executor, client_id, [client_id + 1] * 9, max_tokens=10)
        found = collect(executor, 20)
        assert all(tokens_of(found[n]) == expected_tokens([n + 1] * 9, 10) for n in range(20))
        assert executor.blocks.free_blocks == 8
    finally:
        executor.stop()


@pytest.mark.parametrize("host_work", HOSTS)
def test_the_token_budget_of_a_step_only_makes_prompts_wait(host_work: str) -> None:
    executor = make_executor(host_work=host_work, max_num_tokens=64)
    try:
        for client_id in range(12):
            enqueue(executor, client_id, [client_id + 1] * 40, max_tokens=3)
        found = collect(executor, 12)
        assert all(tokens_of(found[n]) == expected_tokens([n + 1] * 40, 3) for n in range(12))
    finally:
        executor.stop()


@pytest.mark.parametrize("host_work", HOSTS)
def test_a_cancelled_request_ends_once_and_frees_its_slot_and_blocks_within_two_steps(host_work: str) -> None:
    executor = make_executor(host_work=host_work, device_base_ms=200.0)
    try:
        request_id = enqueue(executor, 1, [1] * 100, max_tokens=60_000)
        while not executor.await_responses(1.0):
            pass
        before = executor.iterations.count
        executor.cancel(request_id)
        assert collect(executor, 1)[1][-1].finish_reason == "cancelled"
        while executor.active_requests:
            time.sleep(0.001)
        assert executor.iterations.count - before <= 2
        assert executor.blocks.free_blocks == executor.blocks.total_blocks
        assert executor.await_responses(0.5) == [], "nothing comes after the last response"
    finally:
        executor.stop()


def test_a_waiting_request_can_be_cancelled_too(executor: Executor) -> None:
    for client_id in range(16):
        enqueue(executor, client_id, [1], max_tokens=300)
    waiting = enqueue(executor, 99, [1], max_tokens=5)
    executor.cancel(waiting)
    found = collect(executor, 17)
    assert found[99][-1].finish_reason == "cancelled"
    assert tokens_of(found[99]) == []


def test_cancelling_an_unknown_request_is_harmless(executor: Executor) -> None:
    executor.cancel(123456)
    enqueue(executor, 1, [1], max_tokens=2)
    assert tokens_of(collect(executor, 1)[1]) == expected_tokens([1], 2)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [([], 5, "no tokens"), ([1], 0, "at least 1"), ([1], 70_000, "max_seq_len")],
)
def test_a_request_that_can_never_run_is_refused_with_a_reason(
    executor: Executor, prompt: list[int], max_tokens: int, message: str
) -> None:
    with pytest.raises(RequestRefused, match=message):
        enqueue(executor, 1, prompt, max_tokens=max_tokens)


def test_a_broken_loop_answers_every_request_with_an_error() -> None:
    executor = make_executor()
    try:
        executor._loop._device.launch = None  # type: ignore[method-assign, assignment]
        enqueue(executor, 1, [1], max_tokens=2)
        deadline = time.monotonic() + 10
        answers: list[object] = []
        while not answers and time.monotonic() < deadline:
            answers += executor.await_responses(0.1)
        assert [type(answer) for answer in answers] == [ErrorResponse]
        with pytest.raises(RequestRefused, match="failed"):
            enqueue(executor, 2, [1], max_tokens=2)
    finally:
        executor.stop()


def test_timing_travels_with_the_last_response_when_asked_for(executor: Executor) -> None:
    enqueue(executor, 1, [1], max_tokens=4, return_perf_metrics=True)
    *others, last = collect(executor, 1)[1]
    assert all(response.timing is None for response in others)
    timing = last.timing
    assert timing is not None
    assert timing.arrival_time <= timing.first_scheduled_time <= timing.first_token_time <= timing.last_token_time
    assert timing.last_iter - timing.first_iter == 3
