"""Sessions whose history grows, and prefixes that requests share."""

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from load_support import Load, server, spec

from contracts.load import PrefixSpec, SessionSpec, WorkloadSpec
from loadgen.workload.bodies import BodyTemplate
from loadgen.workload.synthetic import Draw, Workload

SPEC = WorkloadSpec(50, 8, isl_spread=0, osl_spread=0, seed=5, session=SessionSpec(turns=3, turn_isl=10))
PREFIXED = WorkloadSpec(50, 8, isl_spread=0, osl_spread=0, seed=5, prefix=PrefixSpec(groups=4, tokens=40))


def session_of(workload: Workload, user: int, count: int, answer_tokens: int | None = 8) -> list[Draw]:
    requests = workload.requests(user)
    return [requests.next(answer_tokens if n else None) for n in range(count)]


def test_a_turns_prompt_is_the_last_one_with_its_answer_and_new_tokens() -> None:
    workload = Workload(SPEC)
    draws = session_of(workload, 1, 3)
    assert [draw.prompt_tokens for draw in draws] == [50, 68, 86]
    ids = [workload.token_ids(draw) for draw in draws]
    assert [len(one) for one in ids] == [50, 68, 86]
    assert ids[1][:50] == ids[0]
    assert ids[2][:68] == ids[1]
    assert [(draw.place.session, draw.place.turn, draw.n) for draw in draws] == [(0, 0, 0), (0, 1, 1), (0, 2, 2)]


def test_a_user_runs_sessions_one_after_another_that_have_nothing_in_common() -> None:
    workload = Workload(SPEC)
    draws = session_of(workload, 1, 7)
    assert [(draw.place.session, draw.place.turn) for draw in draws] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)
    ]  # fmt: skip
    assert len({tuple(workload.token_ids(draw)[:4]) for draw in draws}) == 3


def test_equal_answers_give_equal_sessions_and_shorter_ones_shorter_histories() -> None:
    one, again = (session_of(Workload(SPEC), 2, 5) for _ in range(2))
    assert one == again
    assert session_of(Workload(SPEC), 2, 3, answer_tokens=5)[2].prompt_tokens == 50 + 2 * 15


def test_a_failed_turn_ends_its_session() -> None:
    requests = Workload(SPEC).requests(0)
    requests.next(None)
    requests.next(8)
    draw = requests.next(None)
    assert (draw.place.session, draw.place.turn) == (1, 0)


def test_a_session_ends_before_it_exceeds_the_context() -> None:
    limited = WorkloadSpec(50, 8, isl_spread=0, osl_spread=0, session=SessionSpec(9, 10, max_context=90))
    draws = session_of(Workload(limited), 0, 4)
    assert [draw.place.turn for draw in draws] == [0, 1, 0, 1]  # a third turn would come to 86 + 8 tokens


def test_turns_and_new_tokens_may_be_distributions() -> None:
    varied = WorkloadSpec(50, 8, session=SessionSpec("uniform:min=2,max=4", "uniform:min=5,max=15"))
    draws = session_of(Workload(varied), 0, 3000)
    lengths = Counter(draw.place.session for draw in draws[:-10])
    assert set(list(lengths.values())[:-1]) == {2, 3, 4}
    grown = [b.prompt_tokens - a.prompt_tokens - 8 for a, b in itertools.pairwise(draws) if b.place.turn]
    assert min(grown) >= 5 - 1
    assert np.mean(grown) == pytest.approx(10, rel=0.1)


def test_a_shared_prefix_is_shared_by_its_group_and_by_nobody_else() -> None:
    workload = Workload(PREFIXED)
    draws = [workload.draw(user, n) for user in range(20) for n in range(20)]
    assert {draw.prompt_tokens for draw in draws} == {90}
    heads = {(draw.place.shared_prefix, tuple(workload.token_ids(draw)[:40])) for draw in draws}
    assert {group for group, _ in heads} == {0, 1, 2, 3}
    assert len({head[:4] for _, head in heads}) == len(heads) == 4
    assert len({tuple(workload.token_ids(draw)[40:44]) for draw in draws}) == 400


def test_a_session_keeps_its_prefix_and_tells_the_chat_who_said_what() -> None:
    workload = Workload(replace(SPEC, prefix=PREFIXED.prefix))
    draws = session_of(workload, 3, 3)
    assert len({draw.place.shared_prefix for draw in draws}) == 1
    body = json.loads(BodyTemplate("chat", "m").render(workload.prompts, draws[2]))
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [len(message["content"].split()) for message in body["messages"][3:]] == [10, 8, 10]
    response = json.loads(BodyTemplate("responses", "m").render(workload.prompts, draws[2]))
    assert response["input"] == body["messages"]


def test_a_piece_longer_than_half_the_pool_is_made_of_several() -> None:
    workload = Workload(WorkloadSpec(1_300_000, 1, isl_spread=0))
    ids = workload.token_ids(workload.draw(0, 0))
    assert len(ids) == 1_300_000
    assert ids[:600_000] != ids[600_000:1_200_000]


@pytest.mark.parametrize("drive", ["http", "rpc"])
def test_a_load_runs_sessions_and_records_where_each_request_belongs(tmp_path: Path, drive: str) -> None:
    script = ("fake_http.py",) if drive == "http" else ("fake_direct.py", tmp_path / "socket", "paced")
    workload = WorkloadSpec(
        30, 6, isl_spread=0, osl_spread=0, session=SessionSpec(3, 10), prefix=PrefixSpec(groups=2, tokens=20)
    )
    with server(*script) as line:
        target = f"http://127.0.0.1:{line}" if drive == "http" else str(tmp_path / "socket")
        with Load(spec(tmp_path, users=4, drive=drive, target=target, workload=workload)) as load:
            load.run_for(0.6)
            assert load.end() == (0, "")
            rows = sorted(load.rows(), key=lambda row: (row["user"], row["sent_ns"]))
    assert len(rows) > 24
    assert {row["prompt_tokens"] for row in rows} == {50, 66, 82}
    for _, group in itertools.groupby(rows, key=lambda row: (row["user"], row["session"])):
        turns = list(group)
        assert [row["turn"] for row in turns] == list(range(len(turns)))
        assert [row["prompt_tokens"] for row in turns] == [50, 66, 82][: len(turns)]
        assert len({row["shared_prefix"] for row in turns}) == 1


def test_without_sessions_or_prefixes_their_columns_are_null(tmp_path: Path) -> None:
    with server("fake_http.py") as port, Load(spec(tmp_path, target=f"http://127.0.0.1:{port}", users=2)) as load:
        load.run_for(0.2)
        rows = load.rows()
    assert {(row["session"], row["turn"], row["shared_prefix"]) for row in rows} == {(None, None, None)}
