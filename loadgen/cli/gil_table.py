"""Tables of who waits for the GIL: whole ones to print, and ones cut to the terminal to be drawn again and again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from analysis.gil.exact import ExactGil
from analysis.gil.looks import GilTally, ThreadShare
from contracts.records import GilRow
from loadgen.cli.screen import visible

TOP_BLAME = 3
TOP_THREADS = 25
SPAN_NS = 5_000_000_000
_NAME_CHARS, _WIDE = 28, 110
_LEAST_BLAME = 16
_INDENT = "  "
_AROUND = 6  # lines: title, a header of two, what was left out, one of the caller's, and the cursor's


@dataclass(slots=True)
class RecentGil:
    """The last seconds of a process's looks: between one and two spans of them, at two additions a look.

    One tally is shown while the next one grows; after a span the next takes its place.
    """

    names: dict[int, str] = field(default_factory=dict)
    shown: GilTally = field(default_factory=GilTally)
    _next: GilTally = field(default_factory=GilTally)
    _since_ns: int | None = None

    def add(self, row: GilRow) -> None:
        self.names.update(zip(row.appeared, row.names, strict=True))
        for tid in row.gone:
            self.names.pop(tid, None)
        self._since_ns = self._since_ns or row.t_ns
        if row.t_ns - self._since_ns >= SPAN_NS:
            self.shown, self._next, self._since_ns = self._next, GilTally(self.names), row.t_ns
        self.shown.add(row)
        self._next.add(row)


@dataclass(frozen=True, slots=True)
class Part:
    """One process in a table of several."""

    label: str
    pid: int
    tally: GilTally
    note: str = ""


def print_whole(console: Console, label: str, tally: GilTally | ExactGil, when: str) -> None:
    """Print a process's table with all that can be told of its busiest threads."""
    console.print(_headline(label, tally, when), soft_wrap=not console.is_terminal)
    table = _columns(_NAME_CHARS if console.width < _WIDE else console.width)
    threads = tally.threads()
    busy = _busy(threads)[:TOP_THREADS]
    for thread in busy:
        _add(table, thread, TOP_BLAME)
    _add_rest(table, len(threads) - len(busy))
    console.print(table)


def fitted_table(label: str, tally: GilTally, when: str, size: tuple[int, int]) -> Group:
    """Build a process's table for (width, lines): a row is one line wherever the terminal is too small for more."""
    threads = tally.threads()
    busy = _busy(threads)
    room = max(size[1] - _AROUND, 1)
    blames = _blames_that_fit(busy[:room], room)
    shown = busy[:room]
    table, name_width = _fitted_columns(size[0], shown)
    for thread in shown:
        _add(table, thread, blames, width=name_width)
    _add_rest(table, len(threads) - len(shown))
    return Group(_headline(label, tally, when), table)


def fitted_family(parts: Sequence[Part], size: tuple[int, int]) -> Table:
    """Put several processes into one table for (width, lines): a line each, and below it its busiest threads."""
    room = max(size[1] - _AROUND, 2)
    ranked = sorted(parts, key=lambda part: -part.tally.held_fraction)[: max(room * 2 // 3, 1)]
    kept = [part for part in parts if part in ranked]
    left = max(room - len(kept), 0)
    threads = [(place, thread) for place, part in enumerate(kept) for thread in _busy(part.tally.threads())]
    threads.sort(key=lambda one: (-one[1].wait, -one[1].held))
    chosen = threads[:left]
    blames = _blames_that_fit([thread for _, thread in chosen], left)
    table, name_width = _fitted_columns(size[0], [thread for _, thread in chosen])
    for place, part in enumerate(kept):
        held = f"{part.tally.held_fraction:.1%}"
        note = part.note or f"{part.tally.switches_per_s:,.0f} switches/s"
        table.add_row(visible(part.label), str(part.pid), "", held, "", visible(note), style="bold")
        for _, thread in (one for one in chosen if one[0] == place):
            _add(table, thread, blames, indent=_INDENT, width=name_width)
    more = [f"{count} more {noun}" for count, noun in (
        (len(parts) - len(kept), "processes"), (sum(len(p.tally.threads()) for p in kept) - len(chosen), "threads")
    ) if count]  # fmt: skip
    if more:
        table.add_row(f"and {', '.join(more)}", style="dim")
    return table


def _headline(label: str, tally: GilTally | ExactGil, when: str) -> Text:
    looks = f", {tally.looks} looks" if isinstance(tally, GilTally) else ""
    return Text(
        visible(
            f"GIL of {label}, {when}: held {tally.held_fraction:.0%} of the time, "
            f"{tally.switches_per_s:,.0f} switches/s{looks}"
        )
    )


def _columns(name_width: int, blame_width: int | None = None) -> Table:
    """Lay the columns out; with a width for blame every row is one line, without one long texts take several."""
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    cut = blame_width is not None
    table.add_column("thread", overflow="fold", max_width=name_width, no_wrap=cut)
    for name in ("tid", "waits", "holds", "runs\nwithout"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("waited for", no_wrap=cut, overflow="ellipsis" if cut else "fold", width=blame_width)
    return table


def _fitted_columns(width: int, threads: Sequence[ThreadShare]) -> tuple[Table, int]:
    """Lay the columns out for a terminal's width; return also how long a name may be."""
    numbers = max(len(str(thread.tid)) for thread in threads) if threads else 7
    numbers += len(" 100.0% 100.0% without") + 3
    longest = max((len(visible(thread.name)) + len(_INDENT) for thread in threads), default=0)
    name = max(min(longest, _NAME_CHARS, width - numbers - _LEAST_BLAME), len("thread"))
    return _columns(name, max(width - name - numbers, 1)), name


def _busy(threads: Sequence[ThreadShare]) -> list[ThreadShare]:
    return [thread for thread in threads if thread.wait or thread.held or thread.running]


def _blames_that_fit(threads: Sequence[ThreadShare], room: int) -> int:
    for blames in range(TOP_BLAME, 1, -1):
        if sum(max(min(len(thread.blame), blames), 1) for thread in threads) <= room:
            return blames
    return 1


def _add(table: Table, thread: ThreadShare, blames: int, *, indent: str = "", width: int | None = None) -> None:
    name = indent + visible(thread.name)
    if width is not None and len(name) > width:  # pool threads differ in their ends
        name = f"{name[: width // 2 - 1]}…{name[width // 2 - width :]}"
    blame = "\n".join(
        visible(f"{part.fraction:4.0%} {part.name}{'' if part.function is None else f': {part.function}'}")
        for part in thread.blame[:blames]
    )
    wait = f"{thread.wait:.1%}"
    if width is None and thread.error:
        wait += f" ±{100 * thread.error:.1f}"
    table.add_row(
        Text(name), str(thread.tid), wait, f"{thread.held:.1%}",
        f"{thread.running:.1%}", Text(blame),
    )  # fmt: skip


def _add_rest(table: Table, count: int) -> None:
    if count:
        table.add_row(f"and {count} more", style="dim")
