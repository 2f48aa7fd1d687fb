"""What a sweep tells whoever watches it: the terminal's progress, or a test."""

from collections.abc import Callable
from dataclasses import dataclass

from contracts.doubts import Doubt
from contracts.folder import CellInfo
from harness.loadcrew import LoadTally
from harness.observers.gil.pulse import GilPulse
from harness.plan import Cell


@dataclass(frozen=True, slots=True)
class CellStarted:
    cell: Cell
    number: int
    total: int


@dataclass(frozen=True, slots=True)
class StageReached:
    """A cell passed into `stage`: launch | ramp | warm-up | steady | drain | stop. `expected_s`: how long, if known."""

    cell: Cell
    stage: str
    expected_s: float | None


@dataclass(frozen=True, slots=True)
class LoadMoved:
    """The load's counts, about twice a second."""

    cell: Cell
    tally: LoadTally


@dataclass(frozen=True, slots=True)
class GilMoved:
    """What the wait sampler saw at the executor loop's process in the last second."""

    cell: Cell
    pulse: GilPulse


@dataclass(frozen=True, slots=True)
class CellEnded:
    cell: Cell
    info: CellInfo


@dataclass(frozen=True, slots=True)
class Doubted:
    """A warning, as soon as it is known; the same may come again with another cell."""

    doubt: Doubt


@dataclass(frozen=True, slots=True)
class WorkersAwaited:
    """The gateway listens at `address` for so many load machines."""

    address: str
    count: int


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A load machine came; `present` of `count` are there."""

    host: str
    present: int
    count: int


Event = WorkersAwaited | WorkerJoined | CellStarted | StageReached | LoadMoved | GilMoved | CellEnded | Doubted
Listener = Callable[[Event], None]
