"""One cell over time: what was in flight, taken in, how long steps took, who waited, who paused, who burned cores.

All on one axis, seconds from the start of the steady window, which is shaded. Series are cut into bins, so that a long
cell takes no more room than a short one: lines are means over a bin, and a thin line above a step's is its longest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator, PercentFormatter

from analysis.gil.looks import LoopLooks
from analysis.metrics import rank_zero
from analysis.study import CellStudy
from analysis.svg import FAINT, INK, Plot, draw_panels, line_style, series_colour, thread_colour
from analysis.tables import CellTables
from analysis.text import number, share
from analysis.window import NS_PER_MS, NS_PER_S, Floats, Window, in_flight_means

BINS = 110
LOOKS_A_BIN = 20
PANEL_IN = 0.74
MOST_ROLES = 6


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its axis label, what it shows in words, and how to draw it."""

    label: str
    told: str
    draw: Callable[[Any], None]
    height: float = 1.0


def typical(cells: Sequence[CellStudy]) -> CellStudy | None:
    """Choose a setting's cell to be shown: finished, of middle throughput (of two middle ones the slower)."""
    done = [cell for cell in cells if cell.tables.done and cell.tables.window is not None]
    ranked = sorted(done, key=lambda cell: (cell.metrics.output_tok_s or 0.0, cell.id))
    return ranked[(len(ranked) - 1) // 2] if ranked else None


def timeline(cell: CellStudy, index: int, *, key: str, title: str) -> Plot | None:
    """Draw a cell; panels whose records are not there are left out, and the description says so."""
    tables, window = cell.tables, cell.tables.window
    if window is None:
        return None
    shown = _span(tables, window)
    panels, missing = [], []
    for name, panel in _panels(cell, window, shown, index):
        if panel is None:
            missing.append(name)
        else:
            panels.append(panel)
    if not panels:
        return None

    def draw_on(axes: Sequence[Any]) -> None:
        for panel, one in zip(panels, axes, strict=True):
            one.axvspan(0, window.length_s, color=FAINT, alpha=0.35, linewidth=0)
            panel.draw(one)
            one.set_title(panel.label, loc="left", fontsize=8.5, color=INK, pad=3)
            one.yaxis.set_major_locator(MaxNLocator(3, min_n_ticks=2))
        axes[-1].set_xlim((shown.start_ns - window.start_ns) / NS_PER_S, (shown.end_ns - window.start_ns) / NS_PER_S)
        axes[-1].set_xlabel("seconds from the start of the steady window (shaded)")

    told = "; ".join(panel.told for panel in panels)
    rest = f" Not recorded: {', '.join(missing)}." if missing else ""
    return draw_panels(
        draw_on,
        [panel.height for panel in panels],
        key=key,
        title=title,
        description=f"Over the window: {told}.{rest}",
        height_in=0.62 + PANEL_IN * sum(panel.height for panel in panels),
        margins_in=(0.5, 0.2, 0.42),
    )


def _span(tables: CellTables, window: Window) -> Window:
    """Show from the first request to the last's end, at most the window's length to either side of it."""
    length = window.end_ns - window.start_ns
    requests = tables.requests
    first = int(requests["sent_ns"].min()) if len(requests) else window.start_ns
    last = int(requests["end_ns"].max()) if len(requests) else window.end_ns
    return Window(
        max(min(first, window.start_ns), window.start_ns - length),
        min(max(last, window.end_ns), window.end_ns + length),
    )


def _panels(cell: CellStudy, window: Window, shown: Window, index: int) -> Iterator[tuple[str, Panel | None]]:
    tables, colour, style = cell.tables, series_colour(index), line_style(index)
    steps = rank_zero(tables.steps)
    steps = steps[shown.holds(steps["t_ns"])]
    at = _Axis(window, shown)
    yield "requests in flight", _in_flight(tables, at, colour, style)
    yield "arrivals per step", _arrivals(steps, at, colour)
    yield "step time", _step_times(steps, at, colour)
    yield "GIL wait", _waits(cell.metrics.gil.loop if cell.metrics.gil else None, at, colour)
    yield "garbage collector", _pauses(tables, at, colour)
    yield "CPU", _cores(tables, at)


@dataclass(frozen=True, slots=True)
class _Axis:
    """The time axis: bins over what is shown, in seconds from the window's start."""

    window: Window
    shown: Window

    def seconds(self, t_ns: Any) -> Floats:
        return (np.asarray(t_ns, dtype=np.int64) - self.window.start_ns) / NS_PER_S

    def bins(self, count: int = BINS) -> tuple[Any, Floats]:
        """Give edges (ns) and the middles of `count` bins."""
        edges = np.linspace(self.shown.start_ns, self.shown.end_ns, count + 1).astype(np.int64)
        return edges, self.seconds((edges[1:] + edges[:-1]) // 2)

    def binned(self, t_ns: Any, values: Any, how: str, count: int = BINS) -> tuple[Floats, Floats]:
        """Put values into bins; those without any are left out, so that the line runs on to the next."""
        edges, middles = self.bins(count)
        place = np.clip(np.searchsorted(edges, np.asarray(t_ns, dtype=np.int64), side="right") - 1, 0, count - 1)
        grouped = pd.Series(np.asarray(values, dtype=np.float64)).groupby(place).agg(how)
        return middles[grouped.index.to_numpy(dtype=np.int64)], grouped.to_numpy(dtype=np.float64)


def _in_flight(tables: CellTables, at: _Axis, colour: str, style: Any) -> Panel | None:
    requests = tables.requests
    if requests.empty:
        return None
    sent, end = (requests[name].to_numpy(dtype=np.int64) for name in ("sent_ns", "end_ns"))
    edges, middles = at.bins()
    means = in_flight_means(sent, end, edges)
    mean = float(in_flight_means(sent, end, [at.window.start_ns, at.window.end_ns])[0])

    def draw(axes: Any) -> None:
        axes.plot(middles, means, color=colour, linestyle=style, linewidth=1.2)
        axes.set_ylim(0, max(float(means.max()), 1.0) * 1.1)

    return Panel("requests in flight", f"{number(mean)} requests in flight on average", draw)


def _arrivals(steps: pd.DataFrame, at: _Axis, colour: str) -> Panel | None:
    known = steps[steps["new_requests"].notna()]
    if known.empty:
        return None
    values = known["new_requests"].to_numpy(dtype=np.float64)
    inside = values[known["in_window"].to_numpy(dtype=bool)]
    middles, means = at.binned(known["t_ns"], values, "mean")
    _, most = at.binned(known["t_ns"], values, "max")

    def draw(axes: Any) -> None:
        _draw_shaded(axes, middles, means, most, colour)
        axes.set_ylim(bottom=0)

    told = f"{number(float(inside.mean()))} new requests a step, at most {inside.max():.0f}" if len(inside) else "none"
    return Panel("new requests a step: mean, shaded to the most", told, draw)


def _draw_shaded(axes: Any, middles: Floats, means: Floats, most: Floats, colour: str) -> None:
    """Draw the bins' means as a line, shaded up to the most in each."""
    axes.fill_between(middles, most, step="mid", color=colour, alpha=0.22, linewidth=0)
    axes.plot(middles, means, color=colour, linewidth=1.2, drawstyle="steps-mid")


def _step_times(steps: pd.DataFrame, at: _Axis, colour: str) -> Panel | None:
    if steps.empty:
        return None
    values = steps["host_step_ms"].to_numpy(dtype=np.float64)
    inside = values[steps["in_window"].to_numpy(dtype=bool)]
    middles, means = at.binned(steps["t_ns"], values, "mean")
    _, most = at.binned(steps["t_ns"], values, "max")

    def draw(axes: Any) -> None:
        _draw_shaded(axes, middles, means, most, colour)
        steady = most[(middles >= 0) & (middles < at.window.length_s)]
        axes.set_ylim(0, 1.25 * float(np.percentile(steady if len(steady) else most, 98)))  # a first step takes long

    longest = f", longest {number(float(inside.max()))}" if len(inside) else ""
    mean = number(float(inside.mean())) if len(inside) else "not logged"
    return Panel("step time, ms: mean, shaded to the longest", f"a step of {mean} ms on average{longest}", draw)


def _waits(loop: LoopLooks | None, at: _Axis, colour: str) -> Panel | None:
    if loop is None or not len(loop.t_ns):
        return None
    span = (at.shown.end_ns - at.shown.start_ns) / max(at.window.end_ns - at.window.start_ns, 1)
    count = max(min(BINS, int(len(loop.t_ns) * span / LOOKS_A_BIN)), 2)
    middles, shares = at.binned(loop.t_ns, loop.wants * loop.scale, "mean", count)
    _, looks = at.binned(loop.t_ns, loop.wants, "count", count)
    enough = looks >= min(LOOKS_A_BIN // 4, looks.max())  # a bin at the edge may hold a look or two: no share
    middles, shares = middles[enough], shares[enough]
    mean = loop.scale * float(loop.wants.mean())

    def draw(axes: Any) -> None:
        axes.plot(middles, shares, color=colour, linewidth=1.2, drawstyle="steps-mid")
        axes.set_ylim(0, max(float(shares.max()) * 1.1, 0.05))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))

    return Panel("executor loop waits for the GIL, share of time", f"the loop waits {share(mean)} of the time", draw)


def _pauses(tables: CellTables, at: _Axis, colour: str) -> Panel | None:
    if not tables.logs_pauses:
        return None
    pauses = tables.pauses[at.shown.holds(tables.pauses["t_ns"])]
    inside = pauses.loc[pauses["in_window"], "pause_ms"]

    def draw(axes: Any) -> None:
        if len(pauses):
            seconds = at.seconds(pauses["t_ns"].to_numpy(dtype=np.int64))
            lengths = pauses["pause_ms"].to_numpy(dtype=np.float64)
            axes.vlines(seconds, 0, lengths, color=colour, linewidth=1.6)
            axes.set_ylim(0, float(lengths.max()) * 1.15)
        else:
            axes.set_ylim(0, 1)

    told = (
        f"{len(inside)} collector pauses, longest {number(float(inside.max()))} ms"
        if len(inside)
        else ("no collector pause of 1 ms or more")
    )
    label = "garbage-collector pauses, ms" if len(pauses) else "garbage-collector pauses: none of 1 ms or more"
    return Panel(label, told, draw, 0.8)


def _cores(tables: CellTables, at: _Axis) -> Panel | None:
    """Draw the busiest roles; each interval between two samples is one value."""
    host = tables.host
    courses: dict[str, tuple[Floats, Floats]] = {}
    for role, rows in host[host["tid"].isna()].groupby("role"):
        one = rows.sort_values("t_ns")
        t_ns, cpu_ns = (one[name].to_numpy(dtype=np.int64) for name in ("t_ns", "cpu_ns"))
        kept = np.concatenate([[True], np.diff(t_ns) > 10 * NS_PER_MS]) if len(t_ns) else np.zeros(0, dtype=bool)
        t_ns, cpu_ns = t_ns[kept], cpu_ns[kept]
        if len(t_ns) > 1:
            middles, cores = at.binned((t_ns[1:] + t_ns[:-1]) // 2, np.diff(cpu_ns) / np.diff(t_ns), "mean")
            courses[str(role)] = middles, np.maximum(cores, 0.0)
    if not courses:
        return None
    means = {role: _mean_inside(middles, cores, at) for role, (middles, cores) in courses.items()}
    roles = sorted(courses, key=lambda role: -means[role])[:MOST_ROLES]

    def draw(axes: Any) -> None:
        for place, role in enumerate(roles):
            axes.plot(
                *courses[role], color=thread_colour(place), linestyle=line_style(place), linewidth=1.2, label=role
            )
        axes.set_ylim(bottom=0)
        names = axes.legend(
            loc="lower left", bbox_to_anchor=(0.3, 0.93), ncols=len(roles), frameon=False, fontsize=8,
            handlelength=1.4, columnspacing=1.0, borderaxespad=0, labelcolor=INK,
        )  # fmt: skip
        names.set_in_layout(False)

    told = ", ".join(f"{role} {number(means[role])}" for role in roles)
    return Panel("cores used", f"cores used: {told}", draw, 1.3)


def _mean_inside(middles: Floats, values: Floats, at: _Axis) -> float:
    inside = values[(middles >= 0) & (middles < at.window.length_s)]
    return float(inside.mean()) if len(inside) else 0.0
