"""How many tokens: a notation for distributions of lengths, made into tables that a draw looks into in O(1).

4096                                    uniform within the spread around it, or exact where there is no spread
fixed:4096
uniform:min=1000,max=8000
normal:mean=4096,std=512                or cv=0.125 (std over mean); min= and max= cut the distribution off
lognormal:mean=4096,cv=0.5              mean and std (or cv) of the lengths themselves, not of their logarithms
@FILE                                   as measured: a length a line, or `ISL OSL` pairs, which stay together
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from contracts.errors import UsageError

NOTATION = "N, fixed:N, uniform:min=A,max=B, normal:mean=M,std=S, lognormal:mean=M,cv=C or @FILE"
MOST_TOKENS = 10_000_000
_QUANTILES = 1 << 14
_ALLOWED = {
    "uniform": {"min", "max"},
    "normal": {"mean", "std", "cv", "min", "max"},
    "lognormal": {"mean", "std", "cv", "min", "max"},
}
_SEPARATOR = re.compile(r"[\s,;]+")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Equally likely lengths. `partners` are the outputs' where the file held pairs: same index, same request."""

    values: Sequence[int]
    partners: Sequence[int] | None = None

    @property
    def longest(self) -> int:
        return max(self.values[0], self.values[-1]) if isinstance(self.values, range) else max(self.values)


def read_lengths(text: int | str, spread: float = 0.0, *, what: str = "a length") -> Lengths:
    """Make the table that a notation stands for; `what` is named in errors.

    A continuous distribution becomes its quantiles in the middle of 16,384 equal shares. Raises UsageError.
    """
    if isinstance(text, int):
        text = str(text)
    kind, colon, rest = text.partition(":")
    if text.startswith("@"):
        return _from_file(Path(text[1:]), what)
    if not colon:
        mean = _whole(text, text, what)
        return Lengths(range(max(1, round(mean * (1 - spread))), max(1, round(mean * (1 + spread))) + 1))
    if kind == "fixed":
        value = _whole(rest, text, what)
        return Lengths(range(value, value + 1))
    values = _parameters(kind, rest, text, what)
    if kind == "uniform":
        return Lengths(_uniform(values, text, what))
    return Lengths(_quantiles(kind, values, text, what))


def _fail(text: str, what: str, why: str) -> UsageError:
    return UsageError(f"{what} {text!r}: {why}; expected {NOTATION}")


def _whole(value: str, text: str, what: str) -> int:
    if not value.isascii() or not value.isdecimal() or not 1 <= int(value) <= MOST_TOKENS:
        raise _fail(text, what, f"{value!r} is no whole number from 1 to {MOST_TOKENS:,}")
    return int(value)


def _parameters(kind: str, rest: str, text: str, what: str) -> dict[str, float]:
    if kind not in _ALLOWED:
        raise _fail(text, what, f"no distribution is called {kind!r}")
    found: dict[str, float] = {}
    for part in rest.split(","):
        name, _, value = part.partition("=")
        if name not in _ALLOWED[kind] or name in found:
            raise _fail(text, what, f"{kind} takes {', '.join(sorted(_ALLOWED[kind]))}, each once, not {part!r}")
        try:
            found[name] = float(value)
        except ValueError:
            raise _fail(text, what, f"{value!r} is no number") from None
        if not 0 < found[name] <= MOST_TOKENS:
            raise _fail(text, what, f"{name} must be above 0 and at most {MOST_TOKENS:,}")
    return found


def _uniform(values: dict[str, float], text: str, what: str) -> range:
    if set(values) != {"min", "max"} or values["min"] > values["max"]:
        raise _fail(text, what, "uniform takes min=A,max=B with A not above B")
    return range(max(1, round(values["min"])), max(1, round(values["max"])) + 1)


def _quantiles(kind: str, values: dict[str, float], text: str, what: str) -> list[int]:
    if "mean" not in values or ("std" in values) == ("cv" in values):
        raise _fail(text, what, f"{kind} takes mean= and one of std= and cv=")
    mean = values["mean"]
    cv = values["cv"] if "cv" in values else values["std"] / mean
    least, most = values.get("min", 1.0), values.get("max", float(MOST_TOKENS))
    into: Callable[[float], float] = float
    back: Callable[[float], float] = float
    shape = NormalDist(mean, cv * mean)
    if kind == "lognormal":
        variance = math.log1p(cv * cv)
        shape, into, back = NormalDist(math.log(mean) - variance / 2, math.sqrt(variance)), math.log, math.exp
    low, high = shape.cdf(into(least)), shape.cdf(into(most))
    if not least <= most or high - low < 1e-9:
        raise _fail(text, what, f"nearly nothing of it lies from {least:g} to {most:g}")
    shares = (low + (high - low) * (place + 0.5) / _QUANTILES for place in range(_QUANTILES))
    return [min(MOST_TOKENS, max(1, round(back(shape.inv_cdf(share))))) for share in shares]


def _from_file(path: Path, what: str) -> Lengths:
    columns: list[list[int]] = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                words = [word for word in _SEPARATOR.split(line.partition("#")[0]) if word]
                if words:
                    _add(columns, words, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what}: cannot read {path}: {error}") from error
    if not columns:
        raise UsageError(f"{what}: {path} holds no lengths: expected one a line, or pairs `ISL OSL`")
    return Lengths(columns[0], columns[1] if len(columns) > 1 else None)


def _add(columns: list[list[int]], words: list[str], where: str) -> None:
    if not columns:
        columns += [[] for _ in words]
    if len(words) > 2 or len(words) != len(columns):
        raise UsageError(f"{where}: {len(words)} values; expected one length on every line, or a pair on every line")
    for column, word in zip(columns, words, strict=True):
        if not word.isascii() or not word.isdecimal() or not 1 <= int(word) <= MOST_TOKENS:
            raise UsageError(f"{where}: {word!r} is no whole number of tokens from 1 to {MOST_TOKENS:,}")
        column.append(int(word))
