"""Device `torch`: real forward passes, and each request's tokens whatever shares its steps."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from driver import FAST, random_shapes, running_stack, settled
from httpclient import http_shapes

from harness.reference.engine.intake import Queued, Taken
from harness.reference.engine.loop import ExecutorLoop
from harness.reference.engine.request import EngineRequest
from harness.reference.settings import ReferenceSettings
from harness.reference.types import EOS_ID, FIRST_TEXT_ID, EngineResponse, Response, SamplingParams

pytest.importorskip("torch", reason="needs the extra [torch]")

from harness.reference.engine.llama import KnownAnswer

KNOWN = KnownAnswer()


class Script:
    """An intake that hands over requests at the turns it is told, and stops when all have ended."""

    def __init__(self, arrivals: dict[int, list[Queued]]) -> None:
        self._arrivals = dict(arrivals)
        self._left = sum(len(new) for new in arrivals.values())
        self._turn = 0
        self.tokens: dict[int, list[int]] = {}

    def idle(self) -> bool:
        return False

    def take(self, _: Any, *, block: bool) -> Taken:
        self._turn += 1
        new = self._arrivals.pop(self._turn, [])
        return Taken(new, [], stopping=self._left == 0, arrived=len(new))

    def exchange(self, responses: list[EngineResponse]) -> list[EngineResponse]:
        for response in responses:
            assert isinstance(response, Response)
            self.tokens.setdefault(response.client_id, []).extend(response.token_ids)
            self._left -= response.is_final
        return responses


def run(arrivals: dict[int, list[tuple[int, Sequence[int], int]]], **settings: Any) -> dict[int, list[int]]:
    """Run requests (client id, prompt, tokens) that come at given turns; return each one's tokens."""
    queued = {
        turn: [
            Queued(
                client_id,
                EngineRequest(
                    client_id,
                    list(prompt),
                    SamplingParams(max_tokens=tokens, ignore_eos=True),
                    streaming=True,
                    arrival_time=0.0,
                ),
            )
            for client_id, prompt, tokens in new
        ]
        for turn, new in arrivals.items()
    }
    script = Script(queued)
    small = {"device": "torch", "max_batch_size": 16, "kv_cache_blocks": 4096, "gil_probe": "off", **settings}
    ExecutorLoop(ReferenceSettings(**small), script, lambda _: None, None).run()
    return script.tokens


DRAWN = random.Random(1)
PROMPTS = {n: [DRAWN.randrange(256, 32_000) for _ in range(3 + 13 * n)] for n in range(1, 9)}


@pytest.mark.parametrize("host_work", ["faithful", "lean"])
@pytest.mark.parametrize("overlap", ["on", "off"])
def test_tokens_are_those_of_the_request_by_itself_however_the_batch_is_composed(overlap: str, host_work: str) -> None:
    expected = {n: KNOWN.expected_tokens(prompt, 20) for n, prompt in PROMPTS.items()}
    together = {1: [(n, prompt, 20) for n, prompt in PROMPTS.items()]}
    staggered = {3 * n: [(n, prompt, 20)] for n, prompt in PROMPTS.items()}
    for arrivals in (together, staggered):
        assert run(arrivals, overlap=overlap, host_work=host_work) == expected


def test_tokens_do_not_depend_on_the_size_of_cache_blocks_or_on_reused_blocks_and_slots() -> None:
    expected = {n: KNOWN.expected_tokens(prompt, 9) for n, prompt in PROMPTS.items()}
    arrivals = {1: [(n, prompt, 9) for n, prompt in PROMPTS.items()]}
    for size in (1, 16, 4096):
        assert run(arrivals, tokens_per_block=size) == expected
    assert run(arrivals, max_batch_size=2, kv_cache_blocks=12) == expected


def test_different_prompts_get_different_tokens_that_are_words_or_an_end() -> None:
    answers = [tuple(KNOWN.expected_tokens(prompt, 20)) for prompt in PROMPTS.values()]
    assert len(set(answers)) == len(answers)
    assert KNOWN.expected_tokens(PROMPTS[3][::-1], 20) != list(answers[2]), "order matters"
    assert all(token >= FIRST_TEXT_ID or token == EOS_ID for answer in answers for token in answer)


@pytest.mark.stack
@pytest.mark.parametrize(
    "levers",
    [{}, {"LAYOUT": "thread", "OVERLAP": "off", "SUBMIT": "in-process"}, {"RANKS": "2", "HOST_WORK": "lean"}],
    ids=lambda levers: ",".join(f"{name}={value}" for name, value in levers.items()) or "defaults",
)
def test_streamed_and_whole_answers_on_the_torch_device_are_exactly_the_models(levers: dict[str, str]) -> None:
    env = {f"REFSTACK_{name}": value for name, value in levers.items()}
    with running_stack(REFSTACK_DEVICE="torch", TLLM_RPC_SUBMIT_BATCH_MAX="8", **{**FAST, **env}) as stack:
        asyncio.run(http_shapes(stack.url, 80, random.Random(str(levers)), KNOWN.expected_tokens, handed_over=False))
        asyncio.run(random_shapes(stack.socket, 80, random.Random(str(levers)), KNOWN.expected_tokens))
        info = settled(stack)
        assert info["kv_blocks"]["free"] == info["kv_blocks"]["total"]
        assert stack.stop() == 0
