"""Small traces of each format, with known contents."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

AZURE_EPOCH = datetime(2023, 11, 16, 18, 17, 3, tzinfo=UTC)


def mooncake(path: Path, rows: Sequence[tuple[int, int, int, Sequence[int]]]) -> Path:
    """Write rows of (ms, prompt tokens, output tokens, hash ids)."""
    lines = [
        json.dumps({"timestamp": ms, "input_length": isl, "output_length": osl, "hash_ids": list(ids)})
        for ms, isl, osl, ids in rows
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def azure(path: Path, rows: Sequence[tuple[int, int, int]]) -> Path:
    """Write rows of (us, prompt tokens, output tokens), with the seven digits of the published files."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for us, isl, osl in rows:
        lines.append(f"{AZURE_EPOCH + timedelta(microseconds=us):%Y-%m-%d %H:%M:%S.%f}0,{isl},{osl}")
    path.write_text("\n".join(lines) + "\n")
    return path


def burstgpt(path: Path, rows: Sequence[tuple[float, int, int]]) -> Path:
    """Write rows of (s, prompt tokens, output tokens)."""
    lines = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    lines += [f"{s},ChatGPT,{isl},{osl},{isl + osl},Conversation log" for s, isl, osl in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def sharegpt(path: Path, conversations: Sequence[Sequence[str]]) -> Path:
    """Write conversations: what the human said, what was answered, and so on."""
    speakers = ("human", "gpt")
    document = [
        {
            "id": f"c{number}",
            "conversations": [{"from": speakers[n % 2], "value": text} for n, text in enumerate(texts)],
        }
        for number, texts in enumerate(conversations)
    ]
    path.write_text(json.dumps(document))
    return path


def jsonl(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path
