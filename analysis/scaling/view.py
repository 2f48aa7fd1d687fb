"""The report's section on scaling, worked out: every number is text by now, every plot an SVG."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.plan import Setting
from analysis.scaling.document import LAW_UNITS
from analysis.scaling.heldout import QUANTITIES, HeldOut
from analysis.scaling.knee import throughput_points
from analysis.scaling.plots import Named, curve, errors, knees, law_lines, signed
from analysis.scaling.points import ramped
from analysis.scaling.services import Service
from analysis.scaling.study import GroupLaw, Scaling
from analysis.scaling.whatif import Answer
from analysis.study import Study
from analysis.svg import Plot
from analysis.text import NOTHING, number, share

GROWTH_SHOWN = ("ttft_ms.p50", "host_step_ms.mean", "gil_wait_ms_per_step.mean")
US_PER_MS = 1e3


@dataclass(frozen=True, slots=True)
class GrowthLine:
    """One setting from one concurrency to the next; a slope for each of GROWTH_SHOWN, marked where it is above 1."""

    setting: str
    span: str
    slopes: tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """A quantity's held-out error: mean, worst with its place, what repeats alone leave, whether the law holds."""

    quantity: str
    mean: str
    worst: str
    repeat: str
    verdict: str


@dataclass(frozen=True, slots=True)
class PointLine:
    """A point's residual and held-out error, by quantity: (measured, fitted, held out)."""

    setting: str
    index: int
    concurrency: str
    values: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """A question and its answer: what is predicted with the held-out error beneath, or why nothing is."""

    question: str
    refusal: str
    values: tuple[tuple[str, str], ...]
    sustained: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LawView:
    """One law: the cells it is of, how it stands, its plots and tables."""

    knobs: str
    doubt: str
    plots: tuple[Plot, ...]
    columns: tuple[str, ...]
    points: tuple[PointLine, ...]
    errors: tuple[ErrorLine, ...]
    services: tuple[tuple[str, str, str], ...]
    parameters: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class ScalingView:
    """The whole section. `knees` are (setting, sentence)."""

    knees: tuple[tuple[str, str], ...]
    knee_plot: Plot | None
    growth_columns: tuple[str, ...]
    growth: tuple[GrowthLine, ...]
    answer_columns: tuple[str, ...]
    answers: tuple[AnswerLine, ...]
    laws: tuple[LawView, ...]
    left_out: tuple[tuple[str, str], ...]


def scaling_view(study: Study, scaling: Scaling) -> ScalingView | None:
    """Lay the section out; None where a sweep has a single point, and nothing was asked."""
    if not scaling.answers and len({(c.tables.setting, c.tables.info.concurrency) for c in study.cells}) < 2:
        return None
    names = {setting: Named(study.brief(setting), index) for index, setting in enumerate(study.settings)}
    slugs = {cell.id: cell.tables.info.slug for cell in study.cells}
    points = {
        setting: throughput_points(
            [cell for cell in study.cells if cell.tables.setting == setting and not ramped(cell)]
        )
        for setting in study.settings
    }
    labels = {one.name: one.label for one in scaling.growth}
    return ScalingView(
        knees=tuple((study.name(knee.setting), knee.sentence) for knee in scaling.knees),
        knee_plot=knees(scaling.knees, points, names) if any(knee.law for knee in scaling.knees) else None,
        growth_columns=tuple(labels[name] for name in GROWTH_SHOWN if name in labels),
        growth=tuple(_growth(study, scaling)),
        answer_columns=(*(f"{one.label}, {one.unit}" for one in QUANTITIES), "Messages a request"),
        answers=tuple(answer_line(answer) for answer in scaling.answers),
        laws=tuple(
            _law(study, place, group, names, scaling.answers)
            for place, group in enumerate(scaling.laws)
            if group.law is not None or len(scaling.laws) == 1
        ),
        left_out=tuple((slugs[one.cell], one.why) for one in scaling.left_out),
    )


