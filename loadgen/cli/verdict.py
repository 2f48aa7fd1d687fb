"""What a sweep ends with: its report, and the few lines on the terminal that tell what was found."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from analysis.claims import ClaimRow
from analysis.report.page import write_page
from analysis.scaling.study import study_scaling
from analysis.study import study_sweep
from analysis.text import times
from analysis.verdict import VerdictTable, verdict_table
from loadgen.cli import parsing
from loadgen.cli.console import stdout_console

PLAIN_WIDTH = 120


def report_on(folder: Path) -> None:
    """Work a sweep's folder through, once: write its report, print the verdict and where the report is."""
    study = study_sweep(folder, processes=parsing.cores())
    report = write_page(study, study_scaling(study))
    print_verdict(verdict_table(study))
    print(f"report: {report}", flush=True)


def print_verdict(verdict: VerdictTable) -> None:
    """Print on stdout what the sweep found: the sentences, a table of effects, and which warnings it carries."""
    console = stdout_console(PLAIN_WIDTH)
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
