"""Request records reduced to one row a request, vectorised: chunk lists become times, gaps and token counts.

Definitions (docs/design.md):
  ttft_ms   sent_ns -> arrival of the first token-carrying chunk
  tpot_ms   (last - first token arrival) / (output tokens - 1); needs two chunks
  e2e_ms    sent_ns -> end of the response
  icl_ms    gap between consecutive token-carrying chunks
  itl_ms    that gap over the number of tokens in the later chunk, where the number is known
A failure has NaN in every latency.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.clocks import Clocks
from analysis.window import NS_PER_MS, NS_PER_S, Floats, Window
from contracts.arrow import read_batches
from contracts.records import REQUESTS

CHUNKS_AT_ONCE = 4_000_000
KNOWN_TOKENS_NEEDED = 0.99

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Gap32 = npt.NDArray[np.float32]

_PLAIN = (
    "worker", "seq", "user", "server_id", "prompt_tokens", "max_tokens", "scheduled_ns", "sent_ns", "first_byte_ns",
    "end_ns", "status", "finish_reason", "output_tokens", "output_tokens_source", "error_kind", "error",
    "arrival_clock", "merged_chunks", "client_lag_ns",
)  # fmt: skip
_TIMES = ("scheduled_ns", "sent_ns", "first_byte_ns", "end_ns")


@dataclass(frozen=True, slots=True)
class Gaps:
    """Inter-chunk gaps (ms) of successful requests that started in the window.

    `itl_ms` is None, with the reason, when token counts of chunks are not known for nearly all of those requests.
    """

    icl_ms: Gap32
    itl_ms: Gap32 | None
    itl_absent: str | None


def load_requests(
    paths: Sequence[Path], window: Window | None, span: Window | None = None, clocks: Clocks | None = None
) -> tuple[pd.DataFrame, Gaps]:
    """Read the request files of all load processes of a cell.

    The frame's columns: those of the record except the chunk lists, and chunks, first_token_ns, last_token_ns,
    tokens_in_window, success, in_window (it started inside), itl_known, ttft_ms, tpot_ms, e2e_ms,
    output_speed_tok_s_user, schedule_lag_ms. Without a window nothing is in it. With a span only the requests that
    were in flight in it are given. Times by other machines' clocks are brought onto this one's.
    """
    frames: list[pd.DataFrame] = []
    icl: list[Gap32] = []
    itl: list[Gap32] = []
    for table in _portions(paths):
        frame, icl_part, itl_part = _reduce(table, window, clocks or Clocks())
        frames.append(frame)
        icl.append(icl_part)
        itl.append(itl_part)
    if not frames:
        frames.append(_reduce(REQUESTS.schema().empty_table(), window, Clocks())[0])
    if span is not None:
        frames = [frame[(frame["sent_ns"] < span.end_ns) & (frame["end_ns"] >= span.start_ns)] for frame in frames]
    requests = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0].reset_index(drop=True)
    absent = _why_no_itl(requests)
    icl_ms = _join(icl)
    if absent:
        return requests, Gaps(icl_ms, None, absent)
    same = all(one is other for one, other in zip(icl, itl, strict=True))  # one token a chunk: keep the gaps once
    return requests, Gaps(icl_ms, icl_ms if same else _join(itl), None)


def second_counts(paths: Sequence[Path], window: Window, clocks: Clocks) -> Ints:
    """Count the token-carrying chunks of successful requests in each second of the window, the last one begun."""
    counts = np.zeros(max(-(-(window.end_ns - window.start_ns) // NS_PER_S), 1), dtype=np.int64)
    for table in _portions(paths):
        frame = table.select(list(_PLAIN)).to_pandas(types_mapper=_TYPES.get)
        count, arrival_ns = _lists(table.column("chunk_ns"))
        _judge(frame, count)
        if clocks.fits:
            arrival_ns = arrival_ns - np.repeat(clocks.shift(frame["worker"], frame["sent_ns"]), count)
        counted = np.repeat(frame["success"].to_numpy(), count) & window.holds(arrival_ns)
        counts += np.bincount((arrival_ns[counted] - window.start_ns) // NS_PER_S, minlength=len(counts))
    return counts


def _portions(paths: Sequence[Path]) -> Iterator[Any]:
    """Yield tables of many requests each: a flush a second makes batches too small to be worth a pass of numpy."""
    held: list[Any] = []
    chunks = 0
    for path in paths:
        if not path.exists():
            continue
        for batch in read_batches(path, REQUESTS):
            held.append(batch)
            chunks += batch.num_rows + len(batch.column("chunk_ns").values)
            if chunks >= CHUNKS_AT_ONCE:
                yield pa.Table.from_batches(held).combine_chunks()
                held, chunks = [], 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _reduce(table: Any, window: Window | None, clocks: Clocks) -> tuple[pd.DataFrame, Gap32, Gap32]:
    """Reduce one portion to its rows and the gaps (icl, itl) of its measured requests."""
    frame = table.select(list(_PLAIN)).to_pandas(types_mapper=_TYPES.get)
    count, arrival_ns = _lists(table.column("chunk_ns"))
    known_count, known_tokens = _lists(table.column("chunk_tokens"))
    if clocks.fits:
        shift = clocks.shift(frame["worker"], frame["sent_ns"])
        for name in _TIMES:
            frame[name] -= shift
        arrival_ns = arrival_ns - np.repeat(shift, count)
    end = np.cumsum(count)
    output_tokens = frame["output_tokens"].to_numpy(dtype=np.int64)
    told = (known_count == count) & (count > 0)
    one_each = ~told & (output_tokens == count) & (frame["output_tokens_source"] != "chunks").to_numpy() & (count > 0)
    tokens = _tokens(count, told, one_each, known_count, known_tokens, output_tokens)

    some = count > 0
    first_ns, last_ns = np.full(len(count), -1, dtype=np.int64), np.full(len(count), -1, dtype=np.int64)
    first_ns[some] = arrival_ns[(end - count)[some]]
    last_ns[some] = arrival_ns[end[some] - 1]

    _judge(frame, count)
    sent_ns = frame["sent_ns"].to_numpy(dtype=np.int64)
    frame["chunks"] = count
    frame["first_token_ns"] = pd.array(first_ns, dtype="Int64")
    frame["last_token_ns"] = pd.array(last_ns, dtype="Int64")
    frame.loc[~some, ["first_token_ns", "last_token_ns"]] = pd.NA
    frame["tokens_in_window"] = _sums(window.holds(arrival_ns), tokens, count) if window else 0.0
    frame["in_window"] = window.holds(sent_ns) if window else False
    frame["itl_known"] = told | one_each
    _add_latencies(frame, first_ns, last_ns, some)

    measured = frame["success"].to_numpy() & frame["in_window"].to_numpy()
    inside = np.repeat(measured, count)[1:]  # chunks that have one before them in the same measured request
    inside[end[:-1][(end[:-1] > 0) & (end[:-1] < len(arrival_ns))] - 1] = False
    gap_ms = np.diff(arrival_ns)[inside].astype(np.float32)
    gap_ms /= np.float32(NS_PER_MS)
    if tokens is None:
        return frame, gap_ms, gap_ms
    carried = tokens[1:][inside]
    known = np.repeat(told | one_each, count)[1:][inside] & (carried > 0)
    if known.all() and (carried == 1).all():
        return frame, gap_ms, gap_ms
    return frame, gap_ms, (gap_ms[known] / carried[known]).astype(np.float32)


def _tokens(
    count: Ints, told: Flags, one_each: Flags, known_count: Ints, known_tokens: Ints, output_tokens: Ints
) -> Floats | None:
    """Give each chunk's tokens; None where every one carries one. Spread evenly where the client could not count."""
    if (told | one_each | (count == 0)).all() and (known_tokens == 1).all():
        return None
    tokens = np.repeat(output_tokens / np.maximum(count, 1), count)
    tokens[np.repeat(told, count)] = known_tokens[np.repeat(told, known_count)]
    return tokens


