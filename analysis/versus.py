"""One sweep against another: two commits, two stacks, two days. Refuses what must not be compared.

Blocks of different sweeps did not run close in time, so they are not paired: the effect is the difference of the mean
logs, its 95 % interval Welch's t (unequal variances). A machine that was slower on one of the two days looks like an
effect here and nothing in the numbers can tell; an A/B inside one sweep does not have that weakness.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.blocks import CONFIDENCE
from analysis.compare import BLOCKS_FOR_A_VERDICT, MEASURES, Measure, verdict_of
from analysis.plan import Setting
from analysis.study import Study
from contracts.errors import UsageError

MUST_AGREE = (
    "drive", "endpoint", "isl", "osl", "isl_spread", "osl_spread", "lengths_digest", "prefix.groups", "prefix.tokens",
    "session.turns", "session.turn_isl", "session.max_context", "trace.format", "trace.digest", "trace.time_scale",
    "trace.turns", "tokenizer.digest", "arrival", "rate_rps", "burstiness", "think_s",
    "duration_s", "requests", "workers",
)  # fmt: skip
_UNSAID = {"arrival": "closed", "burstiness": "1.0", "think_s": "0.0"}  # what sweeps of before these options did
SAME_MACHINE = ("cpu", "cpus_allowed", "memory_gib", "architecture")
_GATE = re.compile(r"^\s*([A-Za-z_.0-9]+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*%\s*$")


@dataclass(frozen=True, slots=True)
class Difference:
    """A measure in the other sweep over that in the base, for one setting at one concurrency. See analysis.compare."""

    measure: Measure
    setting: Setting
    concurrency: int
    base_cells: int
    other_cells: int
    base: float
    other: float
    ratio: float
    low: float | None
    high: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Gate:
    """`NAME > +5%` or `NAME < -5%`: trips when the interval lies wholly beyond the threshold."""

    text: str
    measure: str
    above: bool
    factor: float

    @classmethod
    def parse(cls, text: str) -> "Gate":
        """Read a gate. Raises UsageError, naming the measures there are."""
        match = _GATE.match(text)
        names = [measure.name for measure in MEASURES]
        if match is None or match[1] not in names:
            raise UsageError(
                f"--fail-if {text!r}: expected NAME > +5% or NAME < -5%, with a NAME of {', '.join(names)}"
            )
        return cls(text.strip(), match[1], match[2] == ">", 1 + float(match[3]) / 100)

    def trips(self, difference: Difference) -> bool:
        if difference.measure.name != self.measure or difference.low is None or difference.high is None:
            return False
        return difference.low > self.factor if self.above else difference.high < self.factor


def refusals(base: Study, other: Study, *, cross_machine: bool) -> list[str]:
    """Say why the two must not be compared; empty when they may."""
    reasons = [
        f"{name} is {one} in one and {two} in the other"
        for name in MUST_AGREE
        if (one := _planned(base, name)) != (two := _planned(other, name))
    ]
    if not cross_machine:
        reasons += [
            f"another machine ({name}: {base.info.machine.get(name)} and {other.info.machine.get(name)}): "
            f"give --cross-machine if that is the question"
            for name in SAME_MACHINE
            if base.info.machine.get(name) != other.info.machine.get(name)
        ]
    return reasons


def _planned(study: Study, name: str) -> str | None:
    return study.info.plan.get(name, _UNSAID.get(name))


def metadata_differences(base: Study, other: Study) -> list[tuple[str, str, str]]:
    """List what else differs: versions, commit, stack, observers, as (name, base, other)."""
    rows: list[tuple[str, str, str]] = []
    for section in ("plan", "machine", "versions", "git"):
        ours, theirs = getattr(base.info, section), getattr(other.info, section)
        for name in sorted({*ours, *theirs}):
            one, two = ours.get(name, "-"), theirs.get(name, "-")
            if one != two and name != "load_average":
                rows.append((f"{section}.{name}", one, two))
    return rows


def differences(base: Study, other: Study) -> list[Difference]:
    """Compare every setting and concurrency that both have, over the cells that were done."""
    found: list[Difference] = []
    for concurrency in sorted({cell.tables.info.concurrency for cell in base.cells}):
        for setting in base.settings:
            ours = [cell.metrics for cell in base.select(concurrency, setting) if cell.tables.done]
            theirs = [cell.metrics for cell in other.select(concurrency, setting) if cell.tables.done]
            for measure in MEASURES:
                one = [value for value in map(measure.value, ours) if value]
                two = [value for value in map(measure.value, theirs) if value]
                if one and two:
                    found.append(_difference(measure, setting, concurrency, one, two))
    return found


def _difference(
    measure: Measure, setting: Setting, concurrency: int, base: Sequence[float], other: Sequence[float]
) -> Difference:
    ratio, low, high = welch(base, other)
    return Difference(
        measure=measure,
        setting=setting,
        concurrency=concurrency,
        base_cells=len(base),
        other_cells=len(other),
        base=float(np.mean(base)),
        other=float(np.mean(other)),
        ratio=ratio,
        low=low,
        high=high,
        verdict=verdict_of(measure.better, ratio, low, high),
    )


def welch(base: Sequence[float], other: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Ratio of geometric means, and the bounds of its 95 % interval (None with fewer than three values on a side)."""
    one, two = np.log(base), np.log(other)
    middle = float(two.mean() - one.mean())
    if min(len(one), len(two)) < BLOCKS_FOR_A_VERDICT:
        return math.exp(middle), None, None
    parts = one.var(ddof=1) / len(one), two.var(ddof=1) / len(two)
    error = math.sqrt(sum(parts))
    if error == 0:
        return math.exp(middle), math.exp(middle), math.exp(middle)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(one) - 1) + parts[1] ** 2 / (len(two) - 1))
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)
