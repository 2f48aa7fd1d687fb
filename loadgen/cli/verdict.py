"""The few lines that a sweep ends with on the terminal."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.claims import ClaimRow
from analysis.summary import verdict_lines
from analysis.text import times

PLAIN_WIDTH = 120


def print_verdict(folder: Path) -> None:
    """Print on stdout what the sweep found: the sentences, a table of effects, and which warnings it carries."""
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    verdict = verdict_lines(folder)
    for sentence in verdict.sentences:
        console.print(sentence, highlight=False, markup=False)
    if verdict.rows:
        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        for name in verdict.columns:
            table.add_column(name, overflow="fold")
        for row in verdict.rows:
            table.add_row(*(Text(value) for value in row))
        console.print(table)
    if verdict.claims:
        console.print(_claims(verdict.claims))
    if verdict.warnings:
        console.print(f"warnings: {', '.join(verdict.warnings)}", highlight=False, markup=False)


def _claims(rows: Sequence[ClaimRow]) -> Table:
    """Lay the published claims beside what was measured: ratios, better over worse as the claim states it."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("published claim", "source", "concurrency", "published", "measured", "verdict"):
        table.add_column(name, overflow="fold")
    for row in rows:
        published = "better" if row.claim.published is None else times(row.claim.published)
        table.add_row(
            Text(row.claim.text), row.claim.source, str(row.concurrency), published,
            times(row.measured, row.low, row.high), row.verdict,
        )  # fmt: skip
    return table
