"""Option values that argparse has no type for; each error says what was expected."""

import argparse
import json
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from contracts.errors import UsageError
from harness.stages import Stage

if TYPE_CHECKING:
    from analysis.scaling.questions import Question

_STAGE = re.compile(r"^(?:(?P<start>\d{1,7})-)?(?P<users>\d{1,7}):(?P<seconds>\d{1,6}(?:\.\d+)?)$")
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def concurrencies(text: str) -> list[int]:
    """Read `400,2048`: distinct positive user counts, in the given order."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected user counts such as 400,2048") from error
    if any(value < 1 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: a concurrency is at least 1")
    if len(set(values)) != len(values):
        raise argparse.ArgumentTypeError(f"{text!r}: each concurrency once, please")
    return values


def stages(text: str) -> list[Stage]:
    """Read `400:20,400-1024:30,1024:20`: users:seconds to hold, from-to:seconds for a linear ramp."""
    found: list[Stage] = []
    for part in text.split(","):
        match = _STAGE.match(part.strip())
        if match is None:
            raise argparse.ArgumentTypeError(f"{part!r}: expected USERS:SECONDS, or FROM-TO:SECONDS for a ramp")
        start, users, seconds = match["start"], int(match["users"]), float(match["seconds"])
        if users < 1 or seconds <= 0 or (start is not None and int(start) < 1):
            raise argparse.ArgumentTypeError(f"{part!r}: a stage has at least one user and takes more than no time")
        if start is not None and found and found[-1].users != int(start):
            raise argparse.ArgumentTypeError(
                f"{part!r}: a ramp begins where the stage before it was, {found[-1].users}"
            )
        found.append(Stage(users, seconds, None if start is None else int(start)))
    return found


def positive(text: str) -> float:
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return value


def not_negative(text: str) -> float:
    value = _number(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of at least 0")
    return value


def fraction(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a fraction from 0 to below 1")
    return value


def count(text: str) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1") from error
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return value


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a JSON object ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a JSON object")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number") from error
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
        raise argparse.ArgumentTypeError(f"{text!r}: expected a finite number")
    return value


def factors(settings: Sequence[str]) -> dict[str, list[str]]:
    """Read the `--set NAME=V1,V2` options. Raises UsageError."""
    found: dict[str, list[str]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        values = text.split(",")
        if not equals or not _NAME.match(name) or not all(values):
            raise UsageError(f"--set {setting}: expected NAME=V1,V2,... with an environment variable's name")
        if name in found:
            raise UsageError(f"--set {name} was given twice: list its values in one, as in {name}={text},...")
        if len(set(values)) != len(values):
            raise UsageError(f"--set {setting}: each value once, please; --repeats repeats")
        found[name] = values
    return found


SLO_HELP = "an objective to hold the cells against, as in ttft_ms:p99<2000,tpot_ms:p95<60 (also e2e_ms)"


def objective(text: str) -> str:
    """Check an objective (analysis.slo); importing what reads it takes a moment, so only when there is one."""
    from analysis.slo import parse_slo

    try:
        parse_slo(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


WHAT_IF_HELP = (
    "predict a cell that was not run, by a law fitted to the sweep: NAME=VALUE,... with concurrency, isl, osl and the "
    "sweep's knobs, as in concurrency=1024,TLLM_RPC_SUBMIT_BATCH_MAX=16; repeatable"
)


def what_if(text: str) -> "Question":
    """Read a question to the scaling law (analysis.scaling.questions)."""
    from analysis.scaling.questions import parse_what_if

    try:
        return parse_what_if(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def cores() -> int:
    """Return how many cores this process may use: as many processes work a large folder through."""
    return len(os.sched_getaffinity(0))
