"""The trace formats: what a line must hold, and how it is read. Field names and units are those of their publishers.

mooncake   JSON lines: timestamp (ms), input_length, output_length, hash_ids (github.com/kvcache-ai/Mooncake)
azure      CSV: TIMESTAMP, ContextTokens, GeneratedTokens (github.com/Azure/AzurePublicDataset, 2023 and 2024)
burstgpt   CSV: Timestamp (s), Model, Request tokens, Response tokens, ... (github.com/HPMLL/BurstGPT)
sharegpt   a JSON array, or JSON lines, of objects with `conversations`: [{"from": "human", "value": ...}, ...]
jsonl      JSON lines: `prompt` (or `text`), a text or token ids; `output_length` and `timestamp` (ms) if they are known
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from contracts.clock import NS_PER_MS, NS_PER_S
from loadgen.workload.lengths import MOST_TOKENS
from loadgen.workload.traces.entry import BLOCK_TOKENS, Entry, EntryError

MOONCAKE: Final = "mooncake"
AZURE: Final = "azure"
BURSTGPT: Final = "burstgpt"
SHAREGPT: Final = "sharegpt"
JSONL: Final = "jsonl"
FORMATS: Final = (MOONCAKE, AZURE, BURSTGPT, SHAREGPT, JSONL)
TIMED: Final = (MOONCAKE, AZURE, BURSTGPT)
CSV_COLUMNS: Final[Mapping[str, tuple[str, str, str]]] = {
    AZURE: ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    BURSTGPT: ("Timestamp", "Request tokens", "Response tokens"),
}
_PROMPT_FIELDS = ("prompt", "text", "token_ids", "prompt_token_ids")
_OUTPUT_FIELDS = ("output_length", "output_tokens", "max_tokens")
_MOST_NS = 1 << 62
_LAST_ID = (1 << 31) - 1
_INSTANT = re.compile(r"^(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:?\d\d)?$", re.ASCII)

Parse = Callable[[int, bytes], Entry]


def parser_of(name: str, columns: Sequence[str] = ()) -> Parse:
    """Give what reads one line of a format; `columns` is a CSV file's header. The reader raises EntryError."""
    if name in CSV_COLUMNS:
        wanted = CSV_COLUMNS[name]
        missing = [column for column in wanted if column not in columns]
        if missing:
            raise EntryError(f"the header has no column {', '.join(map(repr, missing))}")
        first, second, third = (columns.index(column) for column in wanted)
        when = _instant_ns if name == AZURE else _seconds_ns
        return lambda line, data: _csv(line, data, len(columns), (first, second, third), when)
    return {MOONCAKE: _mooncake, SHAREGPT: _sharegpt, JSONL: _jsonl}[name]


def recognised(document: Any) -> str | None:
    """Name the format of a JSON line by what its object holds."""
    if not isinstance(document, dict):
        return None
    if "conversations" in document:
        return SHAREGPT
    if any(name in document for name in _PROMPT_FIELDS):
        return JSONL
    return MOONCAKE if "input_length" in document else None


def _csv(line: int, data: bytes, width: int, places: tuple[int, int, int], when: Callable[[str], int]) -> Entry:
    try:
        cells = data.decode().split(",")
    except UnicodeDecodeError:
        raise EntryError("not UTF-8") from None
    if len(cells) != width:
        raise EntryError(f"{len(cells)} columns; the header has {width}")
    time, prompt, output = (cells[place].strip() for place in places)
    return Entry(line, when(time), _cell_tokens(prompt, "prompt"), _cell_tokens(output, "output"))


