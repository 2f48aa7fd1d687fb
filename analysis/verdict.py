"""The answer first: two sentences and one table, the same in the terminal and on top of the report."""

from collections import Counter
from dataclasses import dataclass

from analysis.claims import ClaimRow
from analysis.compare import BLOCKS_FOR_A_VERDICT, Effect
from analysis.gil.stacks import is_executor_loop
from analysis.plan import Setting
from analysis.study import CellStudy, Study
from analysis.text import change, interval, magnitude, share

HEADLINE = ("output_tok_s", "ttft_ms.p50", "ttft_ms.p99", "host_step_ms.mean")
_UNCLEAR = "no clear difference"


@dataclass(frozen=True, slots=True)
class VerdictTable:
    """What `loadgen sweep` prints at its end. Plain text throughout; `rows` are as wide as `columns`."""

    sentences: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...]
    claims: tuple[ClaimRow, ...] = ()


def verdict_table(study: Study) -> VerdictTable:
    """Make the short table: one row a concurrency and knob setting, one column a headline measure."""
    comparison = study.comparison
    labels = {effect.measure.name: effect.measure.label for effect in comparison.effects}
    rows = []
    for concurrency in comparison.concurrencies:
        for setting in comparison.settings:
            effects = [comparison.effect(name, setting, concurrency) for name in HEADLINE]
            known = [effect for effect in effects if effect is not None]
            blocks = max((len(effect.blocks) for effect in known), default=0)
            rows.append(
                (str(concurrency), study.name(setting), str(blocks), *(short_effect(effect) for effect in known))
            )
    counts = Counter(doubt.code for doubt in study.doubts)
    return VerdictTable(
        sentences=sentences(study),
        columns=("concurrency", "setting", "blocks", *(labels[name] for name in HEADLINE if name in labels)),
        rows=tuple(rows),
        claims=study.claims if study.one_at_a_time else (),
        warnings=tuple(f"{code} ({count})" if count > 1 else code for code, count in counts.items()),
    )


def short_effect(effect: Effect) -> str:
    """Write one effect in a line: change, interval (or spread), verdict where there is one."""
    if effect.ratio is None:
        return "no data"
    span = interval(effect)
    verdict = f" {effect.verdict}" if effect.low is not None else ""
    return f"{change(effect.ratio)}{f' ({span})' if span else ''}{verdict}"


def sentences(study: Study) -> tuple[str, ...]:
    """Say what the knob did, and who held the GIL meanwhile."""
    comparison = study.comparison
    if not any(cell.tables.done for cell in study.cells):
        return (f"No cell of this sweep finished ({len(study.cells)} began), so there is nothing to compare.",)
    if not comparison.settings:
        only = study.settings[0].label
        return (f"This sweep holds one setting, {only}: there is nothing to compare it with.", *_holders(study, None))
    lead = _leader(study)
    if lead is None:
        return ("No block holds both the baseline and another setting, so nothing can be compared yet.",)
    return (_effect_sentence(study, lead), *_holders(study, lead))


def _leader(study: Study) -> Effect | None:
    """Pick the setting to speak of: the most throughput at the highest concurrency that has any pair."""
    for concurrency in reversed(study.comparison.concurrencies):
        effects = [
            effect
            for effect in study.comparison.effects
            if effect.measure.name == "output_tok_s" and effect.concurrency == concurrency and effect.ratio
        ]
        if effects:
            return max(effects, key=lambda effect: (effect.verdict == "better", effect.ratio or 0.0))
    return None


def _effect_sentence(study: Study, lead: Effect) -> str:
    decided = lead.low is not None
    parts = []
    for concurrency in reversed(study.comparison.concurrencies):
        told = [
            (noun, effect)
            for name, noun in (("output_tok_s", "output throughput"), ("ttft_ms.p50", "median TTFT"))
            if (effect := study.comparison.effect(name, lead.setting, concurrency)) and effect.ratio is not None
        ]
        open_ = [f"{noun} ({change(effect.ratio)})" for noun, effect in told if effect.verdict == _UNCLEAR]
        clauses = [_clause(effect, noun) for noun, effect in told if effect.verdict != _UNCLEAR]
        if open_:
            clauses.append(f"there is no clear difference in {' or '.join(open_)}")
        if clauses:
            parts.append(f"at {concurrency:,} in flight {' and '.join(clauses)}")
    blocks = len(lead.blocks)
    others = len(study.comparison.settings)
    best = f" (the most throughput of {others} settings tried)" if others > 1 else ""
    names = _setting_name(study, lead.setting), _baseline_name(study, lead.setting)
    what = f"with {names[0]} instead of {names[1]}{best}, {'; '.join(parts)}"
    if decided:
        return f"{what[0].upper()}{what[1:]} ({blocks} paired blocks, 95% intervals)."
    count = "One block" if blocks == 1 else f"{blocks} blocks"
    return (
        f"{count} cannot tell an effect from noise ({BLOCKS_FOR_A_VERDICT} can), so there is no verdict; "
        f"measured {what}."
    )


def _clause(effect: Effect, noun: str) -> str:
    assert effect.ratio is not None
    span = interval(effect)
    if change(effect.ratio) == change(1.0):
        return f"{noun} is unchanged"
    direction = "higher" if effect.ratio > 1 else "lower"
    size = f"{effect.ratio:.1f} times as high" if effect.ratio >= 3 else f"{magnitude(effect.ratio)} {direction}"
    return f"{noun} is {size}{f' ({span})' if span else ''}"


def _baseline_name(study: Study, other: Setting) -> str:
    base = study.comparison.baseline
    return base.short if len(base.pairs) == 1 == len(other.pairs) else "the baseline"


def _setting_name(study: Study, setting: Setting) -> str:
    return setting.label if study.knob else study.name(setting)


def _short_name(study: Study, setting: Setting) -> str:
    if study.knob:
        return setting.short
    return "the baseline" if setting == study.comparison.baseline else study.name(setting)


def _holders(study: Study, lead: Effect | None) -> tuple[str, ...]:
    """Say who held the GIL under the baseline and under the setting spoken of, at its concurrency."""
    concurrency = lead.concurrency if lead else max(study.comparison.concurrencies)
    settings = [study.comparison.baseline, lead.setting] if lead else [study.settings[0]]
    told = []
    for setting in settings:
        shares = gil_shares(study.select(concurrency, setting))
        if shares:
            told.append(
                f"{share(sum(shares.values()))} of the time with {_short_name(study, setting)} ({_by_whom(shares)})"
            )
    if not told:
        return ("Who held the GIL is not known: there are no samples of it.",)
    return (f"At {concurrency:,} in flight the GIL was held {' and '.join(told)}.",)


def gil_shares(cells: list[CellStudy]) -> dict[str, float]:
    """Mean share of time by thread group over the finished cells with samples, the executor loop first."""
    sampled = [cell.tables.holders.by_thread for cell in cells if cell.tables.done and cell.tables.holders]
    names = {name for shares in sampled for name in shares}
    means = {name: sum(shares.get(name, 0.0) for shares in sampled) / len(sampled) for name in names}
    return dict(sorted(means.items(), key=lambda item: (not is_executor_loop(item[0]), -item[1], item[0])))


def _by_whom(shares: dict[str, float]) -> str:
    named = list(shares.items())[:2]
    rest = sum(shares.values()) - sum(value for _, value in named)
    parts = [f"{name} {share(value)}" for name, value in named]
    if rest > 0.005:
        parts.append(f"others {share(rest)}")
    return ", ".join(parts)
