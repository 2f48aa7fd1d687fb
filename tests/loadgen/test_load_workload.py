import json

import numpy as np
import pytest

from contracts.load import WorkloadSpec
from loadgen.workload.prompts import FIRST_ID, LAST_ID
from loadgen.workload.synthetic import Draw, Workload

SPEC = WorkloadSpec(isl=100, osl=50, isl_spread=0.2, osl_spread=0.1, seed=5)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload(SPEC)


def draws(workload: Workload) -> list[Draw]:
    return [workload.draw(user, n) for user in range(30) for n in range(30)]


def test_the_same_seed_user_and_number_give_the_same_request_in_any_order(workload: Workload) -> None:
    again = Workload(SPEC)
    mine = [(draw, workload.prompts.int32(draw.pieces)) for draw in draws(workload)]
    assert mine[::-1] == [(draw, again.prompts.int32(draw.pieces)) for draw in draws(again)[::-1]]


def test_another_seed_gives_other_prompts(workload: Workload) -> None:
    other = Workload(WorkloadSpec(isl=100, osl=50, seed=6))
    assert workload.prompts.int32(workload.draw(1, 1).pieces) != other.prompts.int32(other.draw(1, 1).pieces)


def test_no_two_prompts_begin_alike(workload: Workload) -> None:
    assert len({workload.prompts.int32(draw.pieces)[:16] for draw in draws(workload)}) == 900


def test_lengths_fill_the_spread_around_the_mean(workload: Workload) -> None:
    prompts = [draw.prompt_tokens for draw in draws(workload)]
    outputs = [draw.max_tokens for draw in draws(workload)]
    assert (min(prompts), max(prompts)) == (80, 120)
    assert (min(outputs), max(outputs)) == (45, 55)


def test_no_spread_means_one_length() -> None:
    fixed = Workload(WorkloadSpec(isl=7, osl=3, isl_spread=0, osl_spread=0))
    assert {(draw.prompt_tokens, draw.max_tokens) for draw in draws(fixed)} == {(7, 3)}


def test_bytes_and_json_hold_the_same_ids_in_the_allowed_range(workload: Workload) -> None:
    for draw in draws(workload)[:50]:
        ids = workload.token_ids(draw)
        assert len(ids) == draw.prompt_tokens
        assert json.loads(b"[%s]" % workload.prompts.json_ids(draw.pieces)) == ids
        assert all(FIRST_ID <= number <= LAST_ID for number in ids)


@pytest.mark.parametrize("isl", [1, 2, 4, 5])
def test_a_prompt_may_be_shorter_than_its_own_prefix(isl: int) -> None:
    short = Workload(WorkloadSpec(isl=isl, osl=1, isl_spread=0))
    draw = short.draw(0, 0)
    assert len(short.token_ids(draw)) == isl
    assert len(json.loads(b"[%s]" % short.prompts.json_ids(draw.pieces))) == isl
    assert len(short.prompts.text(draw.pieces).split()) == isl


def test_text_has_a_word_for_each_token_and_needs_no_escape(workload: Workload) -> None:
    draw = workload.draw(3, 4)
    text = workload.prompts.text(draw.pieces)
    assert len(text.split()) == draw.prompt_tokens
    assert json.loads(b'"%s"' % text) == text.decode()


def test_ids_are_spread_evenly_over_the_vocabulary(workload: Workload) -> None:
    ids = np.concatenate([np.frombuffer(workload.prompts.int32(draw.pieces), dtype="<i4") for draw in draws(workload)])
    counts, _ = np.histogram(ids, bins=8, range=(FIRST_ID, LAST_ID))
    assert counts.max() < 1.1 * counts.min()
