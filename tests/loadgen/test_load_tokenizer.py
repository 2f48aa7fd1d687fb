"""Prompts of exact length with a tokenizer: small ones of every kind, trained here, count what was made."""

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import trace_files
from load_support import Load, server, spec
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from contracts.errors import UsageError
from contracts.load import PrefixSpec, SessionSpec, TokenizerSpec, TraceSpec, WorkloadSpec
from harness.plan import LoadPlan
from loadgen.cli.load_options import add_load_options, load_plan
from loadgen.files import digest
from loadgen.workload.bodies import BodyTemplate
from loadgen.workload.prompts import Prompts
from loadgen.workload.synthetic import Workload
from loadgen.workload.tokenizer import Tokenizer
from loadgen.workload.traces.source import TraceWorkload

KINDS = ["byte_level", "metaspace", "llama", "wordpiece", "unigram"]
VOCABULARY = 1500


def corpus() -> list[str]:
    seeded = random.Random(4)
    sounds = ["ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "wu"]
    words = ["".join(seeded.choices(sounds, k=1 + n % 3)) for n in range(500)]
    return [" ".join(seeded.choices(words, k=12)) for _ in range(3000)] + [f"{word} x" for word in words]


def train(kind: str, path: Path) -> Path:
    special = ["<s>", "[UNK]"]
    if kind == "wordpiece":
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    elif kind == "unigram":
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=600, special_tokens=special, unk_token="[UNK]", show_progress=False
        )
    else:
        tokenizer = tokenizers.Tokenizer(models.BPE())
        trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
        if kind == "byte_level":
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
        elif kind == "metaspace":
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        else:  # no pre-tokeniser: a blank is a letter like any other, as in Llama 2
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.train_from_iterator(corpus(), trainer)
    if kind == "llama":
        document = json.loads(tokenizer.to_str())
        document["pre_tokenizer"] = None
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return {kind: train(kind, folder / f"{kind}.json") for kind in KINDS}


def count(path: Path, text: str) -> int:
    return len(tokenizers.Tokenizer.from_file(str(path)).encode(text, add_special_tokens=False))


@pytest.mark.parametrize("kind", KINDS)
def test_every_prompt_of_every_length_has_exactly_as_many_tokens(trained: dict[str, Path], kind: str) -> None:
    prompts = Prompts(5, Tokenizer(trained[kind]).vocabulary())
    for number, tokens in enumerate([*range(1, 40), 100, 1000, 4096] * 3):
        text = prompts.text(prompts.pieces(number << 20 | tokens, tokens)).decode()
        assert count(trained[kind], text) == tokens
        assert text == text.strip()


@pytest.mark.parametrize("kind", KINDS)
def test_token_ids_are_those_of_the_same_text(trained: dict[str, Path], kind: str) -> None:
    prompts = Prompts(5, Tokenizer(trained[kind]).vocabulary())
    same = 0
    for key in range(40):
        pieces = prompts.pieces(key << 30, 50)
        ids = json.loads(b"[%s]" % prompts.json_ids(pieces))
        known = tokenizers.Tokenizer.from_file(str(trained[kind])).encode(
            prompts.text(pieces).decode(), add_special_tokens=False
        )
        same += known.ids[1:] == ids[1:]  # the first word has no blank before it
    assert same == 40


def test_each_message_of_a_session_is_exact_and_so_is_the_sum(trained: dict[str, Path]) -> None:
    path = trained["byte_level"]
    one = WorkloadSpec(
        300, 20, osl_spread=0, session=SessionSpec(3, 33), prefix=PrefixSpec(2, 500),
        tokenizer=TokenizerSpec(str(path), ""),
    )  # fmt: skip
    workload = Workload(one)
    requests = workload.requests(0)
    draws = [requests.next(20 if turn else None) for turn in range(3)]
    for endpoint in ("chat", "responses"):
        body = json.loads(BodyTemplate(endpoint, "m").render(workload.prompts, draws[2]))
        messages = body.get("messages") or body["input"]
        counts = [count(path, message["content"]) for message in messages]
        assert counts[0] == 500
        assert counts[2:] == [20, 33, 20, 33]
        assert sum(counts) == draws[2].prompt_tokens


