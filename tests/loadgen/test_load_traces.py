"""Traces: the formats read right, streamed, shared out; and whatever is wrong, named with its file and line."""

import json
import re
from itertools import islice
from pathlib import Path

import psutil
import pytest
import trace_files

from contracts.errors import UsageError
from loadgen.workload.traces.entry import Entry
from loadgen.workload.traces.reader import TraceReader, check_trace

MS, S = 1_000_000, 1_000_000_000
GOOD = '{"timestamp": 5, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}'


def entries(path: Path, name: str | None = None, share: int = 0, shares: int = 1) -> list[Entry]:
    return list(iter(TraceReader(path, name, share, shares).next, None))


def test_mooncake_lines_give_times_lengths_and_hash_ids(tmp_path: Path) -> None:
    path = trace_files.mooncake(tmp_path / "t", [(1000, 600, 5, (0, 7)), (1000, 3, 1, ()), (4500, 512, 9, (0,))])
    assert TraceReader(path).format == "mooncake"
    assert entries(path) == [
        Entry(1, 0, 600, 5, [0, 7]), Entry(2, 0, 3, 1, []), Entry(3, 3500 * MS, 512, 9, [0])
    ]  # fmt: skip


def test_azure_rows_give_times_to_the_last_digit(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
        "2023-11-16 18:17:04.0319607,110,27\r\n"
    )
    assert TraceReader(path).format == "azure"
    assert entries(path) == [Entry(2, 0, 4808, 10), Entry(3, 52_000_700, 110, 27)]


def test_azure_rows_of_2024_have_a_zone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01+00:00,2399,6\n"
    )
    assert [entry.at_ns for entry in entries(path)] == [0, S - 9_930_000]


