"""A sweep's scaling worked through once: knees, laws with their errors, answers. For reports, JSON and notebooks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.plan import Setting
from analysis.scaling.heldout import QUANTITIES, HeldOut, hold_out, percentile_quantity
from analysis.scaling.knee import Growth, Knee, find_knee, growths, throughput_points
from analysis.scaling.law import FEWEST_POINTS, Law, NoLawError, fit_law
from analysis.scaling.points import BATCH_KNOB, LeftOutError, Observed, observe, ramped, term_name
from analysis.scaling.questions import Question, check_names, whole
from analysis.scaling.services import Service, service_table
from analysis.scaling.whatif import Answer, ask
from analysis.slo import Term
from analysis.study import CellStudy, Study
from contracts.errors import UsageError


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A cell that no law takes, by its id, and why."""

    cell: str
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class GroupLaw:
    """The law of the cells that differ in nothing it has no term for. `knobs` are those they share.

    `law` is None where there is none; `reason` says why, or why it must not be trusted (None: it holds).
    """

    knobs: Setting
    cells: tuple[Observed, ...]
    law: Law | None
    reason: str | None
    held_out: tuple[HeldOut, ...]
    services: tuple[Service, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """Everything about scaling. `growth` has every quantity and step between concurrencies, by setting."""

    knees: tuple[Knee, ...]
    growth: tuple[Growth, ...]
    laws: tuple[GroupLaw, ...]
    answers: tuple[Answer, ...]
    terms: tuple[Term, ...]
    left_out: tuple[LeftOut, ...]


def study_scaling(study: Study, questions: Sequence[Question] = ()) -> Scaling:
    """Work a sweep's scaling through. Raises UsageError on a question about a knob or value that it does not know."""
    terms = study.slo.terms if study.slo else ()
    closed = study.info.plan.get("arrival", "closed") == "closed"
    think_s = float(study.info.plan.get("think_s", "0"))
    observed, left_out = _observe(study.cells, think_s, terms) if closed else ([], ())
    groups = _groups(observed)
    _check(study, questions, groups)
    laws = tuple(_law(knobs, cells, terms) for knobs, cells in groups.items())
    knees, growth = [], []
    for setting in study.settings if closed else ():
        own = [cell for cell in study.cells if cell.tables.setting == setting and not ramped(cell)]
        if not own:
            continue
        knees.append(find_knee(setting, throughput_points(own)))
        growth += growths(setting, own)
    missing = _most_common(left_out) if closed else "the load was no closed loop, which the law is of"
    answers = tuple(_answer(question, study, laws, terms, missing) for question in questions)
    return Scaling(tuple(knees), tuple(growth), laws, answers, tuple(terms), left_out)


def _observe(
    cells: Sequence[CellStudy], think_s: float, terms: Sequence[Term]
) -> tuple[list[Observed], tuple[LeftOut, ...]]:
    observed, left_out = [], []
    for cell in cells:
        try:
            observed.append(observe(cell, think_s, terms))
        except LeftOutError as error:
            left_out.append(LeftOut(cell.id, str(error)))
    return observed, tuple(left_out)


def _most_common(left_out: Sequence[LeftOut]) -> str:
    """Say why no cell could be taken."""
    if not left_out:
        return "there are no cells"
    ((why, _),) = Counter(one.why for one in left_out).most_common(1)
    return f"no cell can be taken, most often because {why}"


def _groups(observed: Sequence[Observed]) -> dict[Setting, list[Observed]]:
    found: dict[Setting, list[Observed]] = {}
    for cell in observed:
        found.setdefault(_other_knobs(cell.setting), []).append(cell)
    return found


def _other_knobs(setting: Setting) -> Setting:
    """Leave the batch size out: the law has a term for it, and for no other knob."""
    return Setting(tuple((name, value) for name, value in setting.pairs if name != BATCH_KNOB))


def _law(knobs: Setting, cells: Sequence[Observed], terms: Sequence[Term]) -> GroupLaw:
    points = len({cell.key for cell in cells})
    if points < FEWEST_POINTS:
        reason = f"{points} settings and concurrencies; a law takes {FEWEST_POINTS}, to leave one out"
        return GroupLaw(knobs, tuple(cells), None, reason, (), service_table(cells))
    try:
        law = fit_law(cells)
    except NoLawError as error:
        return GroupLaw(knobs, tuple(cells), None, str(error), (), service_table(cells))
    names = [term_name(term) for term in terms]
    asked = [percentile_quantity(name) for name in names if name in law.percentiles and name != "ttft_ms:p50"]
    held_out = hold_out(cells, law, (*QUANTITIES, *asked))
    wrong = [one for one in held_out[: len(QUANTITIES)] if not one.holds]
    doubt: str | None = None
    if wrong:
        sizes = ", ".join(
            f"{one.quantity.label} {'not testable' if one.mean is None else format(one.mean, '.0%')}" for one in wrong
        )
        doubt = f"does not hold for: {sizes} (mean held-out error)"
    return GroupLaw(knobs, tuple(cells), law, doubt, held_out, service_table(cells))


def _check(study: Study, questions: Sequence[Question], groups: dict[Setting, list[Observed]]) -> None:
    """Refuse unknown knobs, and values that were not run of knobs without a term in the law."""
    run: dict[str, list[str]] = {}
    for setting in study.settings:
        for name, value in setting.pairs:
            run.setdefault(name, []).extend([value] if value not in run.get(name, ()) else [])
    if any(cell.batch_max is not None for cells in groups.values() for cell in cells):
        run.setdefault(BATCH_KNOB, [])
    for question in questions:
        check_names(question, run)
        for name, value in question.knobs.items():
            if name == BATCH_KNOB:
                whole(name, value)
            elif value not in run[name]:
                raise UsageError(
                    f"--what-if {name}={value}: the law has no term for {name}, only values that were run can be asked "
                    f"for: {', '.join(run[name])}"
                )


def _answer(question: Question, study: Study, laws: Sequence[GroupLaw], terms: Sequence[Term], missing: str) -> Answer:
    wanted = dict(_other_knobs(study.comparison.baseline).pairs)
    wanted |= {name: value for name, value in question.knobs.items() if name != BATCH_KNOB}
    group = next((law for law in laws if dict(law.knobs.pairs) == wanted), None)
    if group is None:
        return _refused(
            question, Setting.of(wanted), missing if not laws else "no cells with these knobs together ran to the end"
        )
    if group.law is None:
        return _refused(question, group.knobs, f"there is no model: {group.reason}")
    batch = {name: value for name, value in study.comparison.baseline.pairs if name == BATCH_KNOB}
    question = replace(question, knobs=batch | dict(question.knobs))
    return ask(question, group.knobs, group.cells, group.law, group.held_out, terms)


def _refused(question: Question, knobs: Setting, why: str) -> Answer:
    return Answer(question.text, knobs, None, None, why, (), {}, None)
