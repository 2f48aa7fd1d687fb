"""The report's plots. Each takes tidy data and gives one Plot; what a reader should see is in its description too."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from analysis.compare import Effect
from analysis.plan import Setting
from analysis.svg import FAINT, INK, PAPER, Plot, draw, line_style, series_colour, thread_colour
from analysis.text import MINUS, change, interval, number, share
from analysis.window import NS_PER_S, Floats, in_flight_means

POINTS = 160
DRAWN = 100_000  # values a block: a random sample of more is the same line, and quicker
BLOCK_POINTS = 60
TIME_BINS = 140
NARROWEST = 2.0  # per cent to either side: no effect must not fill the plot
LABEL_LETTERS = 27


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of one setting, one array a block; `index` fixes its colour and line on the whole page."""

    name: str
    index: int
    blocks: Sequence[Floats]


@dataclass(frozen=True, slots=True)
class Course:
    """One cell's requests in time: (sent_ns, end_ns) arrays, and its window's and load's edges in ns."""

    name: str
    index: int
    sent_ns: Any
    end_ns: Any
    start_ns: int
    steady_start_ns: int
    steady_end_ns: int
    last_ns: int


def distribution(samples: Sequence[Sample], *, key: str, title: str, label: str, log: bool) -> Plot:
    """Draw the cumulative distribution of each setting: all blocks together bold, each block thin behind it.

    A linear axis ends where all but a few in a thousand lie, and says how far the rest reaches.
    """
    drawn = [_thinned(sample) for sample in samples if any(len(block) for block in sample.blocks)]
    pooled = [np.concatenate(sample.blocks) for sample in drawn]
    longest = max((float(values.max()) for values in pooled), default=0.0)
    end = min(longest * 1.03, 1.25 * max((float(np.percentile(values, 99.5)) for values in pooled), default=1.0))
    told = []

    def draw_on(axes: Any) -> None:
        for sample, values in zip(drawn, pooled, strict=True):
            colour, style = series_colour(sample.index), line_style(sample.index)
            for block in sample.blocks:
                if len(block) and len(sample.blocks) > 1:
                    axes.plot(*_cumulative(block, BLOCK_POINTS), color=colour, linewidth=0.7, alpha=0.4)
            axes.plot(*_cumulative(values, POINTS), color=colour, linestyle=style)
        axes.set_ylim(0, 1.02)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 0.9, 1])
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_ylabel("share at or below")
        axes.set_xlabel(label if log or longest <= end else f"{label} (longest {number(longest)})")
        if log:
            _log_time(axes)
        else:
            axes.set_xlim(0, end)
            axes.xaxis.set_major_locator(MaxNLocator(6))

    for sample, values in zip(drawn, pooled, strict=True):
        p50, p90, p99 = np.percentile(values, (50, 90, 99))
        told.append(f"{sample.name}: p50 {number(p50)}, p90 {number(p90)}, p99 {number(p99)}")
    return draw(draw_on, key=key, title=title, description=f"{label}. {'; '.join(told) or 'no data'}.")


def gil_bars(shares: Sequence[tuple[str, Mapping[str, float]]], threads: Sequence[str], *, key: str) -> Plot:
    """Draw who held the GIL: one bar a setting, one segment a thread group; the rest of the bar is nobody."""
    told = []
    for name, by_thread in shares:
        parts = ", ".join(f"{name} {share(value)}" for name, value in by_thread.items())
        told.append(f"{name}: held {share(sum(by_thread.values()))} of the time ({parts})")

    def draw_on(axes: Any) -> None:
        for place in range(len(shares)):
            axes.barh(place, 1, height=0.62, color="none", edgecolor=FAINT, linewidth=0.8)
        _stack(axes, shares, threads, 1.0, share)
        axes.set_xlim(0, max(1.0, *(sum(by_thread.values()) for _, by_thread in shares)))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlabel("share of wall time holding the GIL")

    return draw(
        draw_on,
        key=key,
        title="Share of wall time, by thread",
        description="; ".join(told) + ".",
        height_in=1.0 + 0.42 * max(len(shares), 2),
    )


def step_bars(steps: Sequence[tuple[str, Mapping[str, float]]], parts: Sequence[str], *, key: str) -> Plot:
    """Draw what the mean step is made of: one bar a setting, one segment a part, ms."""
    told = [f"{name}: " + ", ".join(f"{part} {number(ms)} ms" for part, ms in by.items()) for name, by in steps]
    longest = max(sum(by.values()) for _, by in steps)

    def draw_on(axes: Any) -> None:
        _stack(axes, steps, parts, longest, number)
        axes.set_xlim(0, longest * 1.02)
        axes.set_xlabel("mean step of the executor loop, ms")

    return draw(
        draw_on,
        key=key,
        title="What a step is made of",
        description="; ".join(told) + ".",
        height_in=1.0 + 0.42 * max(len(steps), 2),
    )


