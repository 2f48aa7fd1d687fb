"""The law: one GIL as a server, the executor loop and rank 0's other threads as its customers, users in closed loop.

Sources: the waiting term is mean value analysis of two customers at one processor-sharing server (Reiser and
Lavenberg 1980); the closed loop is Little's law. docs/scaling.md has every formula with its unit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, special

from analysis.gil.steps import Floats
from analysis.scaling.points import Observed, mean_latency
from analysis.scaling.services import MOST_TURNS, Services, fit_services, kilotokens_of, measured_work, work_of

FEWEST_POINTS = 3
FULLEST_FRONT_END = 0.97
WIDEST = 1.5
_TINY = 1e-9


class NoLawError(Exception):
    """These cells do not tell enough for a law; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked of the stack: users in closed loop, mean lengths, the batch size of submits (None: not known)."""

    concurrency: float
    prompt_tokens: float
    output_tokens: float
    batch_max: float | None
    think_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the law says of a workload; means, in ms where the name says so. `front_end_full` marks a saturated one."""

    active: float
    step_ms: float
    wait_ms: float
    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    req_s: float
    output_tok_s: float
    messages_a_request: float
    front_end_full: bool
    percentiles: Mapping[str, float]

    def percentile_ms(self, name: str) -> float:
        """Give a latency's percentile by its term's name; KeyError when the cells were not asked for it."""
        return self.percentiles[name] * mean_latency(self, name)


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """The parameters, by the names of docs/scaling.md.

    contention (kappa)  GIL wait over that of processor sharing
    own, core           what a turn takes of the loop's held time, and of the others'
    spread              standard deviation of a turn's host time over its mean
    gathering (gamma)   how readily submits gather into a message; None without batching in the data
    messages_else       messages a request where the batch size is not known
    device              ms a step, an active request, a thousand prompt tokens
    way_in              ms of TTFT in all, a step, a request arriving in the same step
    front_end           its cores at rest, and for a request a second
    turns_a_token       steps in which a request is active over its output tokens
    percentiles         of latencies over their means, by name
    """

    services: Services
    contention: float
    own: float
    core: float
    spread: float
    gathering: float | None
    messages_else: float
    device: Floats
    way_in: Floats
    front_end: Floats
    turns_a_token: float
    percentiles: Mapping[str, float]

    def solve(self, asked: Workload) -> Predicted:
        """Find how many requests are active when `concurrency` users are, and all that follows.

        The number of users that a number of active requests takes grows with it, so there is one answer.
        """
        least, most = _TINY, asked.concurrency
        if self._users(most, asked) <= asked.concurrency:
            return self._at(most, asked)
        active = optimize.brentq(lambda a: self._users(a, asked) - asked.concurrency, least, most, xtol=1e-6)
        return self._at(float(active), asked)

    def step(self, work: Floats) -> tuple[float, float]:
        """Give (step, GIL wait) in ms of a step with this much work: a fixed point, as each depends on the other."""
        loop, others = self.services.held_ms(work)
        device = float(self.device @ work[[0, 1, 4]])
        step = max(device, self.own * loop + self.core * others, _TINY)
        wait = 0.0
        for _ in range(200):
            wait = self.contention * loop * others / step
            new = mean_of_longer(device, wait + self.own * loop + self.core * others, self.spread)
            if abs(new - step) < 1e-9 * new:
                break
            step = (step + new) / 2
        return step, wait

    def messages_a_request(self, arriving: float, batch_max: float | None) -> float:
        """Give submit messages over the requests in them: 1 without batching, 1 / batch_max when all are full."""
        if batch_max is None or self.gathering is None:
            return self.messages_else
        return gathered(arriving, batch_max, self.gathering)

    def _users(self, active: float, asked: Workload) -> float:
        at = self._at(active, asked)
        return at.req_s / 1e3 * (at.e2e_ms + asked.think_ms)

    def _at(self, active: float, asked: Workload) -> Predicted:
        turns = max(asked.output_tokens * self.turns_a_token, 1.0)
        arriving = active / turns
        messages = self.messages_a_request(arriving, asked.batch_max)
        step, wait = self.step(
            work_of(active, arriving, messages * arriving, kilotokens_of(asked.prompt_tokens, arriving))
        )
        req_s = arriving / step * 1e3
        used = float(self.front_end @ (1.0, req_s))
        ttft = float(self.way_in @ way_in_terms(step, arriving, used))
        return Predicted(
            active=active,
            step_ms=step,
            wait_ms=wait,
            ttft_ms=ttft,
            tpot_ms=step * self.turns_a_token,
            e2e_ms=ttft + (turns - 1) * step,
            req_s=req_s,
            output_tok_s=req_s * asked.output_tokens,
            messages_a_request=messages,
            front_end_full=used >= FULLEST_FRONT_END,
            percentiles=self.percentiles,
        )


