"""Sweeps that obey the scaling law with known parameters: steps and looks are drawn from it, as real record files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from synthetic import MS, Recipe, S, write_sweep

from analysis.scaling.law import Law, Predicted, Workload
from analysis.scaling.services import Services, kilotokens_of, work_of
from contracts.arrow import write_rows
from contracts.folder import SweepFolder
from contracts.records import GIL, STEPS, GilRow, StepRow

LOOP, OTHER = 11, 12
PROMPT = 4096.0
OUTPUT = 16
LOOKS_A_SECOND = 500
WINDOW_S = 3.0

TRUTH = Law(
    services=Services(
        loop=np.array([2.0, 0.10, 0.8, 0.0, 0.0]), others=np.array([1.0, 0.03, 0.4, 0.8, 0.0]), told=(0, 1, 2, 3)
    ),
    contention=0.5,
    own=1.2,
    core=0.5,
    spread=0.2,
    gathering=1.0,
    messages_else=1.0,
    device=np.array([15.0, 0.0, 0.0]),
    way_in=np.array([6.0, 2.0, 1.0]),
    front_end=np.array([0.05, 0.0005]),
    turns_a_token=1.0,
    percentiles={"ttft_ms:p50": 1.0},
)


def lawful_sweep(
    path: Path,
    *,
    concurrency: Sequence[int] = (24, 48, 96),
    batches: Sequence[int] = (1, 8),
    blocks: int = 2,
    law: Law = TRUTH,
    wait: Callable[[int, int, float], float] = lambda _users, _batch, wait_ms: wait_ms,
) -> Path:
    """Write a sweep whose cells follow `law`; `wait` may give another GIL wait than the law's, by users and batch."""
    points = [(batch, users, block) for block in range(1, blocks + 1) for batch in batches for users in concurrency]
    solved = {(b, n): law.solve(Workload(n, PROMPT, OUTPUT, b)) for b, n, _ in points}
    cells = [(str(b), n, block, _recipe(law, solved[b, n], n)) for b, n, block in points]
    folder = SweepFolder(write_sweep(path, cells))
    for seed, ((batch, users, _), cell) in enumerate(zip(points, folder.cell_folders(), strict=True)):
        at = solved[batch, users]
        phases = cell.read().phases
        assert phases.steady_start_ns is not None
        assert phases.steady_end_ns is not None
        rng = np.random.default_rng(seed)
        steps = _steps(at, phases.steady_start_ns - S // 2, phases.steady_end_ns + S // 2, rng)
        write_rows(cell.steps, STEPS, steps)
        looks = _looks(law, at, wait(users, batch, at.wait_ms), steps, rng)
        write_rows(cell.gil, GIL, looks)
    return folder.path


def _work(at: Predicted, arriving: float, messages: float) -> Any:
    return work_of(at.active, arriving, messages, kilotokens_of(PROMPT, arriving))


def _recipe(law: Law, at: Predicted, users: int) -> Recipe:
    arriving = at.active / OUTPUT
    held = law.services.held_ms(_work(at, arriving, at.messages_a_request * arriving))
    turn = law.own * held[0] + law.core * held[1]
    return Recipe(
        users=users,
        osl=OUTPUT,
        ttft_ms=at.ttft_ms,
        itl_ms=at.step_ms,
        jitter=0.02,
        window_s=WINDOW_S,
        executor_cpu=turn / at.step_ms - 0.01,  # the recipe has a hundredth in the queue
        proxy_cpu=float(law.front_end @ (1.0, at.req_s)),
    )


def _steps(at: Predicted, start: int, end: int, rng: np.random.Generator) -> list[StepRow]:
    rows: list[StepRow] = []
    length = int(at.step_ms * MS)
    arrived = 0
    for iteration, t in enumerate(range(start + length, end, length)):
        arriving = int(rng.poisson(at.active / OUTPUT))
        messages = int(rng.binomial(arriving, at.messages_a_request))
        known = {
            "t_ns": t,
            "iteration": iteration,
            "rank": 0,
            "host_step_ms": at.step_ms,
            "prev_device_step_ms": 15.0,
            "scheduled_requests": round(at.active),
            "new_requests": arrived,
            "ctx_tokens": int(arrived * PROMPT),
            "rpc_messages": messages,
            "rpc_requests": arriving,
        }
        rows.append(StepRow(**{name: known.get(name) for name in StepRow.__dataclass_fields__}))  # type: ignore[arg-type]
        arrived = arriving
    return rows


def _looks(law: Law, at: Predicted, wait_ms: float, steps: list[StepRow], rng: np.random.Generator) -> list[GilRow]:
    """Look at random moments: who holds, by the work of the step; whether the loop waits, in the others' time."""
    ends = np.array([row.t_ns for row in steps])
    times = np.sort(rng.uniform(ends[0], ends[-1], int((ends[-1] - ends[0]) / S * LOOKS_A_SECOND))).astype(np.int64)
    rows = []
    for number, t in enumerate(times.tolist()):
        step = steps[int(np.searchsorted(ends, t))]
        own = law.services.held_ms(_work(at, step.new_requests or 0, 0))[0] / at.step_ms
        theirs = law.services.held_ms(_work(at, step.rpc_requests or 0, step.rpc_messages or 0))[1] / at.step_ms
        draw = rng.uniform()
        holder = LOOP if draw < own else OTHER if draw < own + theirs else None
        waits = holder != LOOP and rng.uniform() < wait_ms / at.step_ms / max(1 - own, 0.05)
        rows.append(
            GilRow(
                t_ns=t, locked=holder is not None, holder=holder, holder_sleeps=False, function=None,
                waiting=[LOOP] if waits else [], runnable=[], running=[], cold=[], cold_weight=1, clocked=[],
                cpu_clock_ns=[], queue_clock_ns=[], switches=number, missed=0, cpu_ns=0,
                appeared=[LOOP, OTHER] if number == 0 else [],
                names=["executor_loop", "rpc_server_thread"] if number == 0 else [], gone=[],
            )
        )  # fmt: skip
    return rows
