"""Service times: how long each operation holds rank 0's GIL, by the executor loop and by the other threads.

Measured, not assumed: every look at the GIL falls into a step of which the log tells what was to be done, and the
chance of finding a thread holding is its service times times that work, over the step's length. Least squares over all
looks, with no service time below 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from analysis.gil.steps import Floats
from analysis.scaling.points import KILO, OPERATIONS, Observed

TELLING_SPREAD = 1.5
FEWEST_FOR_ERRORS = 3
MOST_TURNS = 1000  # of a least-squares search, which takes a handful
_STEP, _ACTIVE, _ARRIVING, _MESSAGE, _KILOTOKENS = range(len(OPERATIONS))


@dataclass(frozen=True, slots=True)
class Service:
    """GIL held for one operation, ms: by the loop's thread and by the others, with standard errors (jackknife).

    Errors are NaN with fewer than three cells.
    """

    operation: str
    loop_ms: float
    loop_error_ms: float
    others_ms: float
    others_error_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class Services:
    """Service times by operation, in the order of OPERATIONS; 0 for an operation that could not be told apart.

    `told` are the operations that were: submit messages only where their number a request varies, prompt tokens only
    where the lengths do; else their cost is within that of a request arriving.
    """

    loop: Floats
    others: Floats
    told: tuple[int, ...]

    def held_ms(self, work: Floats) -> tuple[float, float]:
        """Give how long the loop and the others hold the GIL in a step with this much work (`work_of`)."""
        return float(self.loop @ work), float(self.others @ work)


def work_of(active: float, arriving: float, messages: float, kilotokens: float) -> Floats:
    """Lay a step's work out in the order of OPERATIONS."""
    return np.array([1.0, active, arriving, messages, kilotokens])


def measured_work(cell: Observed) -> Floats:
    """Give a cell's own work a step."""
    return work_of(cell.active, cell.arriving, cell.messages or 0.0, cell.kilotokens)


def told_apart(cells: Sequence[Observed]) -> tuple[int, ...]:
    """Choose the operations whose costs these cells can tell from one another."""
    told = [_STEP, _ACTIVE, _ARRIVING]
    a_request = [cell.messages / cell.arriving for cell in cells if cell.messages is not None and cell.arriving]
    if a_request and max(a_request) > TELLING_SPREAD * min(a_request):
        told.append(_MESSAGE)
    shortest = min(cell.prompt_spread[0] for cell in cells)
    longest = max(cell.prompt_spread[1] for cell in cells)
    if longest > TELLING_SPREAD * shortest and any(cell.kilotokens for cell in cells):
        told.append(_KILOTOKENS)
    return tuple(told)


def fit_services(cells: Sequence[Observed], told: tuple[int, ...] | None = None) -> Services:
    """Estimate the service times from all looks of these cells (at least one)."""
    kept = told_apart(cells) if told is None else told
    own = [n for n in kept if n != _MESSAGE]  # messages are opened by the others; the loop sees requests
    loop = _solve(_sum(cells, "loop_matrix"), _sum(cells, "loop"), own)
    others = _solve(_sum(cells, "others_matrix"), _sum(cells, "others"), list(kept))
    return Services(loop, others, kept)


def service_table(cells: Sequence[Observed]) -> tuple[Service, ...]:
    """Give the service times with their errors, those that could be told apart."""
    whole = fit_services(cells)
    enough = len(cells) >= FEWEST_FOR_ERRORS
    without = [fit_services([*cells[:n], *cells[n + 1 :]], whole.told) for n in range(len(cells)) if enough]
    return tuple(
        Service(
            OPERATIONS[n],
            float(whole.loop[n]),
            _jackknife([one.loop[n] for one in without]),
            float(whole.others[n]),
            _jackknife([one.others[n] for one in without]),
        )
        for n in whole.told
    )


def _sum(cells: Sequence[Observed], name: str) -> Floats:
    return np.asarray(np.sum([getattr(cell.looks, name) for cell in cells], axis=0), dtype=np.float64)


def _solve(matrix: Floats, right: Floats, kept: list[int]) -> Floats:
    """Solve the normal equations with no coefficient below 0; columns are scaled to unit length first."""
    part = matrix[np.ix_(kept, kept)]
    scale = np.sqrt(np.maximum(np.diag(part), 1e-300))
    scaled = part / np.outer(scale, scale)
    values, vectors = np.linalg.eigh(scaled)
    sound = values > values.max() * 1e-9
    root = np.sqrt(values[sound])[:, None] * vectors[:, sound].T
    target = (vectors[:, sound].T @ (right[kept] / scale)) / np.sqrt(values[sound])
    found = np.zeros(len(OPERATIONS))
    found[kept] = optimize.nnls(root, target, maxiter=MOST_TURNS)[0] / scale
    return found


def _jackknife(values: Sequence[float]) -> float:
    count = len(values)
    if count < FEWEST_FOR_ERRORS:
        return float("nan")
    return float(np.sqrt((count - 1) / count * np.sum((np.array(values) - np.mean(values)) ** 2)))


def kilotokens_of(prompt_tokens: float, arriving: float) -> float:
    """Give the thousands of prompt tokens arriving in a step with so many requests."""
    return prompt_tokens * arriving / KILO
