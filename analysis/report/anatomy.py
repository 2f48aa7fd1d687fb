"""The part of a concurrency's section that looks inside: what a step is made of, long holds, stacks, time lines."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.gil.holds import LongHolds
from analysis.gil.step_parts import StepParts, mean_parts
from analysis.plan import Setting
from analysis.report.flame import Flame, flame
from analysis.report.plots import step_bars
from analysis.report.timeline import timeline, typical
from analysis.study import CellStudy, Study
from analysis.svg import Plot
from analysis.text import NOTHING, number, share

TOP_HOLDS = 10
PARTS = {
    "host_ms": "host work",
    "gil_wait_ms": "GIL wait",
    "device_ms": "wait for the device",
    "other_ms": "other",
}

Group = tuple[int, Setting, list[CellStudy]]


@dataclass(frozen=True, slots=True)
class PartsRow:
    """One setting's mean step: (ms, share of the step) a part, the part of the host's without the GIL, errors."""

    setting: str
    index: int
    step: str
    parts: tuple[tuple[str, str], ...]
    native: str
    error: str


@dataclass(frozen=True, slots=True)
class HoldRow:
    """Long holds of a thread in a function (the first row: all) by setting: (share of time, how many and how long)."""

    thread: str
    function: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class HoldTable:
    """The long holds of all settings, and what they were taken by."""

    columns: tuple[str, ...]
    rows: tuple[HoldRow, ...]
    interval: str
    seen_from: str
    gap: str


@dataclass(frozen=True, slots=True)
class TimeLine:
    """The chosen cell of a setting over time."""

    setting: str
    index: int
    cell: str
    plot: Plot


@dataclass(frozen=True, slots=True)
class Anatomy:
    """All of it; each may be empty where the records do not tell."""

    parts_plot: Plot | None
    part_names: tuple[str, ...]
    parts: tuple[PartsRow, ...]
    holds: HoldTable | None
    flames: tuple[Flame, ...]
    timelines: tuple[TimeLine, ...]


def make_anatomy(study: Study, groups: Sequence[Group], threads: Sequence[str], *, key: str) -> Anatomy:
    """Look inside all settings at a concurrency; `threads` are those that have a colour there."""
    done = [(index, setting, [cell for cell in cells if cell.tables.done]) for index, setting, cells in groups]
    steps = [(index, setting, _mean_step(cells)) for index, setting, cells in done]
    known = [(index, setting, parts) for index, setting, parts in steps if parts is not None]
    return Anatomy(
        parts_plot=_parts_plot(study, known, key),
        part_names=tuple(PARTS.values()),
        parts=tuple(_parts_row(study.name(setting), index, parts) for index, setting, parts in known),
        holds=_holds(study, done),
        flames=tuple(_flames(study, done, threads)),
        timelines=tuple(_timelines(study, done, key)),
    )


def _mean_step(cells: Sequence[CellStudy]) -> StepParts | None:
    return mean_parts([cell.metrics.step_parts for cell in cells if cell.metrics.step_parts is not None])


def _parts_plot(study: Study, known: Sequence[tuple[int, Setting, StepParts]], key: str) -> Plot | None:
    if not known:
        return None
    bars = [
        (study.brief(setting), {name: getattr(parts, field) or 0.0 for field, name in PARTS.items()})
        for _, setting, parts in known
    ]
    return step_bars(bars, tuple(PARTS.values()), key=f"parts{key}")


def _parts_row(setting: str, index: int, parts: StepParts) -> PartsRow:
    values = [getattr(parts, field) for field in PARTS]
    return PartsRow(
        setting=setting,
        index=index,
        step=number(parts.step_ms),
        parts=tuple((number(ms), "" if ms is None else share(ms / parts.step_ms)) for ms in values),
        native=number(parts.native_ms),
        error=NOTHING if parts.error is None else f"\N{PLUS-MINUS SIGN}{share(parts.error)}",
    )


def _holds(study: Study, groups: Sequence[Group]) -> HoldTable | None:
    seen = [
        (setting, [cell.metrics.long_holds for cell in cells if cell.metrics.long_holds is not None])
        for _, setting, cells in groups
    ]
    seen = [(setting, found) for setting, found in seen if found]
    if not seen:
        return None
    total: dict[tuple[str, str], float] = {}
    for _, found in seen:
        for cell in found:
            for one in cell.groups:
                name = (one.name, one.function or "")
                total[name] = total.get(name, 0.0) + one.share / len(found)
    ranked = sorted(total, key=lambda name: (-total[name], name))[:TOP_HOLDS]
    rows = [HoldRow("", "", tuple(_all_holds(found) for _, found in seen))] if total else []
    rows += [HoldRow(*name, tuple(_hold_cell(found, *name) for _, found in seen)) for name in ranked]
    cells = [cell for _, found in seen for cell in found]
    intervals = sorted({(cell.interval_ms, cell.interval_from) for cell in cells})
    return HoldTable(
        columns=tuple(study.name(setting) for setting, _ in seen),
        rows=tuple(rows),
        interval=", ".join(f"{ms:g} ms ({source})" for ms, source in intervals),
        seen_from=number(max(cell.seen_from_ms for cell in cells)),
        gap=number(max(cell.gap_ms for cell in cells)),
    )


def _all_holds(cells: Sequence[LongHolds]) -> tuple[str, str]:
    count = sum(cell.count for cell in cells)
    waited = [cell.waited for cell in cells if cell.waited is not None]
    told = f"{count:,} seen"
    if waited:
        told += f", longest {number(max(cell.longest_ms for cell in cells))} ms"
        told += f"; someone waited in {share(sum(waited) / len(waited))} of it"
    return share(sum(cell.share for cell in cells) / len(cells)), told


def _hold_cell(cells: Sequence[LongHolds], name: str, function: str) -> tuple[str, str]:
    found = [one for cell in cells for one in cell.groups if (one.name, one.function or "") == (name, function)]
    if not found:
        return NOTHING, ""
    longest = max(found, key=lambda one: (one.longest_ms, one.longest_most_ms))
    span = f"{number(longest.longest_ms)} to {number(longest.longest_most_ms)} ms"
    return share(sum(one.share for one in found) / len(cells)), f"{sum(one.count for one in found):,}, longest {span}"


def _flames(study: Study, groups: Sequence[Group], threads: Sequence[str]) -> list[Flame]:
    drawn = (
        flame(
            study.name(setting),
            index,
            [cell.tables.holders for cell in cells if cell.tables.holders is not None],
            threads,
        )
        for index, setting, cells in groups
    )
    return [one for one in drawn if one is not None]


def _timelines(study: Study, groups: Sequence[Group], key: str) -> list[TimeLine]:
    lines = []
    for index, setting, cells in groups:
        chosen = typical(cells)
        title = f"{study.brief(setting)}, cell {chosen.id}" if chosen else ""
        plot = timeline(chosen, index, key=f"time{key}-{index}", title=title) if chosen else None
        if chosen is not None and plot is not None:
            lines.append(TimeLine(study.name(setting), index, chosen.id, plot))
    return lines