def _stack(
    axes: Any,
    rows: Sequence[tuple[str, Mapping[str, float]]],
    parts: Sequence[str],
    whole: float,
    write: Callable[[float], str],
) -> None:
    """Draw a stacked bar a row, each part in its colour, with its figure where there is room for it."""
    for place, (_, by_part) in enumerate(rows):
        left = 0.0
        for index, part in enumerate(parts):
            width = by_part.get(part, 0.0)
            axes.barh(place, width, left=left, height=0.62, color=thread_colour(index), linewidth=0)
            if width >= 0.09 * whole:
                axes.text(left + width / 2, place, write(width), color=PAPER, ha="center", va="center", fontsize=8)
            left += width
    axes.set_yticks(range(len(rows)), [clip(name) for name, _ in rows])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def in_flight(courses: Sequence[Course], asked: int, *, key: str) -> Plot:
    """Draw requests in flight over time, one line a cell; time 0 is the start of the steady window, shown shaded."""
    told = []
    lines = []
    for course in courses:
        edges = np.linspace(course.start_ns, course.last_ns, TIME_BINS + 1).astype(np.int64)
        means = in_flight_means(course.sent_ns, course.end_ns, edges)
        middles = ((edges[1:] + edges[:-1]) / 2 - course.steady_start_ns) / NS_PER_S
        lines.append((course, middles, means))
        steady = means[(middles >= 0) & (middles < (course.steady_end_ns - course.steady_start_ns) / NS_PER_S)]
        if len(steady):
            told.append(f"{course.name}: {number(float(steady.mean()))}")

    def draw_on(axes: Any) -> None:
        for course, middles, means in lines:
            axes.plot(
                middles, means, color=series_colour(course.index), linestyle=line_style(course.index), linewidth=1.1
            )
        longest = max((course.steady_end_ns - course.steady_start_ns for course in courses), default=0)
        axes.axvspan(0, longest / NS_PER_S, color=FAINT, alpha=0.35, linewidth=0)
        axes.axhline(asked, color=INK, linewidth=0.8, linestyle=(0, (2, 2)))
        axes.set_ylim(0, asked * 1.12)
        axes.set_xlabel("seconds from the start of the steady window (shaded)")
        axes.set_ylabel("requests in flight")

    return draw(
        draw_on,
        key=key,
        title="In flight over time",
        description=f"Mean over the window, {asked} asked for. {'; '.join(told) or 'no data'}.",
    )


def forest(
    effects: Sequence[Effect], order: Sequence[Setting], name: Callable[[Setting], str], *, key: str, baseline: str
) -> Plot:
    """Draw one measure's change against the baseline: a row a setting and concurrency, dots the single blocks."""
    measure = effects[0].measure
    drawn = [effect for effect in effects if effect.ratio is not None]
    told = [
        f"{name(effect.setting)} at {effect.concurrency}: {change(effect.ratio)}"
        + (f" ({interval(effect)})" if interval(effect) else "")
        for effect in drawn
    ]

    def draw_on(axes: Any) -> None:
        axes.axvline(0, color=INK, linewidth=0.9)
        for place, effect in enumerate(drawn):
            assert effect.ratio is not None
            colour = series_colour(order.index(effect.setting))
            dots = [(ratio - 1) * 100 for ratio in effect.ratios]
            axes.plot(dots, [place + 0.26] * len(dots), ".", color=colour, markersize=4, alpha=0.75)
            if effect.low is not None and effect.high is not None:
                axes.plot(
                    [(effect.low - 1) * 100, (effect.high - 1) * 100], [place, place], color=colour, linewidth=2.4
                )
            axes.plot([(effect.ratio - 1) * 100], [place], "D", color=colour, markersize=5.5)
        axes.set_yticks(range(len(drawn)), [clip(f"{e.concurrency:,} \N{MIDDLE DOT} {name(e.setting)}") for e in drawn])
        axes.set_ylim(len(drawn) - 0.4, -0.6)
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, -NARROWEST), max(high, NARROWEST))
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:+g}%".replace("-", MINUS) if value else "0%")
        )
        side = {1: "right is better", -1: "left is better", 0: ""}[measure.better]
        axes.set_xlabel(f"change against {clip(baseline)}" + (f", {side}" if side else ""))

    return draw(
        draw_on,
        key=key,
        title=measure.label,
        description=f"Change against {baseline}. {'; '.join(told) or 'no data'}.",
        height_in=0.75 + 0.36 * max(len(drawn), 2),
    )


def _thinned(sample: Sample) -> Sample:
    """Keep a random sample of blocks with very many values, and their longest."""
    random = np.random.default_rng(0)
    blocks = [
        block if len(block) <= DRAWN else np.append(block[random.integers(0, len(block), DRAWN)], block.max())
        for block in sample.blocks
    ]
    return Sample(sample.name, sample.index, blocks)


def _cumulative(values: Floats, points: int) -> tuple[Floats, Floats]:
    """Give an empirical distribution thinned to quantiles, dense at its upper end, as (value, share)."""
    shares = np.unique(np.concatenate([np.linspace(0, 1, points), 1 - np.geomspace(1e-3, 0.1, points // 4)]))
    return np.quantile(values, shares), shares


def _log_time(axes: Any) -> None:
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _duration(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _duration(value_ms: float) -> str:
    return f"{value_ms:g} ms" if value_ms < 1000 else f"{value_ms / 1000:g} s"


def clip(text: str) -> str:
    """Keep the end, where the value stands."""
    return text if len(text) <= LABEL_LETTERS else f"\N{HORIZONTAL ELLIPSIS}{text[1 - LABEL_LETTERS :]}"
