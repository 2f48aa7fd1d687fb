"""What the report's template shows, worked out: every number is text by now, every plot an SVG."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath

from analysis.compare import MEASURES, Effect
from analysis.environment import Facts, facts_of, made_with
from analysis.report.plots import forest
from analysis.report.section import Section, make_section
from analysis.report.table import Table, cells_table
from analysis.scaling.study import Scaling, study_scaling
from analysis.scaling.view import ScalingView, scaling_view
from analysis.study import Study
from analysis.svg import Plot
from analysis.text import ARROW, change, interval, number, plural, share, times
from analysis.verdict import sentences

ANSWER = (
    "output_tok_s",
    "ttft_ms.p50",
    "ttft_ms.p99",
    "itl_ms.p50",
    "icl_ms.p50",
    "host_step_ms.mean",
    "rpc_messages_per_request",
    "gil_wait_ms_per_step.mean",
    "gil_held_executor",
)
MOST_NAMED = 2
MIDDLE_DOT = "\N{MIDDLE DOT}"
FOREST = ("output_tok_s", "ttft_ms.p50", "ttft_ms.p99", "host_step_ms.mean")


@dataclass(frozen=True, slots=True)
class Answer:
    """One effect as the first table shows it. `kind` is its verdict as a CSS class."""

    change: str
    span: str
    values: str
    verdict: str
    kind: str


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One setting at one concurrency; `first` is True where a concurrency begins, `rows` then says for how many."""

    concurrency: str
    rows: int
    setting: str
    blocks: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class ClaimLine:
    """A published claim and what was measured: ratios, better over worse."""

    text: str
    source: str
    concurrency: str
    published: str
    measured: str
    verdict: str


@dataclass(frozen=True, slots=True)
class SloLine:
    """A setting at a concurrency against the objective."""

    setting: str
    concurrency: str
    shares: tuple[str, ...]
    goodput: str
    met: str


