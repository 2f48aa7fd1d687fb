"""What an executor-loop step is made of: host work, GIL wait, wait for the device, and the rest.

By the looks that fell into steps (analysis.gil.steps). At a look the loop's thread
  holds the GIL, or runs without it (native code; a core, or the queue for one)  -> host work
  wants the GIL                                                                   -> GIL wait
  is blocked elsewhere                                                            -> the device, as far as its step
                                                                                     reaches; what is more: other
A share of looks times the mean step is that part's mean time; the GIL wait is the same figure as gil_wait_ms_per_step.
With overlap the device works beside the host: its part is the time that the loop waits for it, not its whole step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from analysis.gil.looks import LoopLooks
from analysis.gil.steps import Floats, Ints, covered_steps, inside_steps


@dataclass(frozen=True, slots=True)
class StepParts:
    """Mean times of a step, ms; the first four add up to `step_ms`.

    `native_ms` is the part of `host_ms` without the GIL. `device_ms` and `native_ms` are None where the records do not
    tell (`other_ms` then holds what the device's wait would be), `host_ms` where there are no looks: `other_ms` is
    then all but the GIL wait, which is the loop's own account. `looks` fell into `steps` steps; `error` is the largest
    standard error of a part as a share of the step, sqrt(p (1 - p) / looks).
    """

    host_ms: float | None
    gil_wait_ms: float
    device_ms: float | None
    other_ms: float
    step_ms: float
    native_ms: float | None
    steps: int
    looks: int
    error: float | None


PARTS = ("host_ms", "gil_wait_ms", "device_ms", "other_ms")


def step_parts(
    loop: LoopLooks | None, end_ns: Ints, step_ms: Floats, device_ms: Floats, own_ms: Floats
) -> StepParts | None:
    """Divide the mean step. The arrays are of one rank's steps in the window.

    `device_ms` is the device's time of each step and `own_ms` the loop's own account of its GIL wait, NaN where not
    told. None when neither looks nor the loop tell of a wait.
    """
    covered = None if loop is None else covered_steps(loop.t_ns, end_ns, step_ms)
    if loop is None or covered is None:
        return _by_own_account(step_ms, own_ms)
    inside = inside_steps(loop.t_ns, covered)
    looks = int(inside.sum())
    if not looks:
        return _by_own_account(step_ms, own_ms)
    waits = min(loop.scale * float(loop.wants[inside].mean()), 1.0)
    with_gil, native = float(loop.holds[inside].mean()), float(loop.runs[inside].mean())
    fit = min(1.0, (1.0 - waits) / (with_gil + native)) if with_gil + native else 1.0  # the wait's estimate goes first
    with_gil, native = with_gil * fit, native * fit
    elsewhere = max(1.0 - waits - with_gil - native, 0.0)
    step = float(covered.step_ms.mean())
    device = _mean(device_ms)
    waited_for_it = None if device is None else min(elsewhere * step, device)
    return StepParts(
        host_ms=(with_gil + native) * step,
        gil_wait_ms=waits * step,
        device_ms=waited_for_it,
        other_ms=elsewhere * step - (waited_for_it or 0.0),
        step_ms=step,
        native_ms=native * step,
        steps=len(covered.ends),
        looks=looks,
        error=max(float(np.sqrt(p * (1 - p) / looks)) for p in (with_gil + native, waits, elsewhere)),
    )


def _by_own_account(step_ms: Floats, own_ms: Floats) -> StepParts | None:
    own, step = _mean(own_ms), _mean(step_ms)
    if own is None or step is None:
        return None
    wait = min(own, step)
    return StepParts(None, wait, None, step - wait, step, None, len(step_ms), 0, None)


def mean_parts(cells: Sequence[StepParts]) -> StepParts | None:
    """Average cells, each alike; a part is known where every cell knows it. Errors of blocks do not hang together."""
    if not cells:
        return None
    values: dict[str, float | None] = {}
    for field in fields(StepParts):
        known = [value for cell in cells if (value := getattr(cell, field.name)) is not None]
        values[field.name] = sum(known) / len(known) if len(known) == len(cells) else None
    values["steps"], values["looks"] = sum(cell.steps for cell in cells), sum(cell.looks for cell in cells)
    if values["error"] is not None:
        values["error"] = float(np.sqrt(sum((cell.error or 0.0) ** 2 for cell in cells)) / len(cells))
    if values["host_ms"] is None or values["device_ms"] is None:  # what one cell cannot tell apart stays together
        step, wait, host = values["step_ms"] or 0.0, values["gil_wait_ms"] or 0.0, values["host_ms"] or 0.0
        values["other_ms"] = step - wait - host
        values["device_ms"] = None
    return StepParts(**values)  # type: ignore[arg-type]


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
