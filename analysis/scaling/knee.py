"""The knee: where more users stop paying, for throughput, and where waiting begins to grow faster than they do.

Throughput over concurrency is fitted by the universal scalability law (Gunther 2007),
X(N) = lambda N / (1 + alpha (N - 1) + beta N (N - 1)). In closed loop response time is N / X, and the knee is the N of
greatest power X / (N / X) = X^2 / N (Kleinrock 1979): below it throughput grows by more than half of what users do,
above it by less. For latencies and the GIL wait it is the first step between two concurrencies that were run over which
every block's value grew by a greater factor than the users.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from analysis.compare import MEASURES
from analysis.plan import Setting
from analysis.scaling.heldout import HOLDS_BELOW
from analysis.study import CellStudy

FEWEST_CONCURRENCIES = 3
CONCURRENCIES_FOR_BETA = 4
THROUGHPUT = "output_tok_s"
GROWING = ("ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "host_step_ms.mean", "gil_wait_ms_per_step.mean")
_LABELS = {measure.name: measure.label for measure in MEASURES}
_VALUES = {measure.name: measure.value for measure in MEASURES}


@dataclass(frozen=True, slots=True)
class Usl:
    """A fitted universal scalability law: `rate` (lambda) tok/s a user alone, `alpha` queueing, `beta` crosstalk.

    `beta` is 0 with fewer than four concurrencies. `residual` is the root mean square of relative residuals, `error`
    the mean size of those of each concurrency by the law of the others.
    """

    rate: float
    alpha: float
    beta: float
    residual: float
    error: float

    def __call__(self, users: float) -> float:
        return usl(users, self.rate, self.alpha, self.beta)

    @property
    def holds(self) -> bool:
        return self.error <= HOLDS_BELOW

    @property
    def knee(self) -> float:
        """Give the N of greatest power; infinite where throughput grows with the users for ever."""
        return knee_of(self.alpha, self.beta)


@dataclass(frozen=True, slots=True)
class Knee:
    """One setting's answer. `at` is None where there is none in the range, or none can be told; `sentence` says why.

    `low` and `high` are its span over the blocks, each fitted alone.
    """

    setting: Setting
    law: Usl | None
    at: float | None
    low: float | None
    high: float | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Growth:
    """A quantity of one setting from one concurrency that was run to the next: `slope` is d ln value / d ln users.

    `low` and `high` are over the blocks; above 1 it grew by a greater factor than the users.
    """

    setting: Setting
    name: str
    label: str
    start: int
    end: int
    slope: float
    low: float
    high: float
    blocks: int

    @property
    def faster(self) -> bool:
        """Say whether it outgrew the users in every block, of at least two."""
        return self.blocks > 1 and self.low > 1


def usl(users: float, rate: float, alpha: float, beta: float) -> float:
    return rate * users / (1 + alpha * (users - 1) + beta * users * (users - 1))


def knee_of(alpha: float, beta: float) -> float:
    """Solve d(X^2 / N) / dN = 0: 3 beta N^2 + (alpha - beta) N - (1 - alpha) = 0."""
    if beta <= 0:
        return math.inf if alpha <= 0 else (1 - alpha) / alpha
    half = (alpha - beta) / (6 * beta)
    return -half + math.sqrt(half * half + (1 - alpha) / (3 * beta))


def find_knee(setting: Setting, points: Sequence[tuple[int, int, float]]) -> Knee:
    """Find a setting's knee from (concurrency, block, tok/s) of its finished cells."""
    users = sorted({concurrency for concurrency, _, _ in points})
    if len(users) < FEWEST_CONCURRENCIES:
        return Knee(setting, None, None, None, None, f"{len(users)} concurrencies; a knee takes three or more")
    law = fit_usl([(concurrency, value) for concurrency, _, value in points])
    first, last = users[0], users[-1]
    if not law.holds:
        return Knee(
            setting, law, None, None, None,
            f"the scalability law does not hold: each concurrency by the law of the others is wrong by {law.error:.0%}",
        )  # fmt: skip
    at = law.knee
    if at > last:
        where = "" if math.isinf(at) else f"; continued, the law has it at {at:,.0f}, which was not run"
        return Knee(setting, law, None, None, None, f"no knee in the range {first:,} to {last:,}{where}")
    if at < first:
        return Knee(
            setting, law, None, None, None,
            f"no knee in the range {first:,} to {last:,}: it lies below, throughput grows by less than half of what "
            "users do throughout",
        )  # fmt: skip
    alone = _of_blocks(points, users)
    span = f" ({min(alone):,.0f} to {max(alone):,.0f} over {len(alone)} blocks)" if len(alone) > 1 else ""
    return Knee(
        setting, law, at, min(alone, default=None), max(alone, default=None), f"knee at {at:,.0f} in flight{span}"
    )  # fmt: skip


