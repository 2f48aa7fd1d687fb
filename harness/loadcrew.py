"""The load processes of one cell: started, told what to do, listened to."""

import contextlib
import json
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from contracts.clock import NS_PER_S
from contracts.errors import LoadError
from contracts.load import LoadEvent, LoadSpec
from harness.loadlink import Heard, LoadLink

RECENT_S = 5.0
OpenLink = Callable[[LoadSpec, Heard], LoadLink]


def shares_of(users: int, processes: int) -> list[int]:
    """Share users out over load processes."""
    return [users // processes + (n < users % processes) for n in range(processes)]


@dataclass(frozen=True, slots=True)
class Recent:
    """The load over the last RECENT_S seconds, of all its processes together: for the eye, it enters no record.

    `req_s` is requests completed a second (None: not known yet). `ttft_ms` are (TTFT, how many requests it stands for).
    """

    req_s: float | None = None
    first_tokens: int = 0
    ttft_ms: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class LoadTally:
    """The load's counts over all its processes, from their latest progress.

    `failing` says in words that everything fails, once every process says so.
    """

    users: int = 0
    in_flight: int = 0
    completed: int = 0
    failed: int = 0
    unfinished: int = 0
    failing: str | None = None
    recent: Recent = Recent()


@dataclass(frozen=True, slots=True)
class _Pulse:
    """One progress of one process; `t_ns` is on its own machine's clock."""

    t_ns: int
    completed: int
    first_tokens: int
    ttft_ms: Sequence[float]


@dataclass(frozen=True, slots=True)
class _Heard:
    worker: int
    event: LoadEvent | None


class LoadCrew:
    """Speaks contracts.load's protocol with one process per spec. Used by one thread; Ctrl-C may interrupt any wait.

    `open_link` starts the process of a spec. One on another machine may be lost without ending the load; `lost` then
    says which and how.
    """

    def __init__(self, specs: Sequence[LoadSpec], open_link: OpenLink) -> None:
        self._heard: queue.Queue[_Heard] = queue.Queue()
        self._progress: dict[int, dict[str, Any]] = {}
        self._pulses: dict[int, deque[_Pulse]] = {}
        self._said: dict[str, set[int]] = {}
        self.lost: dict[int, str] = {}
        self._links = [open_link(spec, partial(self._hear, place)) for place, spec in enumerate(specs)]

    def _hear(self, place: int, event: LoadEvent | None) -> None:
        self._heard.put(_Heard(place, event))

    @property
    def pids(self) -> list[int]:
        """Give the processes on this machine."""
        return [link.pid for link in self._links if link.pid is not None]

    def tell(self, do: str, **data: Any) -> None:
        """Give every process the same command."""
        line = json.dumps({"do": do, **data})
        for link in self._links:
            link.tell(line)

    def change_users(self, users: int, ramp_s: float) -> None:
        """Change to so many users, evenly over `ramp_s`; every process says `ramped` again when it is so."""
        self._said.pop("ramped", None)
        for link, share in zip(self._links, shares_of(users, len(self._links)), strict=True):
            link.tell(json.dumps({"do": "users", "users": share, "ramp_s": ramp_s}))

    def tally(self) -> LoadTally:
        parts = list(self._progress.values())
        present = [place for place in range(len(self._links)) if place not in self.lost]
        failing = [self._progress.get(place, {}).get("failing") for place in present]
        return LoadTally(
            users=sum(part.get("users", 0) for part in parts),
            in_flight=sum(part.get("in_flight", 0) for part in parts),
            completed=sum(part.get("completed", 0) for part in parts),
            failed=sum(part.get("failed", 0) for part in parts),
            unfinished=sum(part.get("unfinished", 0) for part in parts),
            failing="; ".join(map(str, failing)) if all(failing) else None,
            recent=_recent(self._pulses.values()),
        )

    def wait_for(
        self,
        event: str,
        *,
        timeout_s: float,
        stage: str,
        each: Callable[[], None] = lambda: None,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Listen until every process has said `event` once, now or earlier, or until `enough()`.

        `each` is called at least twice a second.

        Raises LoadError when a process reports an error, dies or breaks the protocol, or when `timeout_s` is over.
        """
        deadline = time.monotonic() + timeout_s
        while len(self._said.get(event, set()) | self.lost.keys()) < len(self._links) and not enough():
            left = deadline - time.monotonic()
            if left <= 0:
                raise LoadError(f"{stage}: the load did not get there within {timeout_s:g} s (waited for {event!r})")
            with contextlib.suppress(queue.Empty):
                self._note(self._heard.get(timeout=min(left, 0.25)))
            each()

    def _note(self, heard: _Heard) -> None:
        if heard.event is None:
            if heard.worker not in self._said.get("done", ()):
                self._lose(heard.worker)
            return
        if heard.event.event == "error":
            raise LoadError(f"load process {heard.worker}: {heard.event.data.get('message', 'unknown error')}")
        self._said.setdefault(heard.event.event, set()).add(heard.worker)
        if heard.event.event in {"progress", "done"}:
            self._progress.setdefault(heard.worker, {}).update(heard.event.data)
        if heard.event.event == "progress":
            pulses = self._pulses.setdefault(heard.worker, deque())
            pulses.append(_pulse(heard.event.data))
            while pulses[-1].t_ns - pulses[0].t_ns > RECENT_S * NS_PER_S:
                pulses.popleft()

    def _lose(self, place: int) -> None:
        link = self._links[place]
        if not link.expendable:
            raise LoadError(f"load process {place} {link.why_ended()}")
        self.lost[place] = link.why_ended()
        self._progress.get(place, {}).update(users=0, in_flight=0)
        self._pulses.pop(place, None)
        if len(self.lost) == len(self._links):
            raise LoadError("all load machines were lost: " + "; ".join(self.lost.values()))

    def stop(self, grace_s: float) -> None:
        """End the processes: they are told that we are gone. One whose last records do not come counts as lost."""
        for link in self._links:
            link.hang_up()
        deadline = time.monotonic() + grace_s
        for place, link in enumerate(self._links):
            missing = link.stop(deadline)
            if missing is not None:
                self.lost.setdefault(place, missing)


def _pulse(data: Mapping[str, Any]) -> _Pulse:
    """Read a progress; a load machine with an older release tells less."""
    ttft_ms = list(data.get("ttft_ms", ()))
    return _Pulse(int(data["t_ns"]), int(data["completed"]), int(data.get("first_tokens", len(ttft_ms))), ttft_ms)


def _recent(processes: Iterable[Sequence[_Pulse]]) -> Recent:
    """Put the processes' last seconds together; each TTFT weighs what it was drawn from."""
    rates: list[float] = []
    ttft_ms: list[tuple[float, float]] = []
    first_tokens = 0
    for pulses in processes:
        first, last = pulses[0], pulses[-1]
        if last.t_ns > first.t_ns:
            rates.append((last.completed - first.completed) / ((last.t_ns - first.t_ns) / NS_PER_S))
        for pulse in pulses:
            first_tokens += pulse.first_tokens
            ttft_ms += [(value, pulse.first_tokens / len(pulse.ttft_ms)) for value in pulse.ttft_ms]
    return Recent(sum(rates) if rates else None, first_tokens, ttft_ms)
