"""What the harness needs of a stack, whichever server it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from contracts.records import ServerRow
from harness.placement import Placement
from harness.process import Guard


@dataclass(frozen=True, slots=True)
class ServerView:
    """What a running server tells about itself: pids by role, thread names by native id, and free-form facts."""

    processes: Mapping[str, int]
    executor_pid: int | None
    threads: Mapping[int, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class RunningServer(Protocol):
    """A server that is up. `url` is its HTTP base; `direct_socket` the direct drive's socket where it has one."""

    url: str
    model: str
    direct_socket: Path | None

    def view(self) -> ServerView:
        """Ask the server who is who. Raises LaunchError when it no longer answers."""

    def alive(self) -> bool: ...

    def truth(self) -> list[ServerRow]:
        """Fetch the server's own times of the requests since the last call; empty where it has none."""

    def stop(self, grace_s: float) -> None: ...

    def last_log_lines(self) -> str: ...


class Stack(Protocol):
    """A kind of server. `check_knob` raises UsageError before anything is started.

    `writes_steps`: its log has iteration lines. `placeable`: we start it, so its cores are ours to choose.
    """

    name: str
    drives: tuple[str, ...]
    writes_steps: bool
    placeable: bool

    def check_knob(self, name: str, value: str) -> None: ...

    def one_process(self, knobs: Mapping[str, str]) -> bool: ...

    def launch(
        self, guard: Guard, knobs: Mapping[str, str], placement: Placement, folder: Path, log: Path
    ) -> RunningServer:
        """Start the server and wait until it has answered a real request. Raises LaunchError.

        `folder` is a temporary folder for sockets; `log` gets its output.
        """
