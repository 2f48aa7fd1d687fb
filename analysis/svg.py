"""matplotlib figures as inline SVG that follows the page: its fonts, its light or dark colours, its text alternative.

Colours are drawn as marker values and replaced by CSS variables, so that one file serves both schemes and print. Text
stays text (`svg.fonttype none`), never mathtext, so names from servers can neither break a plot nor the page.
"""

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK = "#0a0b0c"
FAINT = "#0a0b0d"
PAPER = "#0a0b0e"
SERIES_COLOURS = 8
THREAD_COLOURS = 7
WIDTH_IN = 4.7
LINE_STYLES: Sequence[Any] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))

_RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "svg.image_inline": True,
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.linewidth": 1.7,
    "path.simplify": True,
    "path.simplify_threshold": 0.3,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure for the page: a caption and the SVG, whose text alternative says what it shows in figures."""

    title: str
    description: str
    svg: str


def series_colour(index: int) -> str:
    """Give the marker colour of the index-th setting; index 0 is the baseline."""
    return f"#0a0c{index % SERIES_COLOURS:02x}"


def thread_colour(index: int) -> str:
    return f"#0a0d{min(index, THREAD_COLOURS - 1):02x}"


def line_style(index: int) -> Any:
    return LINE_STYLES[(index // 2) % len(LINE_STYLES)]


def draw(draw_on: Any, *, key: str, title: str, description: str, height_in: float = 2.7) -> Plot:
    """Let `draw_on(axes)` draw and turn the figure into a Plot; `key` makes its ids unique on the page."""
    return draw_panels(
        lambda panels: draw_on(panels[0]), (1,), key=key, title=title, description=description, height_in=height_in
    )


def draw_panels(
    draw_on: Any,
    heights: Sequence[float],
    *,
    key: str,
    title: str,
    description: str,
    height_in: float,
    margins_in: tuple[float, float, float] | None = None,
) -> Plot:
    """Let `draw_on(list of axes)` draw panels above each other, of these relative heights, on one horizontal axis.

    With margins (left, top, bottom, in inches) nothing is measured to make room for labels, which takes most of the
    time of a figure of many panels.
    """
    with mpl.rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the page's fonts draw it, not ours
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained" if margins_in is None else None)
        figure.patch.set_visible(False)
        panels = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        if margins_in is not None:
            left, top, bottom = margins_in
            figure.subplots_adjust(
                left=left / WIDTH_IN, right=1 - 0.06 / WIDTH_IN, top=1 - top / height_in, bottom=bottom / height_in,
                hspace=0.62,
            )  # fmt: skip
        for axes in panels:
            axes.patch.set_visible(False)
        draw_on(panels)
        out = io.StringIO()
        FigureCanvasSVG(figure)
        layout = figure.get_layout_engine()
        if layout is not None:  # once and here: savefig would draw everything twice for it
            layout.execute(figure)
            figure.set_layout_engine("none")
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return Plot(title, description, _for_page(out.getvalue(), key, title, description))


def _for_page(svg: str, key: str, title: str, description: str) -> str:
    """Cut the document around the <svg>, name it, make its ids its own and its colours the page's."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<g id=\"[^\"]*\"", "<g", svg)
    svg = re.sub(r"\bid=\"([^\"]+)\"", rf'id="{key}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{key}-\1)", svg)
    svg = re.sub(r"(xlink:)?href=\"#([^\"]+)\"", rf'href="#{key}-\2"', svg)
    box = re.search(r'viewBox="([^"]+)"', svg)
    assert box is not None
    head = (
        f'<svg viewBox="{box[1]}" role="img" aria-labelledby="{key}-title {key}-desc">'
        f'<title id="{key}-title">{escape(title)}</title><desc id="{key}-desc">{escape(description)}</desc>'
    )
    svg = head + svg[svg.index(">") + 1 :]
    svg = re.sub(r"(\d+\.\d{2})\d+", r"\1", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = svg.replace(INK, "var(--ink-2)").replace(FAINT, "var(--rule)").replace(PAPER, "var(--paper)")
    svg = re.sub(r"#0a0c(0[0-7])", lambda match: f"var(--s{int(match[1], 16)})", svg)
    svg = re.sub(r"#0a0d(0[0-6])", lambda match: f"var(--t{int(match[1], 16)})", svg)
    return re.sub(r">\s+<", "><", svg).strip()
