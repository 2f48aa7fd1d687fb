"""What the users of one load process share: the workload, the records, and when to start and stop."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns

import gevent

from contracts.clock import NS_PER_S
from loadgen import kinds
from loadgen.drives import MakeCaller
from loadgen.recorder import Recorder
from loadgen.workload import Workload

_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.1, 1.0


@dataclass(slots=True)
class Crew:
    """The users' common ground. `on_ramped` is called once, when every user has tried its first request.

    A first request that could not be sent counts as tried: a load against a dead server reports failures instead of
    waiting for a ramp that never ends. `cut_*` is what a request is recorded as when its user is killed under it.
    """

    workload: Workload
    recorder: Recorder
    make_caller: MakeCaller
    name: str
    users: int
    first_user: int
    spawn_rate: float
    on_ramped: Callable[[], None]
    stopping: bool = False
    cut_kind: str = kinds.CANCELLED
    cut_message: str = "its user was stopped"
    start_ns: int = field(default_factory=monotonic_ns)
    _born: int = 0
    _tried: int = 0

    def next_index(self) -> int:
        """Give a new user its number in this process, from 0."""
        index = self._born
        self._born += 1
        return index

    def await_turn(self, index: int) -> None:
        """Spread the users that Locust starts in one lump a second over that second."""
        due_ns = self.start_ns + int(index / self.spawn_rate * NS_PER_S)
        gevent.sleep(max(0, due_ns - monotonic_ns()) / NS_PER_S)

    def first_tried(self) -> None:
        self._tried += 1
        if self._tried == self.users:
            self.on_ramped()


def backoff_s(failures: int) -> float:
    """Say how long a user waits after so many failures in a row, so that a dead server is not hammered."""
    return float(min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(failures - 1, 10)))
