"""Where the executor loop's new requests come from, and where its responses go through: one rank, or several."""

import enum
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.reference.engine.request import EngineRequest
from harness.reference.ranks.router import RankLoad
from harness.reference.types import EngineResponse


@dataclass(frozen=True, slots=True)
class Queued:
    """A request with the id that the queue gave it."""

    request_id: int
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """Comes through the request queue, so that it never overtakes the request that it ends."""

    request_id: int


class Signal(enum.Enum):
    """What else may come through the request queue."""

    SHUTDOWN = "shutdown"


Item = Queued | Cancel | Signal


@dataclass(frozen=True, slots=True)
class Taken:
    """What one turn begins with: requests for this rank, ids to end, whether to stop; `arrived` counts all ranks'."""

    new: Sequence[Queued]
    cancelled: Sequence[int]
    stopping: bool
    arrived: int


class Intake(Protocol):
    """The loop calls `take` at the beginning and `exchange` at the end of every turn."""

    def idle(self) -> bool:
        """Say whether no rank has anything under way, as far as is known here."""

    def take(self, load: Callable[[], RankLoad], *, block: bool) -> Taken:
        """Take what has come; with `block`, wait for something."""

    def exchange(self, responses: list[EngineResponse]) -> list[EngineResponse]:
        """Hand over this rank's responses of the turn; return those to pass on from here."""


class LocalIntake:
    """One rank: the queue that other threads fill."""

    def __init__(self, items: "queue.Queue[Item]") -> None:
        self._items = items

    def idle(self) -> bool:
        return True

    def take(self, _: Callable[[], RankLoad], *, block: bool) -> Taken:
        new: list[Queued] = []
        cancelled: list[int] = []
        while True:
            try:
                item = self._items.get(block=block)
            except queue.Empty:
                return Taken(new, cancelled, stopping=False, arrived=len(new))
            block = False
            if isinstance(item, Queued):
                new.append(item)
            elif isinstance(item, Cancel):
                cancelled.append(item.request_id)
            else:
                return Taken(new, cancelled, stopping=True, arrived=len(new))

    def exchange(self, responses: list[EngineResponse]) -> list[EngineResponse]:
        return responses
