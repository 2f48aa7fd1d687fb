"""Sweeps with known answers, written as real record files: every number below can be worked out by hand.

A user sends a request, gets its first token after `ttft_ms`, one token every `itl_ms`, and sends the next at once, so
with `n` users exactly `n` are in flight and a request takes ttft + (osl - 1) * itl. `factor` scales all times of a
cell: 0.8 is a cell in which everything takes 0.8 of the time. `ttft_growth` lets TTFT grow by that much a second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from contracts.arrow import write_rows
from contracts.folder import CellInfo, GilStacks, Phases, SweepFolder, write_json
from contracts.records import (
    CLIENT,
    GC,
    GIL,
    HOST,
    REQUESTS,
    SERVER,
    STEPS,
    ClientRow,
    GcRow,
    GilRow,
    HostRow,
    RequestRow,
    ServerRow,
    StepRow,
)

MS = 1_000_000
S = 1_000_000_000
T0 = 5_000 * S
KNOB = "TLLM_RPC_SUBMIT_BATCH_MAX"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a cell is made of. Times in ms and s; `jitter` is the relative spread of every time, 0 for exactness."""

    users: int = 8
    osl: int = 11
    ttft_ms: float = 100.0
    itl_ms: float = 10.0
    factor: float = 1.0
    jitter: float = 0.0
    warmup_s: float = 1.0
    window_s: float = 4.0
    drain_s: float = 1.0
    workers: int = 1
    tokens_a_chunk: int = 1
    tell_chunk_tokens: bool = True
    messages_a_request: float = 1.0
    executor_cpu: float = 0.9
    proxy_cpu: float = 0.3
    further_cpu: Mapping[str, float] = field(default_factory=dict)
    load_cpu: float = 0.2
    second_load_cpu: float = 0.0
    lag_ms: float = 0.5
    device_ms: float = 3.0
    one_process: bool = False
    gil: Mapping[str, int] = field(default_factory=lambda: {"executor_loop": 600, "rpc_server_thread": 200})
    attempts: int = 1000
    sample_errors: int = 0
    fail_every: int = 0
    error: str = "broken pipe"
    arrival_lag_ms: float | None = None
    merged_chunks: int = 0
    ttft_growth: float = 0.0
    in_steps: int | None = None
    looks: bool = False
    looks_missed: float = 0.0
    pause_ms: float | None = None
    waiter: str = "rpc_server_thread"


def write_sweep(
    path: Path,
    cells: Sequence[tuple[str, int, int, Recipe]],
    *,
    knob: str = KNOB,
    document: Mapping[str, Any] | None = None,
) -> Path:
    """Write a sweep of (knob value, concurrency, block, recipe), in that order."""
    values = list(dict.fromkeys(value for value, _, _, _ in cells))
    blocks = {block for _, _, block, _ in cells}
    path.mkdir(parents=True, exist_ok=True)
    infos = []
    for index, (value, concurrency, block, recipe) in enumerate(cells):
        recipe = replace(recipe, users=min(recipe.users, concurrency))  # noqa: PLW2901
        infos.append(write_cell(path, index, {knob: value}, concurrency=concurrency, block=block, recipe=recipe))
    sweep: dict[str, Any] = {
        "format": 1,
        "created_at": "2025-06-01T12:00:00+00:00",
        "plan": {
            "stack": "reference",
            "drive": "rpc",
            "factors": {knob: values},
            "concurrency": sorted({concurrency for _, concurrency, _, _ in cells}),
            "repeats": len(blocks),
            "duration_s": 4.0,
            "isl": 4096,
            "osl": 11,
            "seed": 1,
        },
        "baseline": {knob: values[0]} if values else {},
        "order": [info.id for info in infos],
        "versions": {"python": "3.11.2", "locust": "2.32.0"},
        "machine": {"cpu": "synthetic", "cores": 2},
        "git": {"commit": "0123abc", "dirty": False},
        "command": ["loadgen", "sweep", "--set", f"{knob}={','.join(values)}"],
        "state": "done",
        "stack_settings": {"device": {"base_ms": 3.0}},
    }
    write_json(path / "sweep.json", sweep | dict(document or {}))
    return path


