"""A flame graph of the GIL's holders as HTML: nested lists whose widths are shares of time.

So it is a tree to a keyboard and a screen reader, too. Names come from servers and end escaped.

Widths are shares of wall time over looks that told anything (analysis.gil.stacks), averaged over a setting's cells.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from analysis.gil.stacks import Holders, split_frame
from analysis.svg import THREAD_COLOURS
from analysis.text import share

MOST_FRAMES = 240
LEAST_SHARE = 0.001
_PLUMBING = frozenset({"Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run", "Context.run"})


@dataclass(slots=True)
class Frame:
    """A function under its callers, and the share of wall time in which the GIL was held there or further in."""

    share: float = 0.0
    callees: dict[str, "Frame"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flame:
    """One setting's graph. `left_out` is the share of wall time in frames too small to be drawn as such."""

    setting: str
    index: int
    held: str
    looks: int
    left_out: str
    html: Markup


def flame(setting: str, index: int, cells: Sequence[Holders], threads: Sequence[str]) -> Flame | None:
    """Draw a setting's cells together; `threads` fixes the colours. None where nothing was seen."""
    if not any(holders.by_stack for holders in cells):
        return None
    root = merged([holders.by_stack for holders in cells])
    least = _least_drawn(root)
    drawn = sum(frame.share for frame in root.callees.values() if frame.share >= least)
    return Flame(
        setting=setting,
        index=index,
        held=share(root.share),
        looks=sum(holders.looks for holders in cells),
        left_out=share(least),
        html=Markup('<ul role="tree" aria-label="{}">{}</ul>').format(
            f"Who held the GIL with {setting}: {share(root.share)} of the time; frames, callers above",
            Markup("").join(_roots(root, max(root.share, drawn), least, threads)),
        ),
    )


def merged(cells: Sequence[Mapping[tuple[str, ...], float]]) -> Frame:
    """Average the cells' stacks into one tree; its first level is threads. Threads' own start-up frames are dropped."""
    root = Frame()
    for stacks in cells:
        for (thread, *frames), value in stacks.items():
            part = value / len(cells)
            at = root
            at.share += part
            for name in (thread, *(frame for frame in frames if split_frame(frame)[0] not in _PLUMBING)):
                at = at.callees.setdefault(name, Frame())
                at.share += part
    return root


def _least_drawn(root: Frame) -> float:
    """Choose the share from which frames are drawn, so that there are not too many; a caller has what a callee has."""
    shares = sorted((frame.share for frame in _all(root)), reverse=True)
    return max(LEAST_SHARE, shares[MOST_FRAMES] * 1.0001 if len(shares) > MOST_FRAMES else 0.0)


def _all(frame: Frame) -> Iterator[Frame]:
    for callee in frame.callees.values():
        yield callee
        yield from _all(callee)


def _roots(root: Frame, whole: float, least: float, threads: Sequence[str]) -> Iterator[Markup]:
    places: defaultdict[str, int] = defaultdict(lambda: THREAD_COLOURS - 1, {name: i for i, name in enumerate(threads)})
    for name, frame in _largest(root, least):
        yield _item(name, frame, whole, least, f' class="t{min(places[name], THREAD_COLOURS - 1)}"')


def _item(name: str, frame: Frame, of: float, least: float, more: str = "") -> Markup:
    """Write a frame and those that it called. Widths are rounded down: neighbours that are too wide would wrap."""
    inner = Markup("").join(_item(callee, one, frame.share, least) for callee, one in _largest(frame, least))
    width = int(frame.share / of * 100_000) / 1000
    group = Markup('<ul role="group">{}</ul>').format(inner) if inner else ""
    head = Markup('<li role="treeitem"{} style="width:{}%"><span>{} {}</span>{}</li>')
    return head.format(Markup(more), f"{min(width, 100):g}", escape(_short(name)), share(frame.share), group)  # noqa: S704


def _largest(frame: Frame, least: float) -> list[tuple[str, Frame]]:
    kept = [(name, one) for name, one in frame.callees.items() if one.share >= least]
    return sorted(kept, key=lambda item: (-item[1].share, item[0]))


def _short(name: str) -> str:
    """Keep the last two parts of a frame's path: the whole one would fill the box."""
    function, file, _ = split_frame(name)
    return function if file is None else f"{function} ({'/'.join(file.split('/')[-2:])})"
