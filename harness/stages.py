"""The stages of one load: levels that hold and linear ramps, and what tells them apart in results."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

STAGE_KNOB = "stage"


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of one load: so many users for so many seconds, or a linear ramp to them from `ramp_from` users."""

    users: int
    duration_s: float
    ramp_from: int | None = None


def stage_names(stages: Sequence[Stage]) -> list[str]:
    """Name what each stage is at its number of users: hold, ramp, and with a number when it comes again."""
    seen: Counter[tuple[str, int]] = Counter()
    names = []
    for stage in stages:
        kind = "hold" if stage.ramp_from is None else "ramp"
        seen[kind, stage.users] += 1
        count = seen[kind, stage.users]
        names.append(kind if count == 1 else f"{kind}{count}")
    return names


def stage_factors(stages: Sequence[Stage]) -> dict[str, list[str]]:
    """Give the factor that tells stages at one concurrency apart; none where every stage holds another number."""
    names = sorted(set(stage_names(stages)))
    return {} if names in ([], ["hold"]) else {STAGE_KNOB: names}