def write_cell(
    path: Path, index: int, knobs: Mapping[str, str], *, concurrency: int, block: int, recipe: Recipe
) -> CellInfo:
    """Write one cell's folder and give back what cell.json says."""
    label = "-".join(knobs.values()) or "only"
    slug = f"{index:03d}-{label}-c{concurrency}-b{block}".replace("/", "_").replace("<", "_").replace(">", "_")
    folder = SweepFolder(path).cell(slug)
    folder.path.mkdir(parents=True)
    start = T0 + index * 60 * S
    steady = start + int(recipe.warmup_s * S)
    end = steady + int(recipe.window_s * S)
    random = np.random.default_rng(index)
    requests, served = _requests(recipe, start, steady, end, random)
    for worker in range(recipe.workers):
        write_rows(folder.requests(worker), REQUESTS, [row for row in requests if row.worker == worker])
        write_rows(folder.client(worker), CLIENT, _client(recipe, worker, start, end))
    write_rows(folder.server, SERVER, served)
    write_rows(folder.steps, STEPS, _steps(recipe, start, end, len(requests), random))
    write_rows(folder.host, HOST, _host(recipe, start, end))
    folder.stacks.write_text("".join(_stacks(recipe)))
    if recipe.looks:
        write_rows(folder.gil, GIL, _looks(recipe, steady, end))
    if recipe.pause_ms is not None:
        write_rows(folder.gc, GC, [GcRow(steady + S, int(recipe.pause_ms * MS), 2, 7)] if recipe.pause_ms else [])
    info = CellInfo(
        id=slug,
        slug=slug,
        index=index,
        block=block,
        knobs=knobs,
        concurrency=concurrency,
        state="done",
        phases=Phases(start, start, steady, end, end + int(recipe.drain_s * S)),
        stacks=GilStacks(
            101, 100, steady, end, recipe.attempts, sum(recipe.gil.values()), recipe.sample_errors, complete=True
        ),
        processes={"rank0": 101, "proxy": 102, "load": 103},
        placement={"rank0": "0", "proxy": "1", "load": "1"},
        started_at="2025-06-01T12:00:00+00:00",
        ended_at="2025-06-01T12:00:10+00:00",
    )
    folder.write(info)
    return info


