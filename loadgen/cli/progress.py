"""What a sweep shows while it runs: bars on a terminal, plain lines elsewhere. Everything goes to stderr."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from contracts.doubts import Doubt
from harness.events import (
    CellEnded,
    CellStarted,
    Doubted,
    Event,
    LoadMoved,
    StageReached,
    WorkerJoined,
    WorkersAwaited,
)
from harness.loadcrew import LoadTally
from harness.plan import Cell

PLAIN_EVERY_S = 5.0


def describe(cell: Cell) -> str:
    knobs = " ".join(f"{name}={value}" for name, value in cell.knobs.items())
    return f"c{cell.concurrency} {knobs} block {cell.block}"


def _counts(tally: LoadTally) -> str:
    text = f"{tally.in_flight} in flight, {tally.completed} done"
    if tally.failed:
        text += f", {tally.failed} FAILED"
    if tally.ttft_ms:
        values = sorted(tally.ttft_ms)
        text += f", TTFT about {values[len(values) // 2]:.0f} ms"
    return text


class SweepProgress:
    """A listener for harness.events; use it as a context manager around the sweep."""

    def __init__(self, console: Console, total_cells: int) -> None:
        self._console = console
        self._plain = not console.is_terminal
        self._said_at = 0.0
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=self._plain,
            transient=True,
        )
        self._sweep: TaskID = self._bars.add_task("cells", total=total_cells, note="")
        self._stage: TaskID = self._bars.add_task("", total=None, note="", visible=False)
        self._stage_since = time.monotonic()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case CellStarted(cell, number, total):
                self._bars.update(self._sweep, completed=number - 1)
                if self._plain:
                    self._say(f"cell {number} of {total}: {describe(cell)}")
            case StageReached(cell, stage, expected_s):
                self._enter_stage(cell, stage, expected_s)
            case LoadMoved(_, tally):
                self._move(tally)
            case CellEnded(cell, info):
                self._bars.update(self._stage, visible=False)
                self._bars.update(self._sweep, advance=1)
                self._end_cell(cell, info.state, info.error)
            case Doubted(doubt):
                self._doubt(doubt)
            case WorkersAwaited(address, count):
                self._say(f"waiting for {count} workers: loadgen worker --master {address} on each load machine")
            case WorkerJoined(host, present, count):
                self._say(f"{host} joined, {present} of {count}")

    def _enter_stage(self, cell: Cell, stage: str, expected_s: float | None) -> None:
        self._stage_since = time.monotonic()
        total = None if not expected_s else round(expected_s)
        self._bars.remove_task(self._stage)  # a task that has had a total cannot be without one again
        self._stage = self._bars.add_task(f"{stage:<8}", total=total, note="")
        self._bars.update(self._sweep, note=escape(describe(cell)))
        if self._plain:
            expected = "" if expected_s is None else f" ({expected_s:g} s)"
            self._say(f"  {stage}{expected}")

    def _move(self, tally: LoadTally) -> None:
        self._bars.update(self._stage, completed=int(time.monotonic() - self._stage_since), note=_counts(tally))
        if self._plain and time.monotonic() - self._said_at >= PLAIN_EVERY_S:
            self._say(f"    {_counts(tally)}")

    def _end_cell(self, cell: Cell, state: str, error: str | None) -> None:
        if error is not None:
            first, _, rest = error.partition("\n")
            self._say(f"{describe(cell)}: {state}: {first}")
            for line in rest.splitlines():
                self._say(f"    {line}")
        elif self._plain:
            self._say(f"  {state}")

    def _doubt(self, doubt: Doubt) -> None:
        self._say(f"warning {doubt.code}: {doubt.detail}. {doubt.remedy}")

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        self._console.print(escape(text), highlight=False, soft_wrap=True)
