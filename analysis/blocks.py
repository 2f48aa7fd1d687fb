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
_ODD = 0.01
_NO_ROOM = 1e-9  # a cell that alone tells its block or its setting is never out of line
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
    fit = _fit(logs, settings)
    if fit is None:
        return {}
    found = dict(zip(fit.settings, fit.effects.tolist(), strict=True))
    if fit.freedom < 1:
        return {n: Estimate(difference, None) for n, difference in found.items()}
    scale = np.sqrt(np.diag(fit.covariance))
    critical = critical_value(fit.freedom, _rounded(fit.covariance / np.outer(scale, scale)))
    reaches = critical * np.sqrt(fit.variance) * scale
    return {n: Estimate(found[n], float(reach)) for n, reach in zip(fit.settings, reaches, strict=True)}


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """The block model by least squares: `effects` of `settings` against setting 0, the `residuals` of `cells`.

    `leverages` are the diagonal of the hat matrix; `covariance` is the effects', in units of the error's variance.
    """

    cells: Sequence[tuple[int, int]]
    settings: Sequence[int]
    effects: Floats
    covariance: Floats
    residuals: Floats
    leverages: Floats
    freedom: int

    @property
    def variance(self) -> float:
        return float((self.residuals**2).sum()) / self.freedom


def _fit(logs: Mapping[tuple[int, int], float], settings: Sequence[int]) -> _Fit | None:
    """Fit the cells of the blocks that hold setting 0; None where no other setting shares a block with it."""
    blocks = sorted({block for block, setting in logs if setting == 0})
    present = [n for n in settings if any((block, n) in logs for block in blocks)]
    if not present:
        return None
    cells = [(block, n) for block in blocks for n in (0, *present) if (block, n) in logs]
    design = np.zeros((len(cells), len(blocks) + len(present)))
    for row, (block, n) in enumerate(cells):
        design[row, blocks.index(block)] = 1.0
        if n:
            design[row, len(blocks) + present.index(n)] = 1.0
    values = np.array([logs[cell] for cell in cells])
    inverse = np.linalg.pinv(design.T @ design)
    fitted = inverse @ design.T @ values
    return _Fit(
        cells=cells,
        settings=present,
        effects=fitted[len(blocks) :],
        covariance=inverse[len(blocks) :, len(blocks) :],
        residuals=values - design @ fitted,
        leverages=np.einsum("ij,jk,ik->i", design, inverse, design),
        freedom=len(cells) - design.shape[1],
    )


@dataclass(frozen=True, slots=True)
class Odd:
    """Cells of which one is out of line: `off` is its log value less what its block and its setting have elsewhere.

    With two settings a block's two cells are out of line alike and nothing tells which of them is: then both are here.
    """

    cells: tuple[tuple[int, int], ...]
    off: float


def odd_cell(logs: Mapping[tuple[int, int], float], settings: Sequence[int]) -> Odd | None:
    """Find the cell that is furthest out of line, if chance does not explain it.

    Its deleted residual over the error that the other cells have (an externally studentised residual) is t distributed;
    it counts beyond the 1 % point that is corrected for the number of cells.
    """
    fit = _fit(logs, settings)
    if fit is None or fit.freedom < 2:
        return None
    room = 1.0 - fit.leverages
    free = room > _NO_ROOM
    deleted = fit.residuals[free] / room[free]
    rest = np.maximum((fit.residuals**2).sum() - fit.residuals[free] * deleted, 0.0) / (fit.freedom - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.abs(np.nan_to_num(deleted * np.sqrt(room[free]) / np.sqrt(rest), posinf=np.inf, neginf=-np.inf))
    if not len(sizes) or sizes.max() <= stats.t.ppf(1 - _ODD / 2 / len(sizes), fit.freedom - 1):
        return None
    worst = np.flatnonzero(np.isclose(sizes, sizes.max(), rtol=1e-6))
    cells = [cell for cell, kept in zip(fit.cells, free, strict=True) if kept]
    return Odd(tuple(cells[n] for n in worst), float(deleted[worst[0]]))


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
