"""A sweep's finished cells as the scaling law takes them: what was asked of rank 0 a step, and what came of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.gil.looks import LoopLooks
from analysis.gil.steps import CoveredSteps, Floats, Ints, covered_steps, inside_steps
from analysis.metrics import rank_zero
from analysis.plan import Setting
from analysis.slo import Term
from analysis.study import CellStudy

BATCH_KNOB = "TLLM_RPC_SUBMIT_BATCH_MAX"
_OF_REQUESTS = ("prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "e2e_ms")
_SERVER_BATCH = "submit_batch_max"
KILO = 1000.0
SHORTEST_STEP_MS = 1e-3
TTFT_P50 = Term("ttft_ms", 50.0, math.inf)


@dataclass(frozen=True, slots=True, eq=False)
class Looks:
    """The normal equations of one cell's looks at the GIL: who held it, against what the step had to do.

    A look in a step of T ms at which x units of an operation were done finds a thread holding with probability
    (sum over operations of service ms * x) / T. The matrices (k x k) are the sums over looks of z z', z = x / T (1/ms),
    in the order of `OPERATIONS`; `loop` and `others` (k) those of z * [the loop holds] and z * [another thread holds].
    The loop has its work with a request in the step that takes it, the others theirs in the step before.
    """

    count: int
    loop_matrix: npt.NDArray[np.float64]
    loop: Floats
    others_matrix: npt.NDArray[np.float64]
    others: Floats


OPERATIONS = ("step", "active request", "request arriving", "submit message", "1,000 prompt tokens arriving")


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """One finished cell. Means over the steps (or the requests) of its window; times in ms, None where not recorded.

    `batch_max` is the greatest number of requests in a submit message. `active`, `arriving`, `messages` and
    `kilotokens` are a step's: requests scheduled, requests reaching rank 0, submit messages, thousands of prompt tokens
    arriving. `prompt_spread` are the 5th and 95th percentile of prompt lengths. `loop_ms` is how long the loop's thread
    was on a core, in the queue for one, or waiting for the GIL by its own account. `front_end` is the CPU time (cores)
    of the busiest front end. `think_ms` is the users' pause between requests. `percentiles` are of the latencies asked
    for, by a term's name without its bound (`ttft_ms:p50` always), over the same latency's mean.
    """

    setting: Setting
    concurrency: int
    block: int
    batch_max: int | None
    active: float
    arriving: float
    messages: float | None
    kilotokens: float
    prompt_tokens: float
    prompt_spread: tuple[float, float]
    output_tokens: float
    step_ms: float
    device_ms: float | None
    loop_ms: float | None
    wait_ms: float
    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    percentiles: Mapping[str, float]
    req_s: float
    output_tok_s: float
    front_end: float | None
    think_ms: float
    looks: Looks

    def percentile_ms(self, name: str) -> float:
        """Give a latency's percentile by its term's name; KeyError when it was not asked for."""
        return self.percentiles[name] * mean_latency(self, name)

    @property
    def key(self) -> tuple[Setting, int]:
        """The point that this cell is a repeat of."""
        return (self.setting, self.concurrency)


def ramped(cell: CellStudy) -> bool:
    """Say whether the cell is a stage in which users were added or taken away all the time."""
    stage = cell.tables.info.stage
    return stage is not None and stage.get("ramp_from") is not None


class LeftOutError(Exception):
    """A cell that the law cannot take; the message says why."""


def observe(cell: CellStudy, think_s: float = 0.0, terms: Sequence[Term] = ()) -> Observed:
    """Take a cell's numbers. Raises LeftOutError when it is not done, not steady, or lacks a record of the law's."""
    tables, metrics = cell.tables, cell.metrics
    window, step, ttft = tables.window, metrics.host_step_ms, metrics.ttft_ms
    served = tables.requests.loc[tables.requests["success"] & tables.requests["in_window"], list(_OF_REQUESTS)]
    if not tables.done or window is None:
        raise LeftOutError("it is not finished")
    if ramped(cell):
        raise LeftOutError("its number of users changed")
    ended = (metrics.req_s or 0.0) * window.length_s
    if ended < tables.info.concurrency:
        raise LeftOutError(
            f"its window is too short for a steady state: {ended:,.0f} requests ended in it, of "
            f"{tables.info.concurrency:,} users"
        )
    steps = rank_zero(tables.steps)
    steps = steps[steps["in_window"]]
    done = work_of_steps(steps)
    if step is None or ttft is None or done is None or served.empty or not metrics.output_tok_s:
        raise LeftOutError("its log says nothing of the executor loop's steps and the requests that arrived in them")
    waits = metrics.gil.executor_steps if metrics.gil else None
    looks = _looks(metrics.gil.loop if metrics.gil else None, steps, done)
    if waits is None or looks is None:
        raise LeftOutError("it has no looks at the GIL that name the executor loop's thread")
    mean = done.mean()
    cpu, probe = cell.cpu, metrics.gil_probe_ms
    busy = None
    if cpu.executor is not None and cpu.executor_queued is not None:
        busy = (cpu.executor + cpu.executor_queued) * step.mean + (probe.mean if probe else waits.asleep_ms)
    lengths = served["prompt_tokens"].to_numpy(dtype=np.float64)
    low, high = np.percentile(lengths, (5, 95))
    return Observed(
        setting=tables.setting,
        concurrency=tables.info.concurrency,
        block=tables.info.block,
        batch_max=_batch_max(cell),
        active=float(mean["active"]),
        arriving=float(mean["arriving"]),
        messages=float(mean["messages"]) if "messages" in done else None,
        kilotokens=float(mean["taken_kilotokens"]),
        prompt_tokens=float(lengths.mean()),
        prompt_spread=(float(low), float(high)),
        output_tokens=float(served["output_tokens"].to_numpy(dtype=np.float64).mean()),
        step_ms=step.mean,
        device_ms=metrics.device_step_ms.mean if metrics.device_step_ms else None,
        loop_ms=busy,
        wait_ms=waits.mean_ms,
        ttft_ms=ttft.mean,
        tpot_ms=metrics.tpot_ms.mean if metrics.tpot_ms else step.mean,
        e2e_ms=metrics.e2e_ms.mean if metrics.e2e_ms else ttft.mean,
        percentiles=_percentiles(served, terms),
        req_s=ended / window.length_s,
        output_tok_s=metrics.output_tok_s,
        front_end=cpu.front_end,
        think_ms=think_s * 1e3,
        looks=looks,
    )


def term_name(term: Term) -> str:
    """Name a term's percentile without its bound: `ttft_ms:p99`."""
    return f"{term.metric}:p{term.percent:g}"