def test_no_two_prompts_begin_alike(trained: dict[str, Path]) -> None:
    workload = Workload(WorkloadSpec(50, 5, tokenizer=TokenizerSpec(str(trained["byte_level"]), "")))
    draws = [workload.draw(user, n) for user in range(20) for n in range(20)]
    assert len({workload.prompts.text(draw.pieces).split(b" ", 4)[:4].__repr__() for draw in draws}) == 400


def test_texts_of_a_trace_are_counted_by_it_in_order_and_ahead(trained: dict[str, Path], tmp_path: Path) -> None:
    path = trained["byte_level"]
    texts = corpus()[:700]
    rows = [{"prompt": text, "output_length": 2} for text in texts]
    trace = trace_files.jsonl(tmp_path / "t", rows)
    trace.write_text(trace.read_text() + "bad\n")
    one = WorkloadSpec("trace", 5, trace=TraceSpec(str(trace), "jsonl", ""), tokenizer=TokenizerSpec(str(path), ""))
    requests = TraceWorkload(spec(tmp_path, workload=one)).requests(0)
    draws = [requests.next(None) for _ in texts]
    assert [draw.place.trace_line for draw in draws] == list(range(1, 701))
    assert [draw.prompt_tokens for draw in draws] == [count(path, text) for text in texts]
    with pytest.raises(UsageError, match="t:701: not JSON"):
        requests.next(None)
    assert requests.next(None) is None


def test_a_load_asks_a_conversation_for_as_many_tokens_as_its_answers_have(
    trained: dict[str, Path], tmp_path: Path
) -> None:
    path = trained["wordpiece"]
    texts = corpus()[:8]
    trace = trace_files.sharegpt(tmp_path / "t", [texts[:4], texts[4:]])
    one = WorkloadSpec("trace", 5, trace=TraceSpec(str(trace), "sharegpt", ""), tokenizer=TokenizerSpec(str(path), ""))
    with server("fake_http.py") as port:
        load_spec = spec(tmp_path, users=2, endpoint="chat", target=f"http://127.0.0.1:{port}", workload=one)
        with Load(load_spec) as load:
            load.start()
            load.until("done")
            assert load.end() == (0, "")
            rows = sorted(load.rows(), key=lambda row: (row["trace_line"], row["turn"]))
    assert [row["max_tokens"] for row in rows] == [count(path, texts[n]) for n in (1, 3, 5, 7)]
    assert rows[1]["prompt_tokens"] == sum(count(path, text) for text in texts[:3])


@pytest.mark.parametrize("content", ["", "{}", "not json"])
def test_what_is_no_tokenizer_is_a_usage_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"tokenizer\.json is no tokenizer\.json"):
        Tokenizer(tmp_path)


def test_a_tokenizer_without_whole_words_is_refused(tmp_path: Path) -> None:
    letters = tokenizers.Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate("abc ")}, merges=[]))
    letters.save(str(tmp_path / "t.json"))
    with pytest.raises(UsageError, match="only 0 of its words"):
        Tokenizer(tmp_path / "t.json").vocabulary()


def test_the_command_line_tries_the_tokenizer_and_records_which_it_was(trained: dict[str, Path]) -> None:
    parser = argparse.ArgumentParser()
    add_load_options(parser)

    def plan_of(path: Path) -> LoadPlan:
        return load_plan(parser.parse_args(["--tokenizer", str(path)]), "http", [4], duration_s=20, warmup_s=4)

    path = trained["unigram"]
    assert plan_of(path).workload.tokenizer == TokenizerSpec(str(path), digest(path))
    with pytest.raises(UsageError, match="no tokenizer"):
        plan_of(path.parent / "none.json")


def test_without_the_library_the_message_says_what_to_install(
    trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match=r"loadgen-gil\[tokenizer\]"):
        Tokenizer(trained["unigram"])