def _sums(inside: Flags, tokens: Floats | None, count: Ints) -> Floats:
    """Add up each request's tokens in the chunks that are inside."""
    values = inside if tokens is None else inside * tokens
    some = count > 0
    sums = np.zeros(len(count))
    if some.any():  # reduceat takes the value at an empty span's place, so those are left out
        starts = (np.cumsum(count) - count)[some]
        sums[some] = np.add.reduceat(values, starts, dtype=np.int64 if tokens is None else np.float64)
    return sums


def _lists(column: Any) -> tuple[Ints, Ints]:
    """Give the lengths and the flattened values of a list column; a null list counts as empty, a null value as 0."""
    lengths = _filled(pc.list_value_length(column)).astype(np.int64, copy=False)
    return lengths, _filled(pc.list_flatten(column))


def _filled(values: Any) -> Ints:
    filled: Ints = (pc.fill_null(values, 0) if values.null_count else values).to_numpy()
    return filled


def _judge(frame: pd.DataFrame, count: Ints) -> None:
    """Set `success`, and give a kind to what the client let pass but the definition does not."""
    kind = frame["error_kind"].astype("object")
    unnamed = kind.isna()
    bad_status = unnamed & frame["status"].notna() & (frame["status"] != 200).fillna(value=False).astype(bool)
    no_token = unnamed & ~bad_status & pd.Series(count == 0, index=frame.index) & (frame["max_tokens"] > 0)
    kind[bad_status] = "http_" + frame["status"][bad_status].astype(str)
    kind[no_token] = "no_token"
    frame["error_kind"] = kind
    frame["success"] = kind.isna().to_numpy(dtype=bool)


