"""Numbers as people read them: three digits that matter, signs that are signs, units where they belong."""

from analysis.compare import Effect

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
ARROW = "\N{RIGHTWARDS ARROW}"
NOTHING = "\N{EN DASH}"


def number(value: float | None) -> str:
    """Write three significant digits, all digits of large whole parts, thousands apart; a dash for None."""
    if value is None:
        return NOTHING
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:,.{digits}f}".replace("-", MINUS)


def share(value: float | None) -> str:
    """Write a fraction as whole per cent, small ones with a decimal."""
    if value is None:
        return NOTHING
    return f"{value:.1%}" if 0 < value < 0.0995 else f"{value:.0%}"


def change(ratio: float | None) -> str:
    """Write a ratio as a signed change in per cent; as a factor from a tripling on, where per cent stop speaking."""
    if ratio is None:
        return NOTHING
    if ratio >= 3:
        return f"{TIMES}{ratio:.1f}"
    size = magnitude(ratio)
    if float(size.rstrip("%")) == 0:
        return "\N{PLUS-MINUS SIGN}0%"
    return f"{'+' if ratio > 1 else MINUS}{size}"


def magnitude(ratio: float) -> str:
    """Write how far a ratio is from 1, without a sign."""
    percent = abs(ratio - 1) * 100
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"


def times(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Write a ratio as a factor, with its interval where there is one."""
    span = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return f"{ratio:.2f}{span}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def interval(effect: Effect) -> str:
    """Write the 95 % interval of an effect, else the spread over its blocks, else nothing."""
    if effect.low is not None and effect.high is not None:
        return f"{change(effect.low)} to {change(effect.high)}"
    if len(effect.ratios) > 1:
        return f"{change(min(effect.ratios))} to {change(max(effect.ratios))}"
    return ""