def answer_line(answer: Answer) -> AnswerLine:
    """Write an answer out, for the page and the terminal alike."""
    values = []
    if answer.predicted is not None:
        for one in QUANTITIES:
            error = answer.errors.get(one.name)
            beneath = "" if error is None else f"\N{PLUS-MINUS SIGN}{share(error)}"
            if one.name in answer.withheld:
                values.append((NOTHING, "does not hold"))
            else:
                values.append((number(one.predicted(answer.predicted)), beneath))
        values.append((number(answer.predicted.messages_a_request), ""))
    sustained = ""
    if answer.sustained is not None:
        found = answer.sustained
        head = "none" if found.concurrency is None else f"up to {found.concurrency:,} users"
        sustained = f"{head} ({found.note})" if found.note else head
    return AnswerLine(answer.question, answer.refusal or "", tuple(values), sustained, answer.notes)


def error_line(one: HeldOut) -> ErrorLine:
    """Write a quantity's held-out error out, for the page and the terminal alike."""
    worst = NOTHING
    if one.worst is not None:
        worst = f"{signed(one.worst.error)} at {one.worst.concurrency:,} with {one.worst.setting.short}"
    return ErrorLine(
        quantity=one.quantity.label,
        mean=share(one.mean),
        worst=worst,
        repeat=share(one.repeat),
        verdict="holds" if one.holds else "not tested" if one.mean is None else "does not hold",
    )


def _growth(study: Study, scaling: Scaling) -> Iterable[GrowthLine]:
    shown = [one for one in scaling.growth if one.name in GROWTH_SHOWN]
    for setting, start, end in dict.fromkeys((one.setting, one.start, one.end) for one in shown):
        own = {one.name: one for one in shown if (one.setting, one.start, one.end) == (setting, start, end)}
        slopes = []
        for name in GROWTH_SHOWN:
            if any(one.name == name for one in shown):
                found = own.get(name)
                span = "" if found is None else f"{number(found.low)} to {number(found.high)}"
                slopes.append((number(found.slope) if found else NOTHING, span, bool(found and found.faster)))
        yield GrowthLine(study.name(setting), f"{start:,} to {end:,}", tuple(slopes))


def _law(
    study: Study, place: int, group: GroupLaw, names: Mapping[Setting, Named], answers: Sequence[Answer]
) -> LawView:
    lines = law_lines(group)
    mine = [answer for answer in answers if answer.knobs == group.knobs]
    shown = [one for one in group.held_out if one.points]
    plots = [curve(one, lines, names, mine, key=f"law{place}q{n}") for n, one in enumerate(shown)]
    if shown:
        plots.append(errors(shown, names, key=f"law{place}e"))
    return LawView(
        knobs=group.knobs.label if group.knobs.pairs else "",
        doubt=group.reason or "",
        plots=tuple(plots),
        columns=tuple(one.quantity.label for one in shown),
        points=tuple(_points(study, shown, names)),
        errors=tuple(error_line(one) for one in shown),
        services=tuple(service_line(one) for one in group.services),
        parameters=()
        if group.law is None
        else tuple((name, number(getattr(group.law, name)), meaning) for name, meaning in LAW_UNITS),
    )


def _points(study: Study, shown: Sequence[HeldOut], names: Mapping[Setting, Named]) -> Iterable[PointLine]:
    for row in zip(*(one.points for one in shown), strict=True):
        yield PointLine(
            setting=study.name(row[0].setting),
            index=names[row[0].setting].index,
            concurrency=f"{row[0].concurrency:,}",
            values=tuple((number(p.measured), signed(p.residual), signed(p.error)) for p in row),
        )


def service_line(one: Service) -> tuple[str, str, str]:
    """Write an operation's service times in microseconds, with their standard errors."""
    return (one.operation, _time(one.loop_ms, one.loop_error_ms), _time(one.others_ms, one.others_error_ms))


def _time(value_ms: float, error_ms: float) -> str:
    if value_ms == 0:
        return NOTHING
    error = "" if error_ms != error_ms else f" \N{PLUS-MINUS SIGN} {number(error_ms * US_PER_MS)}"  # noqa: PLR0124
    return f"{number(value_ms * US_PER_MS)}{error}"
