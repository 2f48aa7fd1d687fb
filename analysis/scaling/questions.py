"""What is asked with --what-if: `concurrency=1024,isl=4096,TLLM_RPC_SUBMIT_BATCH_MAX=16`, one value each."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.errors import UsageError

CONCURRENCY = "concurrency"
ISL = "isl"
OSL = "osl"
LOAD_NAMES = (CONCURRENCY, ISL, OSL)
EXAMPLE = "concurrency=1024,isl=4096,TLLM_RPC_SUBMIT_BATCH_MAX=16"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COUNT = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Question:
    """A cell that may not have been run. What is not named is as in the sweep (None: its baseline, its workload)."""

    text: str
    knobs: Mapping[str, str]
    concurrency: int | None = None
    isl: int | None = None
    osl: int | None = None


def parse_what_if(text: str) -> Question:
    """Read a question. Raises UsageError."""
    values: dict[str, str] = {}
    for part in text.replace(" ", "").split(","):
        name, equals, value = part.partition("=")
        if not equals or not _NAME.fullmatch(name) or not value:
            raise UsageError(f"--what-if {part}: expected NAME=VALUE, as in {EXAMPLE}")
        name = name.lower() if name.lower() in LOAD_NAMES else name
        if name in values:
            raise UsageError(f"--what-if {text}: {name} once, please; give --what-if again for another question")
        values[name] = value
    counts = {name: whole(name, values.pop(name)) for name in LOAD_NAMES if name in values}
    return Question(text.replace(" ", ""), values, **counts)


def check_names(question: Question, knobs: Mapping[str, Sequence[str]]) -> None:
    """Refuse a knob that the sweep knows nothing of. `knobs` are those it has, with the values run. UsageError."""
    for name in question.knobs:
        if name in knobs:
            continue
        known = [*LOAD_NAMES, *knobs]
        exact = {one.lower(): one for one in known}
        near = difflib.get_close_matches(name.lower(), exact, 1, cutoff=0.5)
        hint = f"did you mean {exact[near[0]]}?" if near else f"it knows {', '.join(known)}"
        raise UsageError(f"--what-if {name}={question.knobs[name]}: the sweep turned no such thing: {hint}")


def whole(name: str, value: str) -> int:
    """Read a count. Raises UsageError."""
    if not _COUNT.fullmatch(value) or int(value) < 1:
        raise UsageError(f"--what-if {name}={value}: expected a whole number of at least 1")
    return int(value)
