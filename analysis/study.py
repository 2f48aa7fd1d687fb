"""A sweep worked through once: what the JSON, the terminal table and the report all show."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from analysis.claims import ClaimRow, claims_shown
from analysis.compare import Comparison, compare
from analysis.doubts import cell_doubts, sweep_doubts
from analysis.limits import CpuUse, Limit, cpu_use, find_limit
from analysis.metrics import CellMetrics, measure
from analysis.plan import Setting, SweepInfo
from analysis.slo import SloStudy, parse_slo, study_slo
from analysis.steady import Steadiness, judge_steadiness
from analysis.tables import CellTables, load_sweep
from contracts.doubts import Doubt


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


def study_sweep(path: Path, objective: str | None = None) -> Study:
    """Load and work through a sweep's folder; `objective` goes before its own (analysis.slo).

    Raises UsageError or FormatError when it is not one.
    """
    sweep = load_sweep(path)
    think_s = float(sweep.info.plan.get("think_s", "0"))
    cells = tuple(_study_cell(cell, think_s) for cell in sweep.per_cell)
    present = sweep.info.order_settings(cell.setting for cell in sweep.per_cell)
    baseline = sweep.info.baseline
    names = {name for name, _ in baseline.pairs}
    if present and all(names != {name for name, _ in setting.pairs} for setting in present):
        baseline = present[0]  # sweep.json speaks of other knobs than the cells do
    comparison = compare([(cell.tables, cell.metrics) for cell in cells], baseline, present, sweep.info.planned_blocks)
    doubts = sweep_doubts(sweep.info, sweep.per_cell, comparison)
    return Study(sweep.path, sweep.info, cells, comparison, tuple(doubts), objective)


def _study_cell(tables: CellTables, think_s: float) -> CellStudy:
    metrics = measure(tables)
    cpu = cpu_use(tables)
    limit = find_limit(tables, metrics)
    steadiness = judge_steadiness(tables)
    doubts = cell_doubts(tables, metrics, cpu, limit, steadiness, think_s=think_s)
    return CellStudy(tables, metrics, cpu, limit if tables.window else None, tuple(doubts), steadiness)