def fit_usl(points: Sequence[tuple[int, float]]) -> Usl:
    """Fit (concurrency, throughput) by least squares of relative errors."""
    rate, alpha, beta = _fit(points)
    residual = math.sqrt(float(np.mean([(usl(n, rate, alpha, beta) / x - 1) ** 2 for n, x in points])))
    errors = []
    for left in sorted({n for n, _ in points}):
        known = _fit([point for point in points if point[0] != left])
        mean = float(np.mean([x for n, x in points if n == left]))
        errors.append(abs(usl(left, *known) / mean - 1))
    return Usl(rate, alpha, beta, residual, float(np.mean(errors)))


def _fit(points: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    users = np.array([n for n, _ in points], dtype=np.float64)
    values = np.array([x for _, x in points], dtype=np.float64)
    free = 3 if len(set(users.tolist())) >= CONCURRENCIES_FOR_BETA else 2
    scale = float(users.max())

    def misses(p: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        beta = p[2] / scale**2 if free == 3 else 0.0
        fitted = p[0] * users / (1 + p[1] / scale * (users - 1) + beta * users * (users - 1))
        return np.asarray(fitted / values - 1)

    start = [float((values / users).max()), 0.1, 0.1][:free]
    found = optimize.least_squares(misses, start, bounds=([0.0] * free, [np.inf, scale, np.inf][:free]), x_scale=start)
    rate, alpha = float(found.x[0]), float(found.x[1]) / scale
    return rate, alpha, float(found.x[2]) / scale**2 if free == 3 else 0.0


def _of_blocks(points: Sequence[tuple[int, int, float]], users: Sequence[int]) -> list[float]:
    """Give the knees of the blocks that ran every concurrency."""
    found = []
    for block in sorted({block for _, block, _ in points}):
        own = [(n, x) for n, b, x in points if b == block]
        if len({n for n, _ in own}) == len(users):
            _, alpha, beta = _fit(own)
            found.append(knee_of(alpha, beta))
    return [knee for knee in found if math.isfinite(knee)]


def throughput_points(cells: Sequence[CellStudy]) -> list[tuple[int, int, float]]:
    """Give (concurrency, block, tok/s) of the finished cells."""
    return [
        (cell.tables.info.concurrency, cell.tables.info.block, cell.metrics.output_tok_s)
        for cell in cells
        if cell.tables.done and cell.metrics.output_tok_s
    ]


def growths(setting: Setting, cells: Sequence[CellStudy]) -> list[Growth]:
    """Give the growth of every quantity of GROWING over every step between concurrencies, paired within blocks."""
    found = []
    for name in GROWING:
        pick = _VALUES[name]
        values = {
            (cell.tables.info.concurrency, cell.tables.info.block): value
            for cell in cells
            if cell.tables.done and (value := pick(cell.metrics)) is not None and value > 0
        }
        users = sorted({concurrency for concurrency, _ in values})
        for start, end in itertools.pairwise(users):
            slopes = _slopes(values, start, end)
            if slopes:
                mean = float(np.mean(slopes))
                found.append(
                    Growth(setting, name, _LABELS[name], start, end, mean, min(slopes), max(slopes), len(slopes))
                )
    return found


def _slopes(values: Mapping[tuple[int, int], float], start: int, end: int) -> list[float]:
    blocks = sorted({block for n, block in values if n == start} & {block for n, block in values if n == end})
    return [math.log(values[end, b] / values[start, b]) / math.log(end / start) for b in blocks]
