"""Answers to --what-if: what the law predicts, how wrong it was on cells it had not seen, and when it must not answer.

It withholds each quantity whose held-out error is above 20 %, and refuses where that is every one, or where a question
lies more than twice beyond what was run. Whatever it says carries the held-out error of its quantity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.plan import Setting
from analysis.scaling.heldout import HOLDS_BELOW, HeldOut
from analysis.scaling.law import Law, Predicted, Workload
from analysis.scaling.points import BATCH_KNOB, OPERATIONS, Observed, term_name
from analysis.scaling.questions import ISL, Question, whole
from analysis.slo import Term

FARTHEST = 2.0
SAME_LENGTH = 1.05
_KILOTOKENS = len(OPERATIONS) - 1


@dataclass(frozen=True, slots=True)
class Sustained:
    """The greatest concurrency at which the law has the objective met; None with the reason in `note`."""

    concurrency: int | None
    note: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One question answered or refused. `knobs` are those the law has no term for.

    `refusal` is None where there is a prediction. `notes` say what to bear in mind (extrapolation, what no held-out
    cell speaks of, what is withheld). `errors` are mean held-out errors by quantity; of `predicted`, those named in
    `withheld` must not be believed. `sustained` only with an objective.
    """

    question: str
    knobs: Setting
    workload: Workload | None
    predicted: Predicted | None
    refusal: str | None
    notes: tuple[str, ...]
    errors: Mapping[str, float | None]
    sustained: Sustained | None
    withheld: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Reach:
    """One variable of a question: its value, and the range that was run."""

    name: str
    value: float
    low: float
    high: float

    @property
    def beyond(self) -> float:
        """Return how many times beyond the range the value lies; 1 inside."""
        return max(self.low / self.value, self.value / self.high, 1.0)

    @property
    def sentence(self) -> str:
        side = "the least" if self.value < self.low else "the greatest"
        edge = self.low if self.value < self.low else self.high
        return f"{self.name}={self.value:,.0f} is {self.beyond:.1f} times beyond {side} that was run, {edge:,.0f}"


def ask(
    question: Question,
    knobs: Setting,
    cells: Sequence[Observed],
    law: Law,
    held_out: Sequence[HeldOut],
    terms: Sequence[Term],
) -> Answer:
    """Answer a question by the law of the cells with these `knobs`."""
    workload = workload_of(question, cells)
    errors = {one.quantity.name: one.mean for one in held_out}
    reaches = _reaches(workload, cells)
    refusal = _why_not(held_out, reaches, workload, law)
    if refusal is not None:
        return Answer(question.text, knobs, workload, None, refusal, (), errors, None)
    predicted = law.solve(workload)
    notes = [f"extrapolated: {reach.sentence}" for reach in reaches if reach.beyond > 1]
    notes += _unheard(workload, cells)
    unfit = [one for one in held_out if not one.holds]
    notes += [f"no prediction of {one.quantity.label}: the model does not hold for it, {_size(one)}" for one in unfit]
    if predicted.front_end_full:
        notes.append("the front end is full: it, not rank 0, limits")
    sustained = _sustain(workload, cells, law, held_out, terms) if terms else None
    withheld = frozenset(one.quantity.name for one in unfit)
    return Answer(question.text, knobs, workload, predicted, None, tuple(notes), errors, sustained, withheld)


def workload_of(question: Question, cells: Sequence[Observed]) -> Workload:
    """Fill a question up from the cells: mean lengths, the greatest concurrency, the first cell's batch size."""
    batch: float | None = cells[0].batch_max
    if BATCH_KNOB in question.knobs:
        batch = whole(BATCH_KNOB, question.knobs[BATCH_KNOB])
    return Workload(
        concurrency=question.concurrency or max(cell.concurrency for cell in cells),
        prompt_tokens=question.isl or _mean([cell.prompt_tokens for cell in cells]),
        output_tokens=question.osl or _mean([cell.output_tokens for cell in cells]),
        batch_max=batch,
        think_ms=cells[0].think_ms,
    )


