"""The answer first: two sentences and one table, the same in the terminal and on top of the report."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.compare import BLOCKS_FOR_A_VERDICT, Effect
from analysis.metrics import CellMetrics
from analysis.plan import Setting
from analysis.study import Study

HEADLINE = ("output_tok_s", "ttft_ms.p50", "ttft_ms.p99", "host_step_ms.mean")


@dataclass(frozen=True, slots=True)
class VerdictTable:
    """What `loadgen sweep` prints at its end. Plain text throughout; `rows` are as wide as `columns`."""

    sentences: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...]


def verdict_table(study: Study) -> VerdictTable:
    """Make the short table: one row a knob setting and concurrency, one column a headline measure."""
    comparison = study.comparison
    labels = {effect.measure.name: effect.measure.label for effect in comparison.effects}
    rows = []
    for concurrency in comparison.concurrencies:
        for setting in comparison.settings:
            effects = [comparison.effect(name, setting, concurrency) for name in HEADLINE]
            known = [effect for effect in effects if effect is not None]
            blocks = max((len(effect.blocks) for effect in known), default=0)
            rows.append((str(concurrency), setting.label, str(blocks), *(short_effect(effect) for effect in known)))
    counts: dict[str, int] = {}
    for doubt in study.doubts:
        counts[doubt.code] = counts.get(doubt.code, 0) + 1
    warnings = tuple(f"{code} ({count})" if count > 1 else code for code, count in counts.items())
    columns = ("concurrency", "setting", "blocks", *(labels[name] for name in HEADLINE if name in labels))
    return VerdictTable(sentences(study), columns, tuple(rows), warnings)


def percent(ratio: float | None) -> str:
    """Write a ratio as a signed change; `x 3.2` from a tripling on, where per cent stop speaking."""
    if ratio is None:
        return "-"
    if ratio >= 3:
        return f"\N{MULTIPLICATION SIGN}{ratio:.1f}"
    change = (ratio - 1) * 100
    text = f"{abs(change):.1f}" if abs(change) < 9.95 else f"{abs(change):.0f}"
    if float(text) == 0:
        return "\N{PLUS-MINUS SIGN}0 %"
    sign = "+" if change > 0 else "\N{MINUS SIGN}"
    return f"{sign}{text} %"


def short_effect(effect: Effect) -> str:
    """Write one effect with its interval, or with its spread where there is none."""
    if effect.ratio is None:
        return "no data"
    if effect.low is not None and effect.high is not None:
        return f"{percent(effect.ratio)} [{percent(effect.low)}, {percent(effect.high)}] {effect.verdict}"
    if len(effect.ratios) > 1:
        return f"{percent(effect.ratio)} ({percent(min(effect.ratios))} to {percent(max(effect.ratios))})"
    return percent(effect.ratio)


def sentences(study: Study) -> tuple[str, ...]:
    """Say what the knob did, and who held the GIL meanwhile."""
    comparison = study.comparison
    done = [cell for cell in study.cells if cell.tables.done]
    if not done:
        return (f"No cell of this sweep finished ({len(study.cells)} began), so there is nothing to compare.",)
    if not comparison.settings:
        return (
            f"This sweep holds one setting ({study.settings[0].label}), so there is nothing to compare it with.",
            *_gil_sentence(study, None),
        )
    lead = _leader(study)
    if lead is None:
        return (
            "No block holds both the baseline and another setting, so nothing can be compared yet.",
            *_gil_sentence(study, None),
        )
    return (_effect_sentence(study, lead), *_gil_sentence(study, lead))


def _leader(study: Study) -> Effect | None:
    """Pick the effect to speak of: most throughput at the highest concurrency that has any pair."""
    for concurrency in reversed(study.comparison.concurrencies):
        effects = [
            effect
            for effect in study.comparison.effects
            if effect.measure.name == "output_tok_s" and effect.concurrency == concurrency and effect.ratio
        ]
        if effects:
            return max(effects, key=lambda effect: (effect.decided, effect.ratio or 0.0))
    return None


def _effect_sentence(study: Study, lead: Effect) -> str:
    parts = []
    for concurrency in reversed(study.comparison.concurrencies):
        effect = study.comparison.effect("output_tok_s", lead.setting, concurrency)
        ttft = study.comparison.effect("ttft_ms.p50", lead.setting, concurrency)
        if effect is None or effect.ratio is None:
            continue
        text = f"at {concurrency} in flight, output throughput {_change(effect)}"
        if ttft is not None and ttft.ratio is not None:
            text += f" and median TTFT {_change(ttft)}"
        parts.append(text)
    blocks = len(lead.blocks)
    against = f"{lead.setting.label} against {_baseline_name(study, lead.setting)}"
    told = "; ".join(parts)
    if blocks < BLOCKS_FOR_A_VERDICT:
        return (
            f"{blocks} block{'s' if blocks > 1 else ''} can't tell an effect from noise, so no verdict is given; "
            f"what was measured for {against}: {told}."
        )
    return f"{against}: {told} ({blocks} blocks, 95 % intervals in brackets)."


def _change(effect: Effect) -> str:
    if effect.low is None or effect.high is None:
        return percent(effect.ratio)
    interval = f"{percent(effect.ratio)} [{percent(effect.low)}, {percent(effect.high)}]"
    if effect.verdict == "no clear difference":
        return f"shows no clear difference, {interval}"
    return interval


def _baseline_name(study: Study, other: Setting) -> str:
    base = study.comparison.baseline
    return base.short if len(base.pairs) == 1 == len(other.pairs) else base.label


def _gil_sentence(study: Study, lead: Effect | None) -> tuple[str, ...]:
    concurrency = lead.concurrency if lead else max(study.comparison.concurrencies, default=None)
    if concurrency is None:
        return ()
    base_setting = study.comparison.baseline if lead else study.settings[0]
    base = _gil_shares([cell.metrics for cell in study.select(concurrency, base_setting) if cell.tables.done])
    if base is None:
        return ("Who held the GIL is not known: there are no samples of it.",)
    text = (
        f"At {concurrency} in flight the GIL was held {base[0]:.0%} of the time under {base_setting.short}{_by(base)}"
    )
    if lead is not None:
        other = _gil_shares([cell.metrics for cell in study.select(concurrency, lead.setting) if cell.tables.done])
        if other is not None:
            text += f", and {other[0]:.0%} under {lead.setting.short}{_by(other)}"
    return (f"{text}.",)


def _gil_shares(cells: Sequence[CellMetrics]) -> tuple[float, float | None] | None:
    """Mean shares of time in which anybody, and the executor loop, held the GIL."""
    totals = [cell.gil_held_total for cell in cells if cell.gil_held_total is not None]
    loops = [cell.gil_held_executor for cell in cells if cell.gil_held_executor is not None]
    if not totals:
        return None
    return sum(totals) / len(totals), sum(loops) / len(loops) if loops else None


def _by(shares: tuple[float, float | None]) -> str:
    return "" if shares[1] is None else f" (executor loop {shares[1]:.0%}, others {shares[0] - shares[1]:.0%})"
