"""How wrong the law is where it was not fitted: each point is left out with all its blocks, and then predicted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.plan import Setting
from analysis.scaling.law import FEWEST_POINTS, Law, NoLawError, Predicted, asked_of, fit_law
from analysis.scaling.points import Observed

HOLDS_BELOW = 0.20


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that the law predicts: how it is called, where it is in what was measured and what is predicted."""

    name: str
    label: str
    unit: str
    measured: Callable[[Observed], float]
    predicted: Callable[[Predicted], float]


def percentile_quantity(name: str, label: str = "") -> Quantity:
    """Make a latency's percentile (`ttft_ms:p99`) a quantity."""
    return Quantity(
        name.replace(":", "."), label or name, "ms", lambda c: c.percentile_ms(name), lambda p: p.percentile_ms(name)
    )


QUANTITIES = (
    Quantity("gil_wait_ms_per_step", "GIL wait a step", "ms", lambda c: c.wait_ms, lambda p: p.wait_ms),
    Quantity("host_step_ms", "Host step", "ms", lambda c: c.step_ms, lambda p: p.step_ms),
    percentile_quantity("ttft_ms:p50", "TTFT p50"),
    Quantity("output_tok_s", "Output tokens", "tok/s", lambda c: c.output_tok_s, lambda p: p.output_tok_s),
)


@dataclass(frozen=True, slots=True)
class PointError:
    """One quantity at one point. `low` and `high` are the lowest and highest block, `measured` the blocks' mean.

    `fitted` is by the law of all points, `held_out` by the law of the others; None where the others give none.
    """

    setting: Setting
    concurrency: int
    blocks: int
    measured: float
    low: float
    high: float
    fitted: float
    held_out: float | None

    @property
    def residual(self) -> float:
        """Return the fitted value over the measured one, less 1."""
        return self.fitted / self.measured - 1

    @property
    def error(self) -> float | None:
        """Return the held-out prediction over the measured value, less 1."""
        return None if self.held_out is None else self.held_out / self.measured - 1


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One quantity's errors. `mean` is the mean size of the held-out errors, None where there are none.

    `repeat` is how far the mean of a point's blocks itself is uncertain: standard error over mean, averaged over the
    points with several blocks; None without. An error of that size is no fault of the law.
    """

    quantity: Quantity
    points: tuple[PointError, ...]
    mean: float | None
    worst: PointError | None
    repeat: float | None

    @property
    def holds(self) -> bool:
        return self.mean is not None and self.mean <= HOLDS_BELOW


def hold_out(cells: Sequence[Observed], law: Law, quantities: Sequence[Quantity] = QUANTITIES) -> tuple[HeldOut, ...]:
    """Predict every point from the others. Points: (setting, concurrency), in the order of the cells."""
    keys = list(dict.fromkeys(cell.key for cell in cells))
    groups = {key: [cell for cell in cells if cell.key == key] for key in keys}
    fitted = {key: [law.solve(asked_of(cell)) for cell in group] for key, group in groups.items()}
    left = {key: _without(cells, key) if len(keys) >= FEWEST_POINTS else None for key in keys}
    found = []
    for quantity in quantities:
        points = [_point(quantity, key, groups[key], fitted[key], left[key]) for key in keys]
        known = [point for point in points if point.error is not None]
        sizes = [abs(point.error) for point in known if point.error is not None]
        spreads = [spread for key in keys if (spread := _repeat(quantity, groups[key])) is not None]
        found.append(
            HeldOut(
                quantity,
                tuple(points),
                float(np.mean(sizes)) if sizes else None,
                max(known, key=lambda point: abs(point.error or 0.0), default=None),
                float(np.mean(spreads)) if spreads else None,
            )
        )
    return tuple(found)


def _without(cells: Sequence[Observed], key: tuple[Setting, int]) -> list[Predicted] | None:
    rest = [cell for cell in cells if cell.key != key]
    try:
        law = fit_law(rest)
    except NoLawError:
        return None
    return [law.solve(asked_of(cell)) for cell in cells if cell.key == key]


def _point(
    quantity: Quantity,
    key: tuple[Setting, int],
    group: Sequence[Observed],
    fitted: Sequence[Predicted],
    left: Sequence[Predicted] | None,
) -> PointError:
    measured = [quantity.measured(cell) for cell in group]
    return PointError(
        setting=key[0],
        concurrency=key[1],
        blocks=len(group),
        measured=float(np.mean(measured)),
        low=min(measured),
        high=max(measured),
        fitted=float(np.mean([quantity.predicted(one) for one in fitted])),
        held_out=None if left is None else float(np.mean([quantity.predicted(one) for one in left])),
    )


def _repeat(quantity: Quantity, group: Sequence[Observed]) -> float | None:
    if len(group) < 2:
        return None
    values = np.array([quantity.measured(cell) for cell in group])
    return float(values.std(ddof=1) / np.sqrt(len(values)) / values.mean()) if values.mean() else None