@dataclass(frozen=True, slots=True)
class Objective:
    """The objective: its terms, a line a setting and concurrency, and in a sentence what each setting reaches."""

    terms: tuple[str, ...]
    lines: tuple[SloLine, ...]
    reached: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WarningGroup:
    """All warnings of one code: its remedy once, and what was seen where."""

    code: str
    remedy: str
    seen: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Swatch:
    """One entry of a legend: the index of its colour and line, and its name."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ReportView:
    """The whole page."""

    title: str
    heading: str
    values: str
    meta: tuple[str, ...]
    incomplete: str
    sentences: tuple[str, ...]
    answer_columns: tuple[tuple[str, str], ...]
    answers: tuple[AnswerRow, ...]
    forests: tuple[Plot, ...]
    legend: tuple[Swatch, ...]
    objective: Objective | None
    claims: tuple[ClaimLine, ...]
    warnings: tuple[WarningGroup, ...]
    sections: tuple[Section, ...]
    scaling: ScalingView | None
    cells: Table
    facts: tuple[Facts, ...]
    command: str
    made_with: str
    folder: str
    setting_head: str


def make_view(study: Study, scaling: Scaling | None = None) -> ReportView:
    """Work a study out into what the template shows; its scaling, too, where that was not done yet."""
    scaling = scaling or study_scaling(study)
    settings = study.settings
    comparison = study.comparison
    answered = _answered(study)
    names = list(study.info.factors) or sorted({name for setting in settings for name, _ in setting.pairs})
    heading = (" and ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} knobs") or (
        "One setting" if study.cells else "Nothing ran"
    )
    return ReportView(
        title=f"{heading} {MIDDLE_DOT} GIL sweep",
        heading=heading,
        values=_values(study),
        meta=_meta(study),
        incomplete=_incomplete(study),
        sentences=sentences(study),
        answer_columns=tuple((m.label, m.unit) for m in MEASURES if m.name in answered),
        answers=tuple(_answer_rows(study)),
        forests=tuple(_forests(study)),
        legend=tuple(
            Swatch(index, setting.label if study.knob else study.name(setting))
            for index, setting in enumerate(settings)
        ),
        objective=_objective(study),
        claims=tuple(_claims(study)),
        warnings=tuple(_warnings(study)),
        sections=tuple(make_section(study, concurrency) for concurrency in comparison.concurrencies),
        scaling=scaling_view(study, scaling),
        cells=cells_table(study),
        facts=tuple(facts_of(study)),
        command=shlex.join(study.info.command),
        made_with=made_with(study),
        folder=str(study.path.resolve().name),
        setting_head=study.knob or "Setting",
    )


def _values(study: Study) -> str:
    settings = study.settings
    if len(settings) < 2:
        return settings[0].short if settings else ""
    if not study.knob:
        how = "one at a time from" if study.one_at_a_time else "against"
        return f"{how} {study.comparison.baseline.label}"
    return f"{settings[0].short} against {', '.join(setting.short for setting in settings[1:])}"


def _meta(study: Study) -> tuple[str, ...]:
    plan = study.info.plan
    done = sum(cell.tables.done for cell in study.cells)
    planned = study.info.planned_cells or len(study.cells)
    meta = [_when(study.info.created_at), plan.get("stack", ""), plan.get("drive", "") and f"drive {plan['drive']}"]
    meta += [*_workload(plan), f"{done} of {planned} cells finished", plural(len(study.comparison.blocks), "block")]
    return tuple(part for part in meta if part)


def _workload(plan: Mapping[str, str]) -> list[str]:
    """Name the workload that was run: lengths, sessions, shared prefixes."""
    words = [f"{name.upper()} {plan[name]}" for name in ("isl", "osl") if plan.get(name, "trace") != "trace"]
    if "trace.path" in plan:
        speed = plan.get("trace.time_scale", "1.0") if plan.get("arrival") == "trace" else ""
        times = f", at its own times x {speed}" if speed else ""
        words.append(f"trace {PurePath(plan['trace.path']).name} ({plan['trace.format']}){times}")
    if "session.turns" in plan:
        words.append(f"sessions of {plan['session.turns']} turns, each with {plan['session.turn_isl']} new tokens")
    if "prefix.groups" in plan:
        words.append(f"{plan['prefix.groups']} shared prefixes of {plan['prefix.tokens']} tokens")
    if "tokenizer.path" in plan:
        words.append(f"tokenizer {PurePath(plan['tokenizer.path']).name}")
    return words


def _when(created_at: str | None) -> str:
    """Write the time of creation to the minute, in the zone it was given in; what is no time stays as it is."""
    try:
        return f"{datetime.fromisoformat(created_at or ''):%Y-%m-%d %H:%M %Z}".strip()
    except ValueError:
        return created_at or ""


def _incomplete(study: Study) -> str:
    planned = max(study.info.planned_cells or 0, len(study.cells))
    states = Counter(cell.tables.info.state for cell in study.cells)
    done = states.pop("done", 0)
    if done == planned and done:
        return ""
    parts = [f"{count} {state}" for state, count in sorted(states.items())]
    if planned > len(study.cells):
        parts.append(f"{planned - len(study.cells)} not begun")
    rest = f": {', '.join(parts)}" if parts else ""
    return f"This sweep is not complete. {done} of {planned} cells finished{rest}. Only finished cells are compared."


def _objective(study: Study) -> Objective | None:
    slo = study.slo
    if slo is None:
        return None
    lines = [
        SloLine(
            setting=study.name(row.setting),
            concurrency=f"{row.concurrency:,}",
            shares=tuple(f"{kept:.1%}" for kept in row.shares),
            goodput=number(row.goodput_req_s),
            met=f"{row.met} of {row.cells}",
        )
        for row in slo.rows
    ]
    reached = [
        f"{study.name(setting)}: {'no concurrency tried' if highest is None else f'up to {highest:,} in flight'}"
        for setting, highest in slo.highest
    ]
    return Objective(tuple(term.text for term in slo.terms), tuple(lines), tuple(reached))


def _claims(study: Study) -> Iterable[ClaimLine]:
    for row in study.claims:
        yield ClaimLine(
            text=row.claim.text,
            source=row.claim.source,
            concurrency=f"{row.concurrency:,}",
            published="better" if row.claim.published is None else times(row.claim.published),
            measured=times(row.measured, row.low, row.high),
            verdict=row.verdict,
        )


def _answered(study: Study) -> list[str]:
    """Choose the first table's measures: gaps between chunks stand in where tokens in them are not known."""
    itl_known = any(cell.metrics.itl_ms for cell in study.cells)
    return [name for name in ANSWER if name != ("icl_ms.p50" if itl_known else "itl_ms.p50")]


def _answer_rows(study: Study) -> Iterable[AnswerRow]:
    comparison = study.comparison
    for concurrency in comparison.concurrencies:
        for place, setting in enumerate(comparison.settings):
            effects = [comparison.effect(name, setting, concurrency) for name in _answered(study)]
            known = [effect for effect in effects if effect is not None]
            yield AnswerRow(
                concurrency=f"{concurrency:,}" if place == 0 else "",
                rows=len(comparison.settings),
                setting=study.name(setting),
                blocks=str(max((len(effect.blocks) for effect in known), default=0)),
                answers=tuple(_answer(effect) for effect in known),
            )


def _answer(effect: Effect) -> Answer:
    write: Callable[[float | None], str] = share if effect.measure.unit == "of time" else number
    return Answer(
        change=change(effect.ratio),
        span=interval(effect),
        values="" if effect.ratio is None else f"{write(effect.base)} {ARROW} {write(effect.other)}",
        verdict=effect.verdict,
        kind=effect.verdict.replace(" ", "-"),
    )


def _forests(study: Study) -> Iterable[Plot]:
    comparison = study.comparison
    for place, name in enumerate(FOREST):
        effects = [effect for effect in comparison.effects if effect.measure.name == name and effect.ratio is not None]
        if effects:
            yield forest(
                effects, study.settings, study.brief, key=f"forest{place}", baseline=study.brief(comparison.baseline)
            )


def _warnings(study: Study) -> Iterable[WarningGroup]:
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    remedies = {}
    slugs = {cell.id: cell.tables.info.slug for cell in study.cells}
    for doubt in study.doubts:
        groups[doubt.code].append((slugs.get(doubt.cell or "", "the sweep"), doubt.detail))
        remedies[doubt.code] = doubt.remedy
    for code, seen in groups.items():
        yield WarningGroup(code, remedies[code], tuple(seen))
