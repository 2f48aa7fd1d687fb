"""The scaling section's plots: each quantity over concurrency with the law's lines, and how far the law is off."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analysis.plan import Setting
from analysis.scaling.heldout import HOLDS_BELOW, HeldOut
from analysis.scaling.knee import Knee
from analysis.scaling.law import Law, Predicted, Workload
from analysis.scaling.study import GroupLaw
from analysis.scaling.whatif import Answer
from analysis.svg import FAINT, INK, Plot, draw, line_style, series_colour
from analysis.text import MINUS, number

LINE_POINTS = 32
NARROWEST = 0.25
WIDEST = 2.0


@dataclass(frozen=True, slots=True)
class Named:
    """How a setting is drawn: its name and its place on the whole page."""

    name: str
    index: int


Line = list[tuple[float, Predicted]]


def law_lines(group: GroupLaw) -> dict[Setting, Line]:
    """Solve the law over the concurrencies that were run, once a setting; empty without a law."""
    if group.law is None:
        return {}
    found = {}
    for setting in dict.fromkeys(cell.setting for cell in group.cells):
        own = [cell for cell in group.cells if cell.setting == setting]
        users = [cell.concurrency for cell in own]
        first = own[0]
        found[setting] = _line(
            group.law,
            np.linspace(min(users), max(users), LINE_POINTS),
            Workload(
                0.0,
                float(np.mean([cell.prompt_tokens for cell in own])),
                float(np.mean([cell.output_tokens for cell in own])),
                first.batch_max,
                first.think_ms,
            ),
        )
    return found


def _line(law: Law, users: Any, like: Workload) -> Line:
    return [
        (float(n), law.solve(Workload(float(n), like.prompt_tokens, like.output_tokens, like.batch_max, like.think_ms)))
        for n in users
    ]


def curve(
    held_out: HeldOut,
    lines: Mapping[Setting, Line],
    names: Mapping[Setting, Named],
    answers: Sequence[Answer],
    *,
    key: str,
) -> Plot:
    """Draw one quantity: points with the span of their blocks, the law's lines, and predictions as open diamonds."""
    quantity = held_out.quantity
    told = [
        f"{names[point.setting].name} at {point.concurrency:,}: {number(point.measured)} "
        f"({number(point.low)} to {number(point.high)}), law {number(point.fitted)}"
        for point in held_out.points
    ]
    asked = [
        (answer.workload.concurrency, quantity.predicted(answer.predicted))
        for answer in answers
        if answer.predicted and answer.workload and quantity.name not in answer.withheld
    ]
    told += [f"predicted at {n:,.0f}: {number(value)}" for n, value in asked]

    def draw_on(axes: Any) -> None:
        for setting, line in lines.items():
            colour = series_colour(names[setting].index)
            axes.plot(
                [n for n, _ in line], [quantity.predicted(at) for _, at in line],
                color=colour, linestyle=line_style(names[setting].index),
            )  # fmt: skip
        for point in held_out.points:
            colour = series_colour(names[point.setting].index)
            below, above = point.measured - point.low, point.high - point.measured
            axes.errorbar(
                [point.concurrency], [point.measured], [[max(below, 0.0)], [max(above, 0.0)]],
                fmt="o", color=colour, markersize=4.5, elinewidth=1.2, capsize=2.5,
            )  # fmt: skip
        for n, value in asked:
            axes.plot([n], [value], "D", markersize=7, markerfacecolor="none", color=INK)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("users in closed loop")
        axes.set_ylabel(f"{quantity.label}, {quantity.unit}")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    return draw(draw_on, key=key, title=quantity.label, description="; ".join(told) + ".")


def knees(
    found: Sequence[Knee], points: Mapping[Setting, Sequence[tuple[int, int, float]]], names: Mapping[Setting, Named]
) -> Plot:
    """Draw throughput over users, (concurrency, block, tok/s) a setting, with its scalability law and its knee."""
    drawn = [knee for knee in found if knee.law is not None]

    def draw_on(axes: Any) -> None:
        for knee in drawn:
            assert knee.law is not None
            own = points[knee.setting]
            colour, style = series_colour(names[knee.setting].index), line_style(names[knee.setting].index)
            users = np.linspace(min(n for n, _, _ in own), max(n for n, _, _ in own), LINE_POINTS)
            axes.plot(users, [knee.law(float(n)) for n in users], color=colour, linestyle=style)
            axes.plot([n for n, _, _ in own], [x for _, _, x in own], "o", color=colour, markersize=3.5)
            if knee.at is not None:
                axes.plot([knee.at], [knee.law(knee.at)], "D", color=colour, markersize=8, markerfacecolor="none")
                axes.axvline(knee.at, color=colour, linewidth=0.9, linestyle=(0, (2, 2)))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("users in closed loop")
        axes.set_ylabel("output tokens, tok/s")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    told = "; ".join(f"{names[knee.setting].name}: {knee.sentence}" for knee in drawn)
    return draw(draw_on, key="knees", title="Throughput and its knee", description=f"{told}.")


def errors(held_out: Sequence[HeldOut], names: Mapping[Setting, Named], *, key: str) -> Plot:
    """Draw every point's error in per cent, a row a quantity: left out (filled) and fitted (open); 20 % shaded."""
    told = []
    for one in held_out:
        parts = [
            f"{names[p.setting].name} at {p.concurrency:,} {signed(p.error)}, fitted {signed(p.residual)}"
            for p in one.points
        ]
        told.append(f"{one.quantity.label}: {', '.join(parts)}")

    def draw_on(axes: Any) -> None:
        axes.axvspan(-HOLDS_BELOW, HOLDS_BELOW, color=FAINT, alpha=0.35, linewidth=0)
        axes.axvline(0, color=INK, linewidth=0.9)
        sizes = [NARROWEST]
        for place, one in enumerate(held_out):
            for point in one.points:
                colour = series_colour(names[point.setting].index)
                axes.plot([_clip(point.residual)], [place + 0.16], "o", markerfacecolor="none", color=colour)
                sizes.append(abs(_clip(point.residual)))
                if point.error is not None:
                    axes.plot([_clip(point.error)], [place - 0.16], "o", color=colour)
                    sizes.append(abs(_clip(point.error)))
        axes.set_xlim(-1.1 * max(sizes), 1.1 * max(sizes))
        axes.set_yticks(range(len(held_out)), [one.quantity.label for one in held_out])
        axes.set_ylim(len(held_out) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: signed(value)))
        axes.set_xlabel(f"law over measured, less 1 (cut at {WIDEST:.0%})")

    return draw(
        draw_on,
        key=key,
        title="How far the law is off",
        description="; ".join(told) + ".",
        height_in=1.0 + 0.42 * max(len(held_out), 2),
    )


def signed(value: float | None) -> str:
    """Write an error in per cent, with its sign; what is not known as such."""
    if value is None:
        return "not known"
    return "0%" if abs(value) < 0.005 else f"{value:+.0%}".replace("-", MINUS)


def _clip(value: float) -> float:
    return float(np.clip(value, -WIDEST, WIDEST))
