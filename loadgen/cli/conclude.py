"""How `sweep` and `run` carry a plan out and end: progress on stderr, verdict and report on stdout, exit status."""

from collections.abc import Sequence

from rich.console import Console

from analysis.report import write_report
from contracts.folder import SweepFolder
from harness import sweep as sweeps
from harness.plan import Cell, Plan
from harness.remote import WorkersFrom
from harness.stacks.base import Stack
from loadgen.cli.progress import SweepProgress
from loadgen.cli.verdict import print_verdict

EXIT = {sweeps.DONE: 0, sweeps.FAILED: 1, sweeps.INTERRUPTED: 130}


def carry_out(
    folder: SweepFolder, plan: Plan, cells: Sequence[Cell], stack: Stack, workers_from: WorkersFrom | None = None
) -> int:
    """Run the cells, report on whatever was finished, and return the exit status."""
    console = Console(stderr=True)
    noun = "cell" if len(cells) == 1 else "cells"
    console.print(f"{len(cells)} {noun} into {folder.path}", highlight=False, markup=False)
    with SweepProgress(console, len(cells)) as progress:
        outcome = sweeps.run(folder, plan, cells, stack, progress, workers_from)
    if folder.cell_folders():
        report = write_report(folder.path)
        print_verdict(folder.path)
        print(f"report: {report}", flush=True)
    if outcome == sweeps.INTERRUPTED:
        console.print(f"interrupted; go on with: loadgen sweep --resume {folder.path}", highlight=False, markup=False)
    return EXIT[outcome]
