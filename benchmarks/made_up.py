"""Sweeps of any size for the benches of scale, made of whole arrays: the record formats are real, the server is not.

A closed loop: each user sends its next request when the last one ended. Times are random (gamma) about a knob's mean.
Stacks of GIL holders are those of the sample, and threads are as many as the reference stack has.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from contracts.clock import NS_PER_MS, NS_PER_S
from contracts.folder import CellFolder, CellInfo, GilStacks, Phases, SweepFolder, write_json
from contracts.records import CLIENT, GC, GIL, HOST, REQUESTS, SERVER, STEPS, RecordType

SAMPLE = Path(__file__).parents[1] / "results" / "sample"
KNOB = "TLLM_RPC_SUBMIT_BATCH_MAX"
FLUSH_ROWS = 700  # a load process flushes once a second
LOOKS_PER_S = 200
THREADS = ("executor_loop", "rpc_server_thread", "MainThread", "asyncio_0", "asyncio_1", "asyncio_2", "log", "monitor")


@dataclass(frozen=True, slots=True)
class Size:
    """How long a cell's window is, and how long its answers are."""

    window_s: float = 20.0
    warmup_s: float = 2.0
    chunks: int = 64
    requests_per_s: float = 600.0


def write_columns(path: Path, record: RecordType[Any], columns: Mapping[str, Any], flush_rows: int = 10_000) -> None:
    """Write a record file of whole columns (arrays or pyarrow arrays; one that is not given is null)."""
    schema = record.schema(monotonic_ns=str(time.monotonic_ns()), realtime_ns=str(time.time_ns()))
    rows = len(next(iter(columns.values())))
    arrays = [
        pa.array(columns[field.name], type=field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in schema
    ]
    with pa.ipc.new_stream(path, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        for batch in pa.table(arrays, schema=schema).to_batches(max_chunksize=flush_rows):
            stream.write_batch(batch)


def requests(
    random: np.random.Generator, users: int, count: int, chunks: int, start_ns: int, request_ms: float
) -> dict[str, Any]:
    """Columns of `count` requests in closed loop; a fifth of a request's time is until its first chunk."""
    turns = -(-count // users)
    gaps = np.empty((users * turns, chunks), dtype=np.float32)
    random.standard_gamma(4.0, dtype=np.float32, out=gaps)
    gaps *= 0.8 * request_ms / (chunks - 1) / 4.0
    gaps[:, 0] = random.gamma(6.0, 0.2 * request_ms / 6.0, users * turns)
    arrivals = (np.cumsum(gaps, axis=1, dtype=np.float64) * NS_PER_MS).astype(np.int64)
    lasted = arrivals[:, -1].reshape(turns, users)
    sent = start_ns + np.vstack([random.integers(0, NS_PER_S, (1, users)), lasted[:-1]]).cumsum(axis=0).reshape(-1)
    arrivals += sent[:, None]
    order = np.argsort(arrivals[:, -1], kind="stable")[:count]
    sent, arrivals = sent[order], arrivals[order]
    offsets = np.arange(0, (len(order) + 1) * chunks, chunks, dtype=np.int32)
    seq = np.arange(len(order), dtype=np.int64)
    return {
        "worker": np.zeros(len(order), dtype=np.int16),
        "seq": seq,
        "user": (order % users).astype(np.int32),
        "server_id": pa.array([f"r{number}" for number in seq.tolist()]),
        "prompt_tokens": np.full(len(order), 1024, dtype=np.int32),
        "max_tokens": np.full(len(order), chunks, dtype=np.int32),
        "sent_ns": sent,
        "first_byte_ns": arrivals[:, 0],
        "chunk_ns": pa.ListArray.from_arrays(offsets, arrivals.reshape(-1)),
        "chunk_tokens": pa.ListArray.from_arrays(offsets, np.ones(arrivals.size, dtype=np.int32)),
        "end_ns": arrivals[:, -1],
        "status": np.full(len(order), 200, dtype=np.int16),
        "finish_reason": pa.array(["length"] * len(order)),
        "output_tokens": np.full(len(order), chunks, dtype=np.int32),
        "output_tokens_source": pa.array(["usage"] * len(order)),
    }


def write_sweep(
    path: Path, values: Sequence[str], concurrencies: Sequence[int], blocks: int, size: Size
) -> SweepFolder:
    """Write a sweep of every value at every concurrency in every block."""
    folder = SweepFolder(path)
    folder.cells.mkdir(parents=True)
    slugs = []
    for index, (block, value, users) in enumerate(
        (block, value, users) for block in range(1, blocks + 1) for value in values for users in concurrencies
    ):
        slug = f"{index + 1:03d}-b{block}-c{users}-{value}"
        cell = folder.cell(slug)
        cell.path.mkdir()
        write_cell(cell, slug, index, value, users, block, 1.0 - 0.03 * values.index(value), size)
        slugs.append(slug)
    plan = {
        "stack": "reference", "drive": "rpc", "factors": {KNOB: list(values)}, "concurrency": list(concurrencies),
        "repeats": blocks, "seed": 1, "duration_s": size.window_s, "isl": 1024, "osl": size.chunks,
    }  # fmt: skip
    write_json(
        folder.json,
        {
            "format": 1, "created_at": "2026-01-01T00:00:00+00:00", "command": ["loadgen", "sweep"], "plan": plan,
            "baseline": {KNOB: values[0]}, "seed": 1, "order": slugs, "versions": {"python": "3.11.7"},
            "machine": {"cpu": "made up"}, "git": {},
        },
    )  # fmt: skip
    return folder


def write_cell(
    cell: CellFolder, slug: str, index: int, value: str, users: int, block: int, factor: float, size: Size
) -> None:
    """Write one cell: `factor` scales its times."""
    random = np.random.default_rng(index)
    start = (1000 + index * 60) * NS_PER_S
    steady, end = start + round(size.warmup_s * NS_PER_S), start + round((size.warmup_s + size.window_s) * NS_PER_S)
    drained = end + NS_PER_S
    request_ms = users / size.requests_per_s * 1e3 * factor * random.normal(1, 0.01)
    count = int((size.warmup_s + size.window_s) * 1e3 / request_ms * users)
    told = requests(random, users, count, size.chunks, start, request_ms)
    write_columns(cell.requests(), REQUESTS, told, FLUSH_ROWS)
    write_columns(cell.server, SERVER, {
        "server_id": told["server_id"], "arrival_ns": told["sent_ns"] + NS_PER_MS,
        "first_scheduled_ns": told["sent_ns"] + 2 * NS_PER_MS, "first_token_ns": told["first_byte_ns"] - NS_PER_MS,
        "last_token_ns": told["end_ns"] - NS_PER_MS,
    })  # fmt: skip
    _write_steps(cell, random, start, drained, users, 0.8 * request_ms / (size.chunks - 1))
    _write_clocks(cell, start, drained, users)
    _write_looks(cell, random, steady, end)
    seconds = np.arange(start, drained, NS_PER_S)
    none = np.zeros(len(seconds), dtype=np.int64)
    pauses = {"t_ns": seconds, "pause_ns": none + 3 * NS_PER_MS, "generation": none.astype(np.int16), "collected": none}
    write_columns(cell.gc, GC, pauses)
    sources = sorted(SAMPLE.glob("cells/*/stacks.raw"))
    cell.stacks.write_bytes(sources[index % len(sources)].read_bytes())
    cell.write(
        CellInfo(
            id=slug[:3], slug=slug, index=index, block=block, knobs={KNOB: value}, concurrency=users, state="done",
            phases=Phases(start, start, steady, end, drained),
            stacks=GilStacks(101, 100, steady, end, attempts=200, samples=170, errors=10, complete=True),
            processes={"rank0": 101, "proxy": 102, "load": 103}, placement={"rank0": "0", "load": "1"},
            server={"settings": {"switch_interval_ms": 5.0, "submit_batch_max": value}},
        )
    )  # fmt: skip


def _write_steps(
    cell: CellFolder, random: np.random.Generator, start: int, end: int, users: int, step_ms: float
) -> None:
    lengths = random.gamma(20.0, step_ms / 20.0, int((end - start) / NS_PER_MS / step_ms))
    t_ns = start + (np.cumsum(lengths) * NS_PER_MS).astype(np.int64)
    rows = len(t_ns)
    arrivals = random.poisson(3.0, rows).astype(np.int32)
    write_columns(cell.steps, STEPS, {
        "t_ns": t_ns, "iteration": np.arange(rows), "rank": np.zeros(rows, dtype=np.int16), "host_step_ms": lengths,
        "prev_device_step_ms": np.full(rows, 0.6 * step_ms), "scheduled_requests": np.full(rows, users, dtype=np.int32),
        "new_requests": arrivals, "rpc_messages": np.minimum(arrivals, 1), "rpc_requests": arrivals,
        "gil_wait_ms": 0.1 * lengths,
    }, 500)  # fmt: skip


def _write_clocks(cell: CellFolder, start: int, end: int, users: int) -> None:
    """host.arrow: three processes and their threads, twice a second; client.arrow: ten rows a second."""
    roles = [
        ("rank0", 101, None, "python", 0.9),
        ("proxy", 102, None, "python", 0.4),
        ("load", 103, None, "python", 0.2),
    ]
    threads = [("rank0", 101, 110 + place, name, 0.9 / (place + 1)) for place, name in enumerate(THREADS)]
    t_ns = np.arange(start, end, NS_PER_S // 2)
    every = [*roles, *threads]
    since = np.repeat(t_ns - start, len(every)).astype(np.float64)
    shares = np.tile([share for *_, share in every], len(t_ns))
    write_columns(cell.host, HOST, {
        "t_ns": np.repeat(t_ns, len(every)), "role": [one[0] for one in every] * len(t_ns),
        "pid": [one[1] for one in every] * len(t_ns), "tid": [one[2] for one in every] * len(t_ns),
        "name": [one[3] for one in every] * len(t_ns), "cpu_ns": (since * shares).astype(np.int64),
        "runqueue_ns": (since * 0.02).astype(np.int64), "rss_bytes": np.full(len(since), 10**8),
    }, 20)  # fmt: skip
    t_ns = np.arange(start, end, NS_PER_S // 10)
    rows = len(t_ns)
    write_columns(cell.client(), CLIENT, {
        "worker": np.zeros(rows, dtype=np.int16), "t_ns": t_ns, "lag_ns": np.full(rows, 300_000),
        "cpu_ns": (t_ns - start) // 5, "in_flight": np.full(rows, users, dtype=np.int32),
        "completed": np.arange(rows), "failed": np.zeros(rows, dtype=np.int64),
    }, 10)  # fmt: skip


def _write_looks(cell: CellFolder, random: np.random.Generator, start: int, end: int) -> None:
    rows = int((end - start) / NS_PER_S * LOOKS_PER_S)
    t_ns = start + ((np.arange(rows) + random.random(rows)) * NS_PER_S / LOOKS_PER_S).astype(np.int64)
    tids = np.arange(110, 110 + len(THREADS))
    holder = random.choice(tids[:4], rows, p=(0.6, 0.25, 0.1, 0.05))
    switches = np.cumsum(np.concatenate([[0], holder[1:] != holder[:-1]]) * random.integers(1, 9, rows))
    functions = [f"function_{number} (server/module_{number % 7}.py)" for number in range(40)]
    clocked = np.arange(rows) % (LOOKS_PER_S // 2) == 0
    empty: list[int] = []
    wants = [
        [int(tid) for tid in tids[:3] if tid != one and rare]
        for one, rare in zip(holder, random.random(rows) < 0.3, strict=True)
    ]
    counters = list(zip((t_ns - start).tolist(), clocked.tolist(), strict=True))
    write_columns(cell.gil, GIL, {
        "t_ns": t_ns, "locked": np.ones(rows, dtype=bool), "holder": holder.astype(np.int32),
        "holder_sleeps": np.zeros(rows, dtype=bool), "function": [functions[n] for n in random.integers(0, 40, rows)],
        "waiting": wants, "runnable": [empty] * rows, "running": [[117]] * rows, "cold": [empty] * rows,
        "cold_weight": np.full(rows, 16, dtype=np.int16),
        "clocked": [tids.tolist() if yes else empty for yes in clocked],
        "cpu_clock_ns": [[int(t * 0.3)] * len(tids) if yes else empty for t, yes in counters],
        "queue_clock_ns": [[int(t * 0.02)] * len(tids) if yes else empty for t, yes in counters],
        "switches": switches, "missed": np.zeros(rows, dtype=np.int64), "cpu_ns": np.arange(rows) * 40_000,
        "appeared": [tids.tolist(), *[empty] * (rows - 1)], "names": [list(THREADS), *[[]] * (rows - 1)],
        "gone": [empty] * rows, "interval_us": np.full(rows, 5000),
    }, LOOKS_PER_S)  # fmt: skip


def many_requests(path: Path, count: int, chunks: int, users: int, at_once: int) -> Iterator[int]:
    """Write one requests file of `count` requests batch by batch; yields how many are written."""
    schema = REQUESTS.schema(monotonic_ns="0", realtime_ns="0")
    random = np.random.default_rng(1)
    with pa.ipc.new_stream(path, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        written, start = 0, 1000 * NS_PER_S
        while written < count:
            rows = min(at_once, count - written)
            columns = requests(random, users, rows, chunks, start, 2000.0)
            start = int(columns["end_ns"].max())
            columns["seq"] = columns["seq"] + written
            columns["server_id"] = pa.array([f"r{number}" for number in columns["seq"].tolist()])
            arrays = [
                pa.array(columns[field.name], type=field.type) if field.name in columns else pa.nulls(rows, field.type)
                for field in schema
            ]
            for batch in pa.table(arrays, schema=schema).to_batches(max_chunksize=FLUSH_ROWS):
                stream.write_batch(batch)
            written += rows
            yield written
