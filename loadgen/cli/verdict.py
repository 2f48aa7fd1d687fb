"""The few lines that a sweep ends with on the terminal."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from analysis.summary import verdict_lines


def print_verdict(folder: Path, console: Console) -> None:
    """Print what the sweep found: the sentences, then a table of effects."""
    verdict = verdict_lines(folder)
    for sentence in verdict.sentences:
        console.print(sentence, highlight=False, markup=False)
    if not verdict.rows:
        return
    table = Table(box=None, header_style="bold")
    for name in verdict.columns:
        table.add_column(name)
    for row in verdict.rows:
        table.add_row(*row)
    console.print(table)