def _reaches(asked: Workload, cells: Sequence[Observed]) -> list[_Reach]:
    outputs = [cell.output_tokens for cell in cells]
    users = [cell.concurrency for cell in cells]
    shortest, longest = min(cell.prompt_spread[0] for cell in cells), max(cell.prompt_spread[1] for cell in cells)
    found = [
        _Reach("concurrency", asked.concurrency, min(users), max(users)),
        _Reach("osl", asked.output_tokens, min(outputs) / SAME_LENGTH, max(outputs) * SAME_LENGTH),
        _Reach(ISL, asked.prompt_tokens, shortest, longest),
    ]
    sizes = [cell.batch_max for cell in cells if cell.batch_max is not None]
    if asked.batch_max is not None and sizes:
        found.append(_Reach(BATCH_KNOB, asked.batch_max, min(sizes), max(sizes)))
    return found


def _why_not(held_out: Sequence[HeldOut], reaches: Sequence[_Reach], asked: Workload, law: Law) -> str | None:
    """Say why there is no prediction, all reasons; None where there is one."""
    reasons = []
    if all(one.mean is None for one in held_out):
        reasons.append("the model is not tested: without one setting and concurrency the others give no law")
    elif not any(one.holds for one in held_out):
        sizes = "; ".join(f"{one.quantity.label}: {_size(one)}" for one in held_out)
        reasons.append(f"the model does not hold: {sizes}")
    reasons += [f"too far from what was run: {reach.sentence}" for reach in reaches if reach.beyond > FARTHEST]
    prompts = next(reach for reach in reaches if reach.name == ISL)
    if prompts.beyond > SAME_LENGTH and _KILOTOKENS not in law.services.told:
        reasons.append(
            f"all prompts had {prompts.low:,.0f} to {prompts.high:,.0f} tokens, and nothing tells what others cost: "
            "run a spread of lengths, as with --isl uniform:min=512,max=8192"
        )
    if (asked.batch_max or 1) > 1 and law.gathering is None:
        reasons.append("no cell with batched submits was run, and nothing tells how requests gather into a message")
    return "; ".join(reasons) or None


def _unheard(asked: Workload, cells: Sequence[Observed]) -> list[str]:
    """Name the lengths that are asked for and that no left-out cell could have tested."""
    notes = []
    for name, value, run in (
        (ISL, asked.prompt_tokens, [cell.prompt_tokens for cell in cells]),
        ("osl", asked.output_tokens, [cell.output_tokens for cell in cells]),
    ):
        if not min(run) / SAME_LENGTH <= value <= max(run) * SAME_LENGTH:
            notes.append(
                f"no cell had a mean {name} of {value:,.0f} (they had {min(run):,.0f} to {max(run):,.0f}): "
                "the held-out errors speak of other settings and concurrencies only"
            )
    return notes


def _sustain(
    asked: Workload, cells: Sequence[Observed], law: Law, held_out: Sequence[HeldOut], terms: Sequence[Term]
) -> Sustained:
    """Search for the greatest concurrency at which every term's percentile is below its bound."""
    for term in terms:
        name = term_name(term).replace(":", ".")
        error = next((one for one in held_out if one.quantity.name == name), None)
        if error is None or not error.holds:
            return Sustained(None, f"cannot be told: held-out error {_error(error)} for {term_name(term)}")
    limit = int(FARTHEST * max(cell.concurrency for cell in cells))

    def met(users: int) -> bool:
        at = law.solve(_with_users(asked, users))
        return all(at.percentile_ms(term_name(term)) < term.bound for term in terms)

    if not met(1):
        return Sustained(None, "not even one user")
    if met(limit):
        return Sustained(limit, "met up to twice what was run, beyond which the law is not asked")
    low, high = 1, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if met(middle) else (low, middle)
    run = max(cell.concurrency for cell in cells)
    return Sustained(low, f"extrapolated: beyond {run:,}, the greatest that was run" if low > run else "")


def _with_users(asked: Workload, users: int) -> Workload:
    return Workload(users, asked.prompt_tokens, asked.output_tokens, asked.batch_max, asked.think_ms)


def _size(one: HeldOut) -> str:
    """Write a quantity's held-out error out, with what of it the repeats' own noise may be."""
    noise = "" if one.repeat is None else f"; repeats alone leave the measured mean uncertain by {one.repeat:.0%}"
    return f"held-out error {_error(one)} (at most {HOLDS_BELOW:.0%}{noise})"


def _error(one: HeldOut | None) -> str:
    return "not known" if one is None or one.mean is None else f"{one.mean:.0%}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
