"""A process and all that it starts, watched by one loop: a sampler each, whose looks take turns.

One thread takes all looks. Threads of one interpreter would wait for each other's GIL just when a look is due, and a
process each would take a core's caches from those that are watched. Each process has its own slots and its own count of
missed looks; when two are due at once, one is late by a look, some 100 us.

New descendants are found by reading /proc in small pieces between looks, a few times a second. What cannot be watched
(no CPython, no permission) is kept with the reason; what may be starting is tried again for a while, and what has
replaced its program since anew.
"""

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Self

from contracts.clock import NS_PER_MS, NS_PER_S, now_ns
from contracts.errors import UsageError
from contracts.records import GilRow
from harness.observers.gil.memory import Identity, TargetGoneError
from harness.observers.gil.names import WAIT_S
from harness.observers.gil.processes import Process, descendants, has_program, parents, read_process
from harness.observers.gil.roles import Role, RoleChoice, role_of
from harness.observers.gil.sampler import RATE_HZ, GilSampler, wake_on_time

SEARCH_S = 0.3
TRIES = 6
FIRST_RETRY_S = 0.1
_SPARE_NS = NS_PER_MS
_LATEST_NS = 50 * NS_PER_MS
_PIECE = 24
_SHORTEST_SLEEP_NS = 20_000
ENDED, REPLACED = "it ended", "it replaced its program"


@dataclass(slots=True, eq=False)
class Member:
    """A process that is watched: what it is, since when, and, once that is over, until when and why.

    `number` counts the members, in the order in which they were found. Times are CLOCK_MONOTONIC ns.
    """

    number: int
    process: Process
    role: Role
    sampler: GilSampler
    began_ns: int
    ended_ns: int | None = None
    ended: str | None = None


@dataclass(slots=True)
class Skipped:
    """A process that is not watched, and why not. It is tried again at `again_ns` (None: when its program changes)."""

    process: Process
    role: Role
    reason: str
    tries: int
    again_ns: int | None