def _cell_tokens(text: str, what: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise EntryError(f"{what} tokens are {text!r}, no whole number") from None
    return _tokens(number, what)


def _tokens(number: Any, what: str) -> int:
    if type(number) is not int:
        raise EntryError(f"{what} tokens are {number!r}, no whole number")
    if not 1 <= number <= MOST_TOKENS:
        raise EntryError(f"{what} tokens are {number}, not from 1 to {MOST_TOKENS:,} (a failed request has none)")
    return number


def _seconds_ns(text: str) -> int:
    try:
        seconds = float(text)
    except ValueError:
        raise EntryError(f"the time is {text!r}, no number of seconds") from None
    return _time_ns(seconds, NS_PER_S)


def _instant_ns(text: str) -> int:
    """Read an instant to the last digit that it has: those of 2023 have seven of a second's fraction."""
    match = _INSTANT.match(text)
    try:
        instant = datetime.fromisoformat(match[1] + (match[3] or "")) if match else None
    except ValueError:
        instant = None
    if match is None or instant is None:
        raise EntryError(f"the time is {text!r}, not like 2023-11-16 18:17:03.9799600")
    whole = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return int(whole.timestamp()) * NS_PER_S + int((match[2] or "0").ljust(9, "0"))


def _time_ns(number: Any, unit_ns: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise EntryError(f"the time is {number!r}, no number")
    if not 0 <= number * unit_ns < _MOST_NS:
        raise EntryError(f"the time is {number}: it must not be negative, nor beyond all reason")
    return round(number * unit_ns)


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EntryError(f"not JSON ({error})") from None
    if not isinstance(document, dict):
        raise EntryError("not a JSON object")
    return document


def _field(document: Mapping[str, Any], name: str) -> Any:
    if name not in document:
        raise EntryError(f"no {name!r}")
    return document[name]


def _mooncake(line: int, data: bytes) -> Entry:
    document = _object(data)
    prompt_tokens = _tokens(_field(document, "input_length"), "prompt")
    hash_ids = document.get("hash_ids", ())
    if not isinstance(hash_ids, list | tuple) or any(type(number) is not int for number in hash_ids):
        raise EntryError("'hash_ids' is no list of whole numbers")
    if len(hash_ids) > -(-prompt_tokens // BLOCK_TOKENS):
        raise EntryError(f"{len(hash_ids)} hash ids of {BLOCK_TOKENS} tokens for a prompt of {prompt_tokens}")
    return Entry(
        line,
        _time_ns(_field(document, "timestamp"), NS_PER_MS),
        prompt_tokens,
        _tokens(_field(document, "output_length"), "output"),
        hash_ids,
    )


def _jsonl(line: int, data: bytes) -> Entry:
    document = _object(data)
    name = next((name for name in _PROMPT_FIELDS if name in document), "prompt")
    prompt = _field(document, name)
    output = next((document[key] for key in _OUTPUT_FIELDS if document.get(key) is not None), None)
    max_tokens = None if output is None else _tokens(output, "output")
    time = document.get("timestamp")
    at_ns = None if time is None else _time_ns(time, NS_PER_MS)
    if isinstance(prompt, str) and prompt:
        return Entry(line, at_ns, max_tokens=max_tokens, texts=(prompt,))
    if not isinstance(prompt, list) or not prompt or any(type(one) is not int or one < 0 for one in prompt):
        raise EntryError(f"{name!r} is neither a text nor a list of token ids")
    if max(prompt) > _LAST_ID or len(prompt) > MOST_TOKENS:
        raise EntryError(f"{name!r} holds a token id beyond {_LAST_ID}, or too many of them")
    return Entry(line, at_ns, len(prompt), max_tokens, ids=prompt)


def _sharegpt(line: int, data: bytes) -> Entry:
    return conversation(line, _object(data))


def conversation(line: int, document: Any) -> Entry:
    """Read a ShareGPT object: the pairs of what a human asked and got. One without any gives no texts."""
    if not isinstance(document, dict):
        raise EntryError("not a JSON object")
    turns = _field(document, "conversations")
    if not isinstance(turns, list):
        raise EntryError("'conversations' is no list")
    texts: list[str] = []
    asked = ""
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str) or "from" not in turn:
            raise EntryError("a turn without 'from' and a text in 'value'")
        if turn["from"] in ("human", "user"):
            asked = turn["value"]
        elif asked and turn["value"] and turn["from"] != "system":
            texts += [asked, turn["value"]]
            asked = ""
    return Entry(line, texts=texts)