def _add_latencies(frame: pd.DataFrame, first_ns: Ints, last_ns: Ints, some: Flags) -> None:
    sent_ns = frame["sent_ns"].to_numpy(dtype=np.int64)
    success = frame["success"].to_numpy()
    decoded = frame["output_tokens"].to_numpy(dtype=np.float64) - 1
    span_ns = (last_ns - first_ns).astype(np.float64)
    several = success & some & (span_ns > 0) & (decoded > 0)

    def where(valid: Flags, numerator: Any, denominator: Any) -> Floats:
        out = np.full(len(valid), np.nan)
        np.divide(numerator, denominator, out=out, where=valid)
        return out

    frame["ttft_ms"] = where(success & some, (first_ns - sent_ns).astype(np.float64), NS_PER_MS)
    frame["tpot_ms"] = where(several, span_ns / NS_PER_MS, decoded)
    frame["e2e_ms"] = where(success, frame["end_ns"].to_numpy(dtype=np.int64) - sent_ns, NS_PER_MS)
    frame["output_speed_tok_s_user"] = where(several, decoded * NS_PER_S, span_ns)
    frame["schedule_lag_ms"] = ((frame["sent_ns"] - frame["scheduled_ns"]) / NS_PER_MS).astype("float64")


def _why_no_itl(requests: pd.DataFrame) -> str | None:
    streamed = requests[requests["success"] & requests["in_window"] & (requests["chunks"] > 1)]
    if streamed.empty:
        return "no successful request of more than one chunk started in the steady window"
    known = float(streamed["itl_known"].mean())
    if known < KNOWN_TOKENS_NEEDED:
        return (
            f"the number of tokens in each chunk is known for {known:.0%} of the requests only: the server neither "
            f"says it a chunk nor reports as many tokens as it sent chunks"
        )
    return None


def _join(parts: Sequence[Gap32]) -> Gap32:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)


_TYPES = {pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