class GilFamily:
    """Looks at a process and its descendants, as far as `choice` wants them, until they end or the caller stops.

    Raises UsageError when there is nothing that it can watch. `members` and `skipped` grow while it looks; `unwanted`
    are the present processes that the choice leaves out.
    """

    def __init__(self, pid: int, choice: RoleChoice, *, rate_hz: float = RATE_HZ) -> None:
        self._choice = choice
        self._rate_hz = rate_hz
        self._started = False
        self.members: list[Member] = []
        self.skipped: dict[Identity, Skipped] = {}
        self.unwanted: dict[Identity, tuple[Process, Role]] = {}
        self._present: dict[Identity, Member] = {}
        self._gone: set[Identity] = set()
        self._due: list[tuple[int, int, Member]] = []
        self._search_at_ns = self._searched_ns = 0
        self._search: Iterator[None] | None = None
        try:
            self._known: dict[int, Process] = {pid: read_process(pid)}
        except TargetGoneError as error:
            raise UsageError(str(error)) from error
        self._find_all()
        if not self._present:
            found = [(skipped.process, skipped.role, skipped.reason) for skipped in self.skipped.values()]
            self.close()
            raise UsageError(_nothing(pid, choice, list(self.unwanted.values()), found))

    def _find_all(self) -> None:
        for _ in self._searching():
            pass

    def settle_names(self) -> None:
        """Wait until the threads' names are known, as far as they can be; for all together as long as for one."""
        deadline_s = time.monotonic() + WAIT_S
        for member in self._present.values():
            member.sampler.ask_names()
        for member in self._present.values():
            member.sampler.settle_names(max(deadline_s - time.monotonic(), 0.0))

    def looks(
        self, duration_s: float | None, *, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[Member, GilRow]]:
        """Yield each look and whose it is, for so long (None: until `stop` says so or all have ended)."""
        wake_on_time()
        begin = self._searched_ns = now_ns()
        end = None if duration_s is None else begin + round(duration_s * NS_PER_S)
        self._started = True
        for member in self._present.values():
            member.began_ns = begin
            self._schedule(member)
        while not stop() and (self._due or self._may_come()):
            due = self._due[0][0] if self._due else now_ns() + _LATEST_NS
            if end is not None and due >= end:
                due = end
            self._use_spare_time(due)
            left = due - now_ns()
            if left > _SHORTEST_SLEEP_NS:
                time.sleep(left / NS_PER_S)
            if end is not None and due >= end:
                return
            if self._due and self._due[0][0] <= due:
                member = heapq.heappop(self._due)[2]
                row = self._look(member)
                if row is not None:
                    yield member, row

    def _schedule(self, member: Member) -> None:
        member.sampler.begin(now_ns())
        heapq.heappush(self._due, (member.sampler.next_due(now_ns()), member.number, member))

    def _look(self, member: Member) -> GilRow | None:
        try:
            row = member.sampler.look()
        except TargetGoneError:
            self._end(member)
            return None
        if row is None:
            member.sampler.missed += 1
        heapq.heappush(self._due, (member.sampler.next_due(now_ns()), member.number, member))
        return row

    def _end(self, member: Member) -> None:
        identity = member.process.identity
        replaced = identity.alive() and has_program(identity.pid)
        member.ended, member.ended_ns = (REPLACED if replaced else ENDED), now_ns()
        member.sampler.close()
        del self._present[identity]
        if not replaced:  # else it is found anew, as whatever it has become
            self._gone.add(identity)

    def _may_come(self) -> bool:
        """Say whether anything is there that may come to be watched, now that nothing is."""
        return any(process.identity.alive() for process in self._known.values())

    # finding processes

    def _use_spare_time(self, due_ns: int) -> None:
        """Go on with the search while no look is due, and a little even when there is never time."""
        while True:
            now = now_ns()
            if self._search is None:
                if now < self._search_at_ns:
                    return
                self._search = self._searching()
            if due_ns - now < _SPARE_NS and now - self._searched_ns < _LATEST_NS:
                return
            self._searched_ns = now
            if next(self._search, self) is self:
                self._search = None
                self._search_at_ns = now + round(SEARCH_S * NS_PER_S)

    def _searching(self) -> Iterator[None]:
        """Read who is there and whose child, a piece a step; then take up what is new, a process a step."""
        parent_of: dict[int, int] = {}
        walk = parents()
        while piece := dict(islice(walk, _PIECE)):
            parent_of |= piece
            yield
        found: dict[int, Process] = {}
        for pid in descendants([pid for pid in self._known if self._still(pid)], parent_of):
            try:
                found[pid] = read_process(pid)
            except TargetGoneError:
                continue
            self._take_up(found[pid], _role(found[pid], found))
            yield
        self._known = found
        here = {process.identity for process in found.values()}
        self.unwanted = {identity: one for identity, one in self.unwanted.items() if identity in here}

    def _still(self, pid: int) -> bool:
        return self._known[pid].identity.alive()

    def _take_up(self, process: Process, role: Role) -> None:
        identity = process.identity
        member = self._present.get(identity)
        if member is not None:
            member.process, member.role = process, role  # it may have set a title since
            return
        if identity in self._gone:
            return
        before = self.skipped.get(identity)
        if not self._choice.wants(role):
            self.skipped.pop(identity, None)
            self.unwanted[identity] = process, role
            return
        self.unwanted.pop(identity, None)
        if before is not None and before.process.command == process.command:
            if before.again_ns is None or now_ns() < before.again_ns:
                return
            tries = before.tries + 1
        else:
            tries = 1
        self._try(process, role, tries)

    def _try(self, process: Process, role: Role, tries: int) -> None:
        try:
            sampler = GilSampler(process.pid, rate_hz=self._rate_hz)
        except UsageError as error:
            again = None if tries >= TRIES else now_ns() + round(FIRST_RETRY_S * 2**tries * NS_PER_S)
            self.skipped[process.identity] = Skipped(process, role, str(error), tries, again)
            return
        if sampler.identity != process.identity:  # its pid has gone to another meanwhile
            sampler.close()
            return
        self.skipped.pop(process.identity, None)
        member = Member(len(self.members), process, role, sampler, now_ns())
        self.members.append(member)
        self._present[process.identity] = member
        if self._started:
            self._schedule(member)

    def close(self) -> None:
        for member in self._present.values():
            member.sampler.close()
        self._present.clear()
        self._due.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _role(process: Process, found: dict[int, Process]) -> Role:
    """Tell a process's role; one that was forked and runs its parent's command is no second such server."""
    parent = found.get(process.parent)
    role = role_of(process)
    if parent is not None and parent.command == process.command and process.command:
        return Role(f"fork of {role_of(parent).name}")
    return role


def _nothing(
    pid: int,
    choice: RoleChoice,
    unwanted: list[tuple[Process, Role]],
    skipped: list[tuple[Process, Role, str]],
) -> str:
    lines = [f"  {role.name} ({process.pid}): {process.title}" for process, role in unwanted]
    refused = [f"  {role.name} ({process.pid}): {reason}" for process, role, reason in skipped]
    if choice.texts and not skipped:
        wanted = ", ".join(repr(text) for text in choice.texts)
        return "\n".join([f"--role {wanted}: no process of {pid} has it. There is", *lines])
    return "\n".join([f"nothing can be watched of process {pid}", *refused])
