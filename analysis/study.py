"""A sweep worked through once: what the JSON, the terminal table and the report all show."""

import gc
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path

from analysis.claims import ClaimRow, claims_shown
from analysis.compare import Comparison, compare
from analysis.doubts import cell_doubts, sweep_doubts
from analysis.limits import CpuUse, Limit, cpu_use, find_limit
from analysis.metrics import CellMetrics, measure
from analysis.plan import Setting, SweepInfo
from analysis.slo import SloStudy, parse_slo, study_slo
from analysis.steady import Steadiness, judge_steadiness
from analysis.tables import CellTables, load_cell
from contracts.doubts import Doubt
from contracts.folder import CellFolder, SweepFolder

WORTH_PROCESSES = 24  # cells from which on starting processes costs less than it saves


@dataclass(frozen=True, slots=True)
class CellStudy:
    """One cell: tables, metrics, what limits it (None without a window) and what casts doubt on it."""

    tables: CellTables
    metrics: CellMetrics
    cpu: CpuUse
    limit: Limit | None
    doubts: tuple[Doubt, ...]
    steadiness: Steadiness

    @property
    def id(self) -> str:
        return self.tables.info.id


@dataclass(frozen=True)
class Study:
    """A whole sweep, cells in the order in which they ran."""

    path: Path
    info: SweepInfo
    cells: tuple[CellStudy, ...]
    comparison: Comparison
    sweep_doubts: tuple[Doubt, ...]
    objective: str | None = None

    @cached_property
    def doubts(self) -> tuple[Doubt, ...]:
        """All warnings: the sweep's, then the cells'."""
        return self.sweep_doubts + tuple(doubt for cell in self.cells for doubt in cell.doubts)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All settings that have a cell, the baseline first."""
        present = {cell.tables.setting for cell in self.cells}
        return tuple(self.info.order_settings(present))

    @property
    def knob(self) -> str | None:
        """The knob's name where the sweep turns just one, None otherwise."""
        names = {name for setting in self.settings for name, _ in setting.pairs}
        return next(iter(names)) if len(names) == 1 else None

    @cached_property
    def claims(self) -> tuple[ClaimRow, ...]:
        """The published claims that the sweep can speak of, held against what it measured."""
        return tuple(claims_shown(self.comparison))

    @cached_property
    def slo(self) -> SloStudy | None:
        """The cells held against the sweep's objective, or the one asked for; None without one."""
        text = self.objective or self.info.plan.get("slo")
        if not text:
            return None
        return study_slo([cell.tables for cell in self.cells], self.settings, parse_slo(text))

    @property
    def one_at_a_time(self) -> bool:
        """Whether the sweep turned one knob at a time from its baseline."""
        return self.info.plan.get("design") == "one_at_a_time"

    def name(self, setting: Setting) -> str:
        """Name a setting in a table: its value where the one knob's name heads the column, else what differs."""
        if self.knob:
            return setting.short
        turned = setting.turned_from(self.comparison.baseline)
        return " ".join(f"{name}={value}" for name, (_, value) in turned.items()) or "baseline"

    def brief(self, setting: Setting) -> str:
        """Name a setting where there is little room: as in a table, knobs without their prefix."""
        words = self.name(setting).split(" ")
        return " ".join(word.removeprefix("REFSTACK_").removeprefix("TLLM_RPC_") for word in words)

    def select(self, concurrency: int, setting: Setting | None = None) -> list[CellStudy]:
        """Give the cells at a concurrency (of one setting), in order."""
        return [
            cell
            for cell in self.cells
            if cell.tables.info.concurrency == concurrency and setting in {None, cell.tables.setting}
        ]


def study_sweep(path: Path, objective: str | None = None, *, processes: int = 1) -> Study:
    """Load and work through a sweep's folder; `objective` goes before its own (analysis.slo).

    With several processes a large sweep's cells are worked through beside each other; the program's main module must
    then be safe to import. Raises UsageError or FormatError when it is no sweep's folder.
    """
    folder = SweepFolder(Path(path))
    info = SweepInfo.from_json(folder.read())
    think_s = float(info.plan.get("think_s", "0"))
    cells = tuple(sorted(_study_cells(folder, think_s, processes), key=lambda cell: cell.tables.info.index))
    tables = [cell.tables for cell in cells]
    present = info.order_settings(one.setting for one in tables)
    baseline = info.baseline
    names = {name for name, _ in baseline.pairs}
    if present and all(names != {name for name, _ in setting.pairs} for setting in present):
        baseline = present[0]  # sweep.json speaks of other knobs than the cells do
    comparison = compare([(cell.tables, cell.metrics) for cell in cells], baseline, present, info.planned_blocks)
    doubts = sweep_doubts(info, tables, comparison)
    return Study(folder.path, info, cells, comparison, tuple(doubts), objective)


def _study_cells(folder: SweepFolder, think_s: float, processes: int) -> list[CellStudy]:
    folders = folder.cell_folders()
    work = partial(_study_folder, think_s=think_s)
    if processes < 2 or len(folders) < WORTH_PROCESSES:
        return [work(one) for one in folders]
    # the many rows of a cell go by reference counts alone; a collector would walk them again and again
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=gc.disable) as pool:
        return list(pool.map(work, folders))


def _study_folder(folder: CellFolder, think_s: float) -> CellStudy:
    """Work through a cell, and let go of its looks at the GIL once counted: they are by far the most objects."""
    study = _study_cell(load_cell(folder), think_s)
    return replace(study, tables=replace(study.tables, gil=()))


def _study_cell(tables: CellTables, think_s: float) -> CellStudy:
    metrics = measure(tables)
    cpu = cpu_use(tables)
    limit = find_limit(tables, metrics, cpu)
    steadiness = judge_steadiness(tables)
    doubts = cell_doubts(tables, metrics, cpu, limit, steadiness, think_s=think_s)
    return CellStudy(tables, metrics, cpu, limit if tables.window else None, tuple(doubts), steadiness)
