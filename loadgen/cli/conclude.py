"""How `sweep` and `run` carry a plan out and end: progress on stderr, verdict and report on stdout, exit status."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import Console

from contracts.folder import SweepFolder
from harness import sweep as sweeps
from harness.plan import Cell, Plan
from harness.remote import WorkersFrom
from harness.stacks.base import Stack
from loadgen.cli.progress import SweepProgress

EXIT = {sweeps.DONE: 0, sweeps.FAILED: 1, sweeps.INTERRUPTED: 130}


def carry_out(
    folder: SweepFolder, plan: Plan, cells: Sequence[Cell], stack: Stack, workers_from: WorkersFrom | None = None
) -> int:
    """Run the cells, report on whatever was finished, and return the exit status."""
    console = Console(stderr=True)
    noun = "cell" if len(cells) == 1 else "cells"
    console.print(f"{len(cells)} {noun} into {folder.path}", highlight=False, markup=False)
    todo = sweeps.unfinished(folder, cells)
    with SweepProgress(console, todo, len(cells), _lasted(folder, cells)) as progress:
        outcome = sweeps.run(folder, plan, cells, stack, progress, workers_from)
    if folder.cell_folders():
        from loadgen.cli.verdict import report_on  # seconds of imports, which a sweep's start need not wait for

        report_on(folder.path)
    if outcome == sweeps.INTERRUPTED:
        console.print(f"interrupted; go on with: loadgen sweep --resume {folder.path}", highlight=False, markup=False)
    return EXIT[outcome]


def _lasted(folder: SweepFolder, cells: Sequence[Cell]) -> list[tuple[int, float]]:
    """Say how long (s) the cells that an earlier run has finished took, by concurrency."""
    found = []
    for cell in cells:
        where = folder.cell(cell.slug)
        info = where.read() if where.json.exists() else None
        if info is not None and info.state == "done" and info.started_at and info.ended_at:
            lasted = datetime.fromisoformat(info.ended_at) - datetime.fromisoformat(info.started_at)
            found.append((cell.concurrency, lasted.total_seconds()))
    return found
