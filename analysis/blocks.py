"""Settings against a baseline in a randomised block design, with intervals that hold together.

A block runs every setting once, close in time. The model is log value = block + setting + error, so that a machine that
drifts between blocks, or is slower for a while, does not look like a knob; the error's variance is pooled over all
settings, which is what makes three blocks enough for several settings. The intervals are Dunnett's: at 95 % all of a
family (the settings of one measure at one concurrency) hold their truths at once. With a single setting that is the
paired t interval. Cells that are missing are left out; the least-squares estimate then uses what the others tell of
their block.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

CONFIDENCE = 0.95
_SEED = 20_000  # of the quasi-random integration: equal questions get equal answers

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A setting's log value less the baseline's, and half the width of its simultaneous interval.

    `reach` is None where no degree of freedom is left to know the error from.
    """

    difference: float
    reach: float | None


def against_baseline(logs: Mapping[tuple[int, int], float], settings: Sequence[int]) -> dict[int, Estimate]:
    """Estimate each of `settings` against setting 0 from log values by (block, setting).

    Blocks without setting 0 are not used; settings that share no block with it are not in the answer.
    """
    blocks = sorted({block for block, setting in logs if setting == 0})
    present = [n for n in settings if any((block, n) in logs for block in blocks)]
    if not present:
        return {}
    cells = [(block, n) for block in blocks for n in (0, *present) if (block, n) in logs]
    design = np.zeros((len(cells), len(blocks) + len(present)))
    for row, (block, n) in enumerate(cells):
        design[row, blocks.index(block)] = 1.0
        if n:
            design[row, len(blocks) + present.index(n)] = 1.0
    values = np.array([logs[cell] for cell in cells])
    inverse = np.linalg.pinv(design.T @ design)
    fitted = inverse @ design.T @ values
    freedom = len(cells) - design.shape[1]
    found = dict(zip(present, fitted[len(blocks) :].tolist(), strict=True))
    if freedom < 1:
        return {n: Estimate(difference, None) for n, difference in found.items()}
    variance = float(((values - design @ fitted) ** 2).sum()) / freedom
    part = inverse[len(blocks) :, len(blocks) :]
    scale = np.sqrt(np.diag(part))
    critical = critical_value(freedom, _rounded(part / np.outer(scale, scale)))
    reaches = critical * np.sqrt(variance) * scale
    return {n: Estimate(found[n], float(reach)) for n, reach in zip(present, reaches, strict=True)}


def _rounded(correlation: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(float(value), 3) for value in row) for row in correlation)


@functools.lru_cache(maxsize=256)
def critical_value(freedom: int, correlation: tuple[tuple[float, ...], ...]) -> float:
    """Give the c for which all of |T_i| <= c with probability 95 %, T multivariate t with these correlations."""
    count = len(correlation)
    alone = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    if count == 1:
        return alone
    shape: Any = np.array(correlation)

    def short(c: float) -> float:
        bound = np.full(count, c)
        held = stats.multivariate_t.cdf(bound, shape=shape, df=freedom, lower_limit=-bound, random_state=_SEED)
        return float(held) - CONFIDENCE

    bonferroni = float(stats.t.ppf(1 - (1 - CONFIDENCE) / 2 / count, freedom))
    return float(optimize.brentq(short, alone * 0.99, bonferroni * 1.01, xtol=1e-3))