def fit_law(cells: Sequence[Observed]) -> Law:
    """Fit the law to these cells. Raises NoLawError where they are too few points, or something is not recorded."""
    if len({cell.key for cell in cells}) < FEWEST_POINTS - 1:
        raise NoLawError("the cells are all of one setting and concurrency")
    services = fit_services(cells)
    works = [measured_work(cell) for cell in cells]
    held = np.array([services.held_ms(work) for work in works])
    steps = np.array([cell.step_ms for cell in cells])
    waits = np.array([cell.wait_ms for cell in cells])
    shared = held[:, 0] * held[:, 1] / steps
    if not (shared > 0).all() or not waits.any():
        raise NoLawError("the looks at the GIL found no other thread than the executor loop holding it, or no wait")
    contention = float(np.mean(waits / shared))
    own, core = _turn(cells, held, contention * shared)
    device = _device(cells, works)
    front_end = _front_end(cells)
    law = Law(
        services=services,
        contention=contention,
        own=own,
        core=core,
        spread=0.0,
        gathering=_gathering(cells),
        messages_else=float(np.mean([(cell.messages or 0.0) / max(cell.arriving, _TINY) for cell in cells])),
        device=device,
        way_in=_way_in(cells, front_end),
        front_end=front_end,
        turns_a_token=float(np.median([c.active / max(c.arriving * c.output_tokens, _TINY) for c in cells])),
        percentiles=_percentiles(cells),
    )
    host = contention * shared + held @ (own, core)
    devices = np.array([float(device @ work[[0, 1, 4]]) for work in works])
    return _with_spread(law, devices, host, steps)


def asked_of(cell: Observed) -> Workload:
    """Give the workload that a cell ran."""
    return Workload(float(cell.concurrency), cell.prompt_tokens, cell.output_tokens, cell.batch_max, cell.think_ms)


def gathered(arriving: float, batch_max: float, gathering: float) -> float:
    """Give messages a request: of those arriving in a step, the more the fuller are messages, up to batch_max."""
    return 1 / batch_max + (1 - 1 / batch_max) / (1 + gathering * arriving)


def mean_of_longer(device_ms: float, host_ms: float, spread: float) -> float:
    """Mean of max(device, host time), the host time normal with this mean and standard deviation spread * mean.

    With overlap a turn lasts as long as the longer of the two; turns with arrivals take the host longer.
    """
    sigma = spread * host_ms
    if sigma <= 0:
        return max(device_ms, host_ms)
    z = (host_ms - device_ms) / sigma
    below = float(special.ndtr(z))
    return host_ms * below + device_ms * (1 - below) + sigma * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def way_in_terms(step_ms: float, arriving: float, front_end: float) -> Floats:
    """Lay out what TTFT is made of: a constant, steps, and queueing behind those that arrive in the same step."""
    return np.array([1.0, step_ms, arriving / (1 - min(front_end, FULLEST_FRONT_END))])


def _relative(terms: Floats, values: Floats) -> Floats:
    """Solve for coefficients of at least 0 with the least squares of relative errors."""
    weights = 1 / np.maximum(values, _TINY)
    return np.asarray(
        optimize.nnls(terms * weights[:, None], values * weights, maxiter=MOST_TURNS)[0], dtype=np.float64
    )


def _turn(cells: Sequence[Observed], held: Floats, waits: Floats) -> tuple[float, float]:
    known = [n for n, cell in enumerate(cells) if cell.loop_ms is not None]
    if not known:
        return 1.0, 0.0
    values = np.array([cells[n].loop_ms for n in known], dtype=np.float64) - waits[known]
    own, core = _relative(held[known], np.maximum(values, _TINY))
    return float(own), float(core)


def _device(cells: Sequence[Observed], works: Sequence[Floats]) -> Floats:
    known = [n for n, cell in enumerate(cells) if cell.device_ms]
    if not known:
        return np.zeros(3)
    terms = np.array([works[n][[0, 1, 4]] for n in known])
    return _relative(terms, np.array([cells[n].device_ms for n in known], dtype=np.float64))


def _front_end(cells: Sequence[Observed]) -> Floats:
    known = [cell for cell in cells if cell.front_end]
    if not known:
        return np.zeros(2)
    terms = np.array([[1.0, cell.req_s] for cell in known])
    return _relative(terms, np.array([cell.front_end for cell in known], dtype=np.float64))


def _way_in(cells: Sequence[Observed], front_end: Floats) -> Floats:
    terms = [way_in_terms(c.step_ms, c.arriving, float(front_end @ (1.0, c.req_s))) for c in cells]
    return _relative(np.array(terms), np.array([cell.ttft_ms for cell in cells]))


def _gathering(cells: Sequence[Observed]) -> float | None:
    known = [c for c in cells if c.batch_max is not None and c.messages is not None and c.arriving > 0]
    batched = [cell for cell in known if (cell.batch_max or 1) > 1]
    if not batched:
        return None

    def misses(gathering: Floats) -> list[float]:
        return [
            gathered(c.arriving, c.batch_max or 1, float(gathering[0])) / max((c.messages or 0) / c.arriving, _TINY) - 1
            for c in batched
        ]

    return float(optimize.least_squares(misses, [1.0], bounds=(0, np.inf)).x[0])


def _percentiles(cells: Sequence[Observed]) -> dict[str, float]:
    """Give the geometric mean over the cells of each percentile over its mean."""
    names = set.intersection(*(set(cell.percentiles) for cell in cells))
    return {
        name: math.exp(float(np.mean([math.log(max(cell.percentiles[name], _TINY)) for cell in cells])))
        for name in sorted(names)
    }


def _with_spread(law: Law, device: Floats, host: Floats, steps: Floats) -> Law:
    def misses(spread: float) -> float:
        fitted = [mean_of_longer(d, h, spread) for d, h in zip(device, host, strict=True)]
        return float(np.sum((np.array(fitted) / steps - 1) ** 2))

    best = optimize.minimize_scalar(misses, bounds=(0.0, WIDEST), method="bounded")
    return replace(law, spread=float(best.x))