@pytest.mark.parametrize("extra", ["", "Session ID,Elapsed time,"])
def test_burstgpt_rows_are_found_by_their_columns_names(tmp_path: Path, extra: str) -> None:
    path = tmp_path / "t.csv"
    more = "s1,2.5," if extra else ""
    path.write_text(
        f"Timestamp,{extra}Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        f"5,{more}ChatGPT,472,18,490,Conversation log\n45.5,{more}GPT-4,1087,230,1317,API log\n"
    )
    assert TraceReader(path).format == "burstgpt"
    assert entries(path) == [Entry(2, 0, 472, 18), Entry(3, 40 * S + S // 2, 1087, 230)]


@pytest.mark.parametrize("lines", [False, True])
def test_sharegpt_conversations_are_pairs_of_question_and_answer(tmp_path: Path, lines: bool) -> None:
    path = trace_files.sharegpt(tmp_path / "t", [("a", "b", "c", "d"), ("x",), ("e", "f", "g")])
    if lines:
        path.write_text("\n".join(map(json.dumps, json.loads(path.read_text()))))
    assert TraceReader(path).format == "sharegpt"
    assert [(entry.line, entry.texts) for entry in entries(path)] == [(1, ["a", "b", "c", "d"]), (3, ["e", "f"])]


def test_prompts_may_be_texts_or_token_ids_with_what_else_is_known(tmp_path: Path) -> None:
    rows = [{"prompt": "hello", "output_length": 3}, {"token_ids": [1, 2, 3]}, {"text": "x", "max_tokens": 9}]
    path = trace_files.jsonl(tmp_path / "t", rows)
    assert TraceReader(path).format == "jsonl"
    assert entries(path) == [
        Entry(1, max_tokens=3, texts=("hello",)), Entry(2, None, 3, ids=[1, 2, 3]), Entry(3, max_tokens=9, texts=("x",))
    ]  # fmt: skip


@pytest.mark.parametrize("shares", [2, 3])
def test_every_share_has_every_kth_line_and_the_whole_traces_clock(tmp_path: Path, shares: int) -> None:
    path = trace_files.burstgpt(tmp_path / "t", [(10 + n, 5 + n, 1) for n in range(20)])
    parts = [entries(path, None, share, shares) for share in range(shares)]
    assert parts == [entries(path)[share::shares] for share in range(shares)]
    conversations = trace_files.sharegpt(tmp_path / "s", [("a", f"{n}") for n in range(20)])
    assert entries(conversations, None, 1, shares) == entries(conversations)[1::shares]


def test_blank_lines_are_passed_over_and_lines_still_counted(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(f"\n{GOOD}\n\n{GOOD}\n\n")
    assert [entry.line for entry in entries(path)] == [2, 4]


def test_a_long_trace_is_read_no_further_than_it_must(tmp_path: Path) -> None:
    line = b"0,ChatGPT,472,18,490,Conversation log\n"
    path = tmp_path / "t.csv"
    with open(path, "wb") as file:
        file.write(b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
        file.writelines(line * 20_000 for _ in range(100))
    before = psutil.Process().memory_info().rss
    assert check_trace(path, None)[0] == "burstgpt"
    reader = TraceReader(path, None, 1, 4)
    assert len(list(islice(iter(reader.next, None), 1000))) == 1000
    assert psutil.Process().memory_info().rss - before < path.stat().st_size / 2
    assert reader.next() == Entry(1 + 4 * 1000 + 2, 0, 472, 18)


def bad(tmp_path: Path, content: str, name: str | None = None) -> str:
    path = tmp_path / "bad"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        entries(path, name)
    return str(caught.value)


AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST_HEAD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (GOOD.replace('"output_length": 2, ', ""), "bad:1: no 'output_length'"),
        (GOOD.replace('"timestamp": 5, ', ""), "bad:1: no 'timestamp'"),
        (GOOD.replace("5,", "-5,"), "bad:1: the time is -5"),
        (GOOD.replace("5,", "NaN,"), "bad:1: the time is nan"),
        (GOOD.replace("600", "0"), "bad:1: prompt tokens are 0"),
        (GOOD.replace("600", "-600"), "bad:1: prompt tokens are -600"),
        (GOOD.replace("600", "600.5"), "bad:1: prompt tokens are 600.5"),
        (GOOD.replace("600", "1e3"), "bad:1: prompt tokens are 1000.0"),
        (GOOD.replace("600", "true"), "bad:1: prompt tokens are True"),
        (GOOD.replace("600", "100000000000"), "bad:1: prompt tokens are 100000000000"),
        (GOOD.replace("[1, 2]", "[1, 2, 3]"), "bad:1: 3 hash ids of 512 tokens for a prompt of 600"),
        (GOOD.replace("[1, 2]", '["a"]'), "bad:1: 'hash_ids'"),
        (f"{GOOD}\n{GOOD.replace('5,', '4,')}", r"bad:2: its time is 0\.001 s before"),
        (f"{GOOD}\nnot json", "bad:2: not JSON"),
        (f"{GOOD}\n[]", "bad:2: not a JSON object"),
        (f"{GOOD}\n{GOOD[:30]}", "bad:2: not JSON"),
        ('{"prompt": ""}', "bad:1: 'prompt' is neither"),
        ('{"prompt": [1, -1]}', "bad:1: 'prompt' is neither"),
        ('{"prompt": [4294967296]}', "bad:1: 'prompt' holds a token id"),
        ('{"prompt": "a", "output_length": 0}', "bad:1: output tokens are 0"),
        ('{"prompt": "a", "timestamp": 1}\n{"prompt": "b"}', "bad:2: no 'timestamp'"),
        ('{"prompt": "a"}\n{"prompt": "b", "timestamp": 1}', "bad:2: a 'timestamp'"),
        (f"{AZURE_HEAD}yesterday,5,5", "bad:2: the time is 'yesterday'"),
        (f"{AZURE_HEAD}2023-13-16 18:17:03.9,5,5", "bad:2: the time is '2023-13-16"),
        (f"{AZURE_HEAD}2023-11-16 18:17:03.9,5", "bad:2: 2 columns; the header has 3"),
        (f"{AZURE_HEAD}2023-11-16 18:17:03.9,0,5", "bad:2: prompt tokens are 0"),
        (f"{AZURE_HEAD}2023-11-16 18:17:03.9,5,\n", "bad:2: output tokens are ''"),
        (f"{AZURE_HEAD}2023-11-16 18:17:03,5,5\n2023-11-16 18:17:02,5,5", "bad:3: its time is 1 s before"),
        (f"{BURST_HEAD}-1,ChatGPT,1,2,3,log", "bad:2: the time is -1.0"),
        (f"{BURST_HEAD}inf,ChatGPT,1,2,3,log", "bad:2: the time is inf"),
        (f"{BURST_HEAD}1,ChatGPT,1,0,3,log", "bad:2: output tokens are 0"),
        (f"{BURST_HEAD}1,ChatGPT,1,2,3", "bad:2: 5 columns; the header has 6"),
        ('[{"conversations": [{"from": "human"}]}]', "bad, conversation 1: a turn without"),
        ('[{"conversations": []}, {"id": 1}]', "bad, conversation 2: no 'conversations'"),
        ('[{"conversations": []}, 5]', "bad, conversation 2: not a JSON object"),
        ('[{"conversations": []}, {"conv', "bad, conversation 2: not JSON"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path: Path, content: str, named: str) -> None:
    assert re.search(named, bad(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "name", "named"),
    [
        ("", None, "is empty"),
        ("\n\n", None, "is empty"),
        ("hello\n", None, "bad:1: its first line is of no trace format known"),
        ('{"a": 1}\n', None, "bad:1: its first line is of no trace format known"),
        ("TIMESTAMP,ContextTokens\n1,2\n", None, "bad:1: its first line is of no trace format known"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "azure", "bad:1: the header has no column 'GeneratedTokens'"),
        (GOOD, "burstgpt", "bad:1: the header has no column 'Timestamp'"),
        (GOOD, "vllm", "unknown trace format 'vllm'"),
        ('{"prompt": "a"}', "mooncake", "bad:1: no 'input_length'"),
    ],
)
def test_a_file_of_no_format_or_another_one_is_refused(
    tmp_path: Path, content: str, name: str | None, named: str
) -> None:
    assert named in bad(tmp_path, content, name)


@pytest.mark.parametrize("content", [AZURE_HEAD, "[]", '[{"conversations": []}]'])
def test_a_trace_without_a_request_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t"
    path.write_text(content)
    with pytest.raises(UsageError, match="holds no request"):
        check_trace(path, None)


def test_after_a_bad_line_a_reader_is_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(f"{GOOD}\nbad\n{GOOD}\n")
    reader = TraceReader(path)
    assert reader.next() is not None
    with pytest.raises(UsageError):
        reader.next()
    assert reader.next() is None


@pytest.mark.parametrize("path", ["/nowhere/at/all", "/"])
def test_a_trace_that_cannot_be_read_is_a_usage_error(path: str) -> None:
    with pytest.raises(UsageError, match="cannot read the trace"):
        check_trace(Path(path), None)
