"""The executor loop's GIL wait a step: the wait sampler's looks joined with the log's steps on their one clock."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.window import NS_PER_MS

LONGEST_GAP_NS = 100 * NS_PER_MS
_BATCHES = 20

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepWaits:
    """The executor loop's GIL wait inside its steps, over `steps` of them that the looks cover.

    `share` is of the steps' wall time, with its standard error (batch means); `mean_ms` is that share of the mean
    step. `p50_ms` and `p99_ms` are over single steps, between whose few looks the wait is interpolated: they blur what
    is shorter than the gap between looks, `gap_ms` on the average. `asleep_ms` is the part of `mean_ms` in which the
    loop slept on the GIL's locks, which a thread can also find by its own clocks; the rest it was woken and had no core
    yet. The last two are means over the steps that took in
    new requests and those that did not (None where the log does not say or there are none).
    """

    steps: int
    share: float
    share_error: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    asleep_ms: float
    gap_ms: float
    with_arrivals_ms: float | None
    without_arrivals_ms: float | None


@dataclass(frozen=True, slots=True, eq=False)
class CoveredSteps:
    """The steps that looks cover, by their ends: `starts` and `ends` in ns, and their places in what was given."""

    starts: Ints
    ends: Ints
    step_ms: Floats
    rows: Ints


def covered_steps(t_ns: Ints, end_ns: Ints, step_ms: Floats) -> CoveredSteps | None:
    """Find the steps that lie between looks; None as `waits_per_step` says."""
    order = np.argsort(end_ns, kind="stable")
    ends, lengths = end_ns[order], step_ms[order]
    if len(t_ns) < 2 or len(ends) < 2 or np.median(np.diff(ends)) <= 0:
        return None
    starts = step_starts(ends, lengths)
    gaps = np.concatenate([[0], np.cumsum(np.diff(t_ns) > LONGEST_GAP_NS)])
    from_look = np.searchsorted(t_ns, starts, side="right") - 1
    to_look = np.searchsorted(t_ns, ends, side="left")
    inside = (from_look >= 0) & (to_look < len(t_ns)) & (starts < ends)
    inside[inside] = gaps[from_look[inside]] == gaps[to_look[inside]]
    if not inside.any():
        return None
    return CoveredSteps(starts[inside], ends[inside], lengths[inside], order[inside])


def step_starts(ends: Ints, step_ms: Floats) -> Ints:
    """Give the starts (ns) of steps in the order of their ends; the log's times are rounded: turns do not overlap."""
    starts = ends - np.round(step_ms * NS_PER_MS).astype(np.int64)
    starts[1:] = np.maximum(starts[1:], ends[:-1])
    return starts


def inside_steps(t_ns: Ints, steps: CoveredSteps) -> Flags:
    """Say of each look whether it fell into one of the steps."""
    step_of = np.searchsorted(steps.ends, t_ns, side="right")
    looked: Flags = step_of < len(steps.ends)
    looked[looked] = t_ns[looked] >= steps.starts[step_of[looked]]
    return looked


def wait_of_each(t_ns: Ints, wants: Flags, steps: CoveredSteps, scale: float) -> Floats:
    """Give the wait in each of the steps (ms), interpolated between looks and scaled as in `waits_per_step`."""
    return scale * _interpolated(t_ns, wants, steps.starts, steps.ends)


def waits_per_step(
    t_ns: Ints,
    wants: Flags,
    end_ns: Ints,
    step_ms: Floats,
    new_requests: Floats | None = None,
    *,
    scale: float = 1.0,
    asleep: float = 1.0,
) -> StepWaits | None:
    """Join looks with steps on their one clock; a step lasts `step_ms` up to `end_ns`.

    `scale` is what a better estimate of the whole wait has over the share of looks: all results are multiplied by it.
    `asleep` is the part of the wait that is spent asleep.

    Steps before the first look, after the last, or across a gap without looks are left out; so are all, with None,
    where the ends of steps are not known to better than their length (a log whose times are whole seconds).
    """
    covered = covered_steps(t_ns, end_ns, step_ms)
    if covered is None:
        return None
    lengths = covered.step_ms
    looked = inside_steps(t_ns, covered)
    if not looked.any():
        return None
    share = scale * float(wants[looked].mean())
    single = wait_of_each(t_ns, wants, covered, scale)
    arrivals = None if new_requests is None else new_requests[covered.rows]
    p50, p99 = np.percentile(single, (50, 99))
    return StepWaits(
        steps=len(lengths),
        share=share,
        share_error=_batch_error(wants[looked].astype(np.float64)),
        mean_ms=share * float(lengths.mean()),
        p50_ms=float(p50),
        p99_ms=float(p99),
        asleep_ms=asleep * share * float(lengths.mean()),
        gap_ms=float(np.diff(t_ns).mean()) / NS_PER_MS,
        with_arrivals_ms=None if arrivals is None else _mean(single[arrivals > 0]),
        without_arrivals_ms=None if arrivals is None else _mean(single[arrivals == 0]),
    )


def _interpolated(t_ns: Ints, wants: Flags, starts: Ints, ends: Ints) -> Floats:
    """Integrate the wait over each span (ms), taking it to change linearly from look to look."""
    flags = wants.astype(np.float64)
    relative = (t_ns - t_ns[0]) / NS_PER_MS
    integral = np.concatenate([[0.0], np.cumsum((flags[1:] + flags[:-1]) / 2 * np.diff(relative))])
    at = [np.interp((edge - t_ns[0]) / NS_PER_MS, relative, integral) for edge in (starts, ends)]
    return np.asarray(at[1] - at[0], dtype=np.float64)


def _batch_error(values: Floats) -> float:
    """Estimate a mean's standard error from the means of consecutive batches: the values hang together over time."""
    if len(values) < 2 * _BATCHES:
        return float("nan")
    means = [batch.mean() for batch in np.array_split(values, _BATCHES)]
    return float(np.std(means, ddof=1) / np.sqrt(_BATCHES))


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