def _requests(
    recipe: Recipe, start: int, steady: int, end: int, random: np.random.Generator
) -> tuple[list[RequestRow], list[ServerRow]]:
    rows, served = [], []
    chunks = -(-recipe.osl // recipe.tokens_a_chunk)
    for user in range(recipe.users):
        sent = start
        while sent < end:
            seq = len(rows)
            wobble = 1 + recipe.jitter * random.standard_normal(chunks).clip(-2, 4)
            gaps = np.full(chunks, recipe.itl_ms * recipe.tokens_a_chunk) * wobble * recipe.factor
            gaps[0] = recipe.ttft_ms * recipe.factor * (1 + 2 * recipe.jitter * random.gamma(1.5))
            gaps[0] *= 1 + recipe.ttft_growth * (sent - start) / S
            arrivals = sent + np.cumsum(np.maximum(gaps, 0.01) * MS).astype(np.int64)
            failed = recipe.fail_every > 0 and seq % recipe.fail_every == recipe.fail_every - 1
            sizes = [recipe.tokens_a_chunk] * (chunks - 1) + [recipe.osl - recipe.tokens_a_chunk * (chunks - 1)]
            finish = int(arrivals[-1])
            rows.append(
                RequestRow(
                    worker=user % recipe.workers,
                    seq=seq,
                    user=user,
                    server_id=f"r{seq}",
                    prompt_tokens=4096,
                    max_tokens=recipe.osl,
                    scheduled_ns=None,
                    sent_ns=sent,
                    first_byte_ns=int(arrivals[0]),
                    chunk_ns=[] if failed else arrivals.tolist(),
                    chunk_tokens=sizes if recipe.tell_chunk_tokens and not failed else None,
                    end_ns=finish,
                    status=500 if failed else 200,
                    finish_reason=None if failed else "length",
                    output_tokens=0 if failed else recipe.osl,
                    output_tokens_source="usage",
                    error_kind="http_500" if failed else None,
                    error=recipe.error if failed else None,
                    arrival_clock=None if recipe.arrival_lag_ms is None else "kernel",
                    merged_chunks=None if recipe.arrival_lag_ms is None else recipe.merged_chunks,
                    client_lag_ns=None if recipe.arrival_lag_ms is None else int(recipe.arrival_lag_ms * MS),
                )
            )
            served.append(
                ServerRow(f"r{seq}", None, sent + MS, sent + 2 * MS, int(arrivals[0]) - 2 * MS, finish - MS, None)
            )
            sent = finish
    return rows, served


def _client(recipe: Recipe, worker: int, start: int, end: int) -> list[ClientRow]:
    cpu = recipe.load_cpu
    return [
        ClientRow(worker, t, int(recipe.lag_ms * MS), int((t - start) * cpu), recipe.users, 0, 0)
        for t in range(start, end, S // 10)
    ]


def _steps(recipe: Recipe, start: int, end: int, requests: int, random: np.random.Generator) -> list[StepRow]:
    """Turns of `itl_ms`: one token each for every active request; messages spread evenly over them."""
    step_ns = int(recipe.itl_ms * recipe.factor * MS)
    times = list(range(start + step_ns, end, step_ns))
    carried = np.diff(np.linspace(0, requests, len(times) + 1).round()).astype(int)
    sent = np.diff(np.linspace(0, requests * recipe.messages_a_request, len(times) + 1).round()).astype(int)
    rows = []
    for iteration, t in enumerate(times):
        took = recipe.itl_ms * recipe.factor * (1 + recipe.jitter * random.gamma(2.0) / 2)
        known = {
            "t_ns": t,
            "iteration": iteration,
            "rank": 0,
            "host_step_ms": took,
            "prev_device_step_ms": recipe.device_ms,
            "scheduled_requests": recipe.users if recipe.in_steps is None else recipe.in_steps,
            "new_requests": int(carried[iteration]),
            "rpc_messages": int(sent[iteration]),
            "rpc_requests": int(carried[iteration]),
        }
        rows.append(StepRow(**{name: known.get(name) for name in StepRow.__dataclass_fields__}))  # type: ignore[arg-type]
    return rows


def _host(recipe: Recipe, start: int, end: int) -> list[HostRow]:
    rows = []
    shares: list[tuple[str, int, int | None, str, float]] = [
        ("rank0", 101, None, "python", recipe.executor_cpu),
        ("rank0", 101, 1010, "executor_loop", recipe.executor_cpu),
        ("proxy", 102, None, "python", recipe.proxy_cpu),
        ("load", 103, None, "python", recipe.load_cpu),
    ]
    if recipe.second_load_cpu:
        shares.append(("load1", 104, None, "python", recipe.second_load_cpu))
    if recipe.one_process:  # the layout in which the executor loop is a thread of the front end's process
        shares = [
            ("server", 101, None, "python", min(recipe.executor_cpu + recipe.proxy_cpu, 1.0)),
            ("server", 101, 1010, "executor_loop", recipe.executor_cpu),
            ("load", 103, None, "python", recipe.load_cpu),
        ]
    shares += [
        (role, 200 + number, None, "python", share) for number, (role, share) in enumerate(recipe.further_cpu.items())
    ]
    for t in range(start, end, S // 2):
        for role, pid, tid, name, share in shares:
            rows.append(HostRow(t, role, pid, tid, name, int((t - start) * share), (t - start) // 100, 50_000_000))
    return rows


def _looks(recipe: Recipe, steady: int, end: int) -> list[GilRow]:
    """A look every 2 ms: of each ten the loop holds six (in one hold of 10 ms), waits two and is blocked elsewhere two.

    The waiter waits while the loop holds, and holds for the next four.
    """
    loop, waiter = 1010, 1011
    rows = []
    for place, t_ns in enumerate(range(steady, end, 2 * MS)):
        held, turn = place % 10 < 6, place // 10
        wants = [waiter] if held else [loop] if place % 10 < 8 else []
        first = place == 0
        rows.append(
            GilRow(
                t_ns=t_ns, locked=True, holder=loop if held else waiter, holder_sleeps=False,
                function=f"{'encode' if held else recipe.waiter} (a/b.py)", waiting=wants, runnable=[], running=[],
                cold=[], cold_weight=16, clocked=[], cpu_clock_ns=[], queue_clock_ns=[], switches=2 * turn + (not held),
                missed=int(place * recipe.looks_missed), cpu_ns=0, appeared=[loop, waiter] if first else [],
                names=["executor_loop", recipe.waiter] if first else [], gone=[], interval_us=5000,
            )
        )  # fmt: skip
    return rows


def _stacks(recipe: Recipe) -> list[str]:
    """py-spy's raw lines; the executor loop is split over two functions, 3 to 1, any other thread is one stack."""
    root = "Thread._bootstrap (threading.py:1002);Thread.run (threading.py:982)"
    loop = f"{root};ExecutorLoop.run (harness/reference/executor.py:50)"
    lines = []
    for name, count in recipe.gil.items():
        if name == "executor_loop":
            most = count * 3 // 4
            lines.append(f"thread (11): {name};{loop};prepare_inputs (harness/reference/inputs.py:20) {most}\n")
            lines.append(f"thread (11): {name};{loop};update (harness/reference/sampler.py:9);dumps (pickle.py:3) "
                         f"{count - most}\n")  # fmt: skip
        else:
            lines.append(
                f"thread (12): {name};{root};handle (harness/reference/rpc.py:7);loads (pickle.py:9) {count}\n"
            )
    return lines
