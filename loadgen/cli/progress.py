"""What a sweep shows while it runs: a live view on a terminal, plain lines elsewhere. Everything goes to stderr."""

import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from contracts.doubts import Doubt
from contracts.folder import CellInfo
from harness.events import (
    CellEnded,
    CellStarted,
    Doubted,
    Event,
    GilMoved,
    LoadMoved,
    StageReached,
    WorkerJoined,
    WorkersAwaited,
)
from harness.loadcrew import RECENT_S, LoadTally
from harness.plan import Cell
from loadgen.cli.live import RecentWaits, TimeLeft, about, counts, describe, rates
from loadgen.cli.screen import visible

PLAIN_EVERY_S = 5.0
REDRAWS_PER_S = 2  # more would take cores from what is measured
_BAR = 28


class SweepProgress:
    """A listener for harness.events; use it as a context manager around the sweep.

    `cells` are those that will run, of `total`; `lasted` how long (s) finished ones of a concurrency did before.
    """

    def __init__(
        self, console: Console, cells: Sequence[Cell], total: int, lasted: Sequence[tuple[int, float]] = ()
    ) -> None:
        self._console = console
        self._plain = not console.is_terminal
        self._total = total
        self._time_left = TimeLeft(cells, lasted)
        self._cell: Cell | None = None
        self._cell_since = self._stage_since = time.monotonic()
        self._stage, self._expected_s = "", None  # type: tuple[str, float | None]
        self._tally: LoadTally | None = None
        self._waits = RecentWaits()
        self._warned: dict[tuple[str, str], None] = {}
        self._said_at = float("-inf")
        self._bars = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=_BAR),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            auto_refresh=False,
        )
        self._sweep: TaskID = self._bars.add_task("cells", total=total, completed=total - len(cells), note="")
        self._bar: TaskID | None = None
        self._live = Live(
            self, console=console, refresh_per_second=REDRAWS_PER_S, transient=True, vertical_overflow="crop"
        )

    def __enter__(self) -> Self:
        if not self._plain:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._plain:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case CellStarted(cell, _, _):
                self._cell, self._cell_since, self._tally = cell, time.monotonic(), None
                self._enter_stage("", None)
            case StageReached(_, stage, expected_s):
                self._enter_stage(stage, expected_s)
            case LoadMoved(_, tally):
                self._tally = tally
            case GilMoved(_, pulse):
                self._waits.add(pulse)
            case CellEnded(cell, info):
                self._end_cell(cell, info)
            case Doubted(doubt):
                self._warn(doubt)
            case WorkersAwaited(address, count):
                self._say(f"waiting for {count} workers: loadgen worker --master {address} on each load machine")
            case WorkerJoined(host, present, count):
                self._say(f"{host} joined, {present} of {count}")
        if self._plain and self._cell is not None and time.monotonic() - self._said_at >= PLAIN_EVERY_S:
            self._say(self._plain_line(self._cell))

    def _enter_stage(self, stage: str, expected_s: float | None) -> None:
        self._stage, self._expected_s, self._stage_since = stage, expected_s, time.monotonic()
        self._waits.clear()
        if self._bar is not None:
            self._bars.remove_task(self._bar)  # a task that has had a total cannot be without one again
            self._bar = None
        if stage:
            total = None if not expected_s else round(expected_s)
            self._bar = self._bars.add_task(stage, total=total, note="")

    def _end_cell(self, cell: Cell, info: CellInfo) -> None:
        seconds = time.monotonic() - self._cell_since
        self._time_left.ended(cell, seconds if info.state == "done" else None)
        self._cell = None
        self._bars.advance(self._sweep)
        told = f"{self._which(cell)}: {info.state} after {seconds:.0f} s"
        if self._tally is not None:
            told += f", {self._tally.completed:,} requests done, {self._tally.failed:,} failed"
        left = about(self._time_left.seconds())
        first, *rest = (info.error or "").split("\n")
        if first:
            told += f": {first}"
        if self._plain or first:
            self._say("; ".join(filter(None, [told, left])))
        for line in rest:
            self._say(f"    {line}")

    def _warn(self, doubt: Doubt) -> None:
        """Say a warning once a sweep; its remedy with the first of its kind."""
        if (doubt.code, doubt.detail) in self._warned:
            return
        known = any(code == doubt.code for code, _ in self._warned)
        self._warned[doubt.code, doubt.detail] = None
        self._say(f"warning {doubt.code}: {doubt.detail}" + ("" if known else f". {doubt.remedy}"))

    def _which(self, cell: Cell) -> str:
        return f"cell {cell.index} of {self._total}, {describe(cell)}"

    def _remaining(self) -> str:
        return about(self._time_left.seconds(self._cell, time.monotonic() - self._cell_since))

    def _plain_line(self, cell: Cell) -> str:
        stage = self._stage or "starting"
        if self._expected_s:
            stage += f" {min(time.monotonic() - self._stage_since, self._expected_s):.0f} of {self._expected_s:.3g} s"
        parts = [f"{self._which(cell)}: {stage}"]
        if self._tally is not None:
            parts += [counts(self._tally), rates(self._tally)]
        return "; ".join(filter(None, [*parts, str(self._waits), self._remaining()]))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the present state; called by the live view, twice a second."""
        self._bars.update(self._sweep, note=self._remaining())
        lines = []
        cell, bar, tally = self._cell, self._bar, self._tally  # events come on another thread than this
        lines.append(Text("" if cell is None else self._which(cell), style="bold"))
        if bar is not None:
            with suppress(KeyError):  # its stage is over
                self._bars.update(bar, completed=int(time.monotonic() - self._stage_since))
        if tally is not None:
            lines.append(Text(f"load     {counts(tally)}", style="bold red" if tally.failed else ""))
            lines.append(Text(f"last {RECENT_S:.0f} s {rates(tally) or 'nothing yet'}"))
        if waits := str(self._waits):
            lines.append(Text(f"GIL      {waits}"))
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        yield Group(*lines[:1], self._bars.get_renderable(), *lines[1:])

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        self._console.print(Text(visible(text)), soft_wrap=not self._console.is_terminal)
