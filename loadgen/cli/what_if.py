"""Answers to --what-if on the terminal: predictions, refusals, and how wrong the law was on points left out."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from analysis.scaling.heldout import QUANTITIES, HeldOut
from analysis.scaling.study import Scaling
from analysis.scaling.view import answer_line, error_line
from analysis.scaling.whatif import Answer
from loadgen.cli.console import stdout_console

PLAIN_WIDTH = 160


def status_of(answers: Sequence[Answer]) -> int:
    """Return 1 when a question was refused, else 0."""
    return int(any(answer.refusal is not None for answer in answers))


def print_answers(scaling: Scaling) -> None:
    """Print on stdout the predictions with their errors, what was refused and why, and the laws' held-out errors."""
    console = stdout_console(PLAIN_WIDTH)
    lines = [answer_line(answer) for answer in scaling.answers]
    answered = [line for line in lines if not line.refusal]
    if answered:
        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        table.add_column("what if", overflow="fold")
        for name in (*(f"{one.label}, {one.unit}" for one in QUANTITIES), "messages a request"):
            table.add_column(name, justify="right")
        if scaling.terms:
            table.add_column(f"{', '.join(term.text for term in scaling.terms)} met", overflow="fold")
        for line in answered:
            values = [f"{value} {error}".strip() for value, error in line.values]
            table.add_row(Text(line.question), *values, *([Text(line.sustained)] if scaling.terms else []))
        console.print(table)
    for line in lines:
        for note in (f"no prediction: {line.refusal}" if line.refusal else "", *line.notes):
            if note:
                console.print(f"{line.question}: {note}", highlight=False, markup=False, soft_wrap=True)
    if scaling.laws and scaling.left_out:
        console.print(
            f"cells that are not in the law: {len(scaling.left_out)}; the first, {scaling.left_out[0].cell}: "
            f"{scaling.left_out[0].why}",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    for group in scaling.laws:
        if group.held_out and (
            len(scaling.laws) == 1 or any(answer.knobs == group.knobs for answer in scaling.answers)
        ):
            console.print(_errors(group.knobs.label if group.knobs.pairs else "", group.held_out))


def _errors(knobs: str, held_out: Sequence[HeldOut]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in (f"the law {f'with {knobs}' if knobs else ''}".strip(), "held-out error", "worst", "repeats alone", ""):
        table.add_column(Text(name), overflow="fold")
    for one in held_out:
        line = error_line(one)
        table.add_row(line.quantity, line.mean, Text(line.worst), line.repeat, line.verdict)
    return table