def mean_latency(of: Any, name: str) -> float:
    """Give the mean that a percentile belongs to, of something with ttft_ms, tpot_ms and e2e_ms."""
    return float(getattr(of, name.partition(":")[0]))


def _percentiles(served: pd.DataFrame, terms: Sequence[Term]) -> dict[str, float]:
    found = {}
    for term in (TTFT_P50, *terms):
        values = served[term.metric].dropna().to_numpy(dtype=np.float64)
        if len(values) and values.mean() > 0:
            found[term_name(term)] = float(np.percentile(values, term.percent) / values.mean())
    return found


def work_of_steps(steps: pd.DataFrame) -> pd.DataFrame | None:
    """Give what each step had to do; None where the log says nothing of arrivals.

    Columns: active, taken and taken_kilotokens (requests and thousands of prompt tokens that the loop took), arriving,
    arriving_kilotokens and, where known, messages. What the loop takes reached rank 0 in the step before.
    """
    ordered = steps.sort_values("t_ns")
    taken = ordered["new_requests"].astype("float64")
    tokens = ordered["ctx_tokens"].astype("float64").fillna(0.0) / KILO
    arriving = ordered["rpc_requests"].astype("float64") if ordered["rpc_requests"].notna().any() else taken.shift(-1)
    if not arriving.notna().any():
        return None
    done = pd.DataFrame(
        {
            "active": ordered["scheduled_requests"].astype("float64"),
            "taken": (taken if taken.notna().any() else arriving.shift(1)).fillna(0.0),
            "taken_kilotokens": tokens,
            "arriving": arriving.fillna(0.0),
            "arriving_kilotokens": tokens.shift(-1).fillna(0.0),
        }
    )
    if ordered["rpc_messages"].notna().any():
        done["messages"] = ordered["rpc_messages"].astype("float64").fillna(0.0)
    return done.reindex(steps.index)


def _looks(found: LoopLooks | None, steps: pd.DataFrame, done: pd.DataFrame) -> Looks | None:
    if found is None:
        return None
    end_ns: Ints = steps["t_ns"].to_numpy(dtype=np.int64)
    covered = covered_steps(found.t_ns, end_ns, steps["host_step_ms"].to_numpy(dtype=np.float64))
    if covered is None:
        return None
    inside = inside_steps(found.t_ns, covered)
    step_of = np.searchsorted(covered.ends, found.t_ns[inside], side="right")
    loop = found.holds.astype(np.float64)[inside]
    others = found.others.astype(np.float64)[inside]
    own = _per_ms(done, ("taken", None, "taken_kilotokens"), covered)[step_of]
    theirs = _per_ms(done, ("arriving", "messages", "arriving_kilotokens"), covered)[step_of]
    return Looks(len(own), own.T @ own, own.T @ loop, theirs.T @ theirs, theirs.T @ others) if len(own) else None


def _per_ms(done: pd.DataFrame, names: tuple[str, str | None, str], covered: CoveredSteps) -> npt.NDArray[np.float64]:
    """Give the covered steps' work by operation over their lengths (1/ms); an operation without a column is none."""
    columns = [np.ones(len(done)), done["active"].to_numpy()]
    columns += [done[name].to_numpy() if name in done else np.zeros(len(done)) for name in names]
    lengths = np.maximum(covered.step_ms, SHORTEST_STEP_MS)
    return np.asarray(np.column_stack(columns)[covered.rows] / lengths[:, None], dtype=np.float64)


def _batch_max(cell: CellStudy) -> int | None:
    told = cell.tables.info.server.get("settings") or {}
    text = dict(cell.tables.setting.pairs).get(BATCH_KNOB, told.get(_SERVER_BATCH))
    try:
        return max(int(str(text)), 1)
    except ValueError:
        return None
