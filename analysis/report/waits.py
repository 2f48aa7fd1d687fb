"""Who waited for the GIL, as the report shows it: the executor loop's wait by setting, and for whom."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.gil.looks import GilStudy
from analysis.gil.stacks import is_executor_loop
from analysis.text import NOTHING, number, share

TOP_BLAME = 4


@dataclass(frozen=True, slots=True)
class WaitRow:
    """One setting's GIL wait of the executor loop, over its finished cells; `blame`: (share of the wait, for whom)."""

    setting: str
    index: int
    wait: str
    per_step: str
    per_step_p99: str
    of_step: str
    blame: tuple[tuple[str, str], ...]


def wait_row(setting: str, index: int, studies: Sequence[GilStudy]) -> WaitRow | None:
    """Average a setting's cells; None when no thread of theirs bears the executor loop's name."""
    loops = [{name: value for name, value in one.wait_fraction.items() if is_executor_loop(name)} for one in studies]
    known = [(one, loop) for one, loop in zip(studies, loops, strict=True) if loop]
    if not known:
        return None
    blame: defaultdict[tuple[str, str | None], float] = defaultdict(float)
    for one, loop in known:
        for waiter, wait in loop.items():
            for part in one.blame.get(waiter, ()):
                blame[part.name, part.function] += part.fraction * wait
    total = sum(blame.values())
    top = sorted(blame.items(), key=lambda item: -item[1])[:TOP_BLAME]
    steps = [one.executor_steps for one, _ in known if one.executor_steps is not None]
    return WaitRow(
        setting=setting,
        index=index,
        wait=share(sum(sum(loop.values()) for _, loop in known) / len(known)),
        per_step=number(sum(one.mean_ms for one in steps) / len(steps)) if steps else NOTHING,
        per_step_p99=number(sum(one.p99_ms for one in steps) / len(steps)) if steps else NOTHING,
        of_step=share(sum(one.share for one in steps) / len(steps)) if steps else NOTHING,
        blame=tuple(
            (share(value / total), name if function is None else f"{name}: {function}")
            for (name, function), value in top
        ),
    )
