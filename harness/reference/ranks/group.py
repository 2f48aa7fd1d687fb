"""Rank 0's side of the ranks: it broadcasts new requests, gathers loads and responses, and waits for the slowest."""

import json
import os
import pickle
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.reference.engine.intake import LocalIntake, Queued, Taken
from harness.reference.ranks.link import LOAD, Link, LinkBroken, SharedMemory
from harness.reference.ranks.router import Arrival, RankLoad, route
from harness.reference.settings import ReferenceSettings
from harness.reference.types import EngineResponse, ErrorResponse, Response

STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Broadcast:
    """What every rank learns at the beginning of a turn."""

    new: Sequence[Queued]
    cancelled: Sequence[int]
    stopping: bool


def arrivals_of(new: Sequence[Queued], *, double_getter: bool) -> list[Arrival]:
    """Look at each request's length for the router, through the getter that copies the token ids.

    The original read it twice a request before its double getter was removed.
    """
    if double_getter:
        return [Arrival(one.request_id, max(len(one.request.token_ids()), len(one.request.token_ids()))) for one in new]
    return [Arrival(one.request_id, len(one.request.token_ids())) for one in new]


class RankGroup:
    """An intake for rank 0 that shares the work out. `start` and `stop` are for other threads."""

    def __init__(self, settings: ReferenceSettings, local: LocalIntake) -> None:
        self._settings = settings
        self._local = local
        self._links: list[Link] = []
        self._memory = SharedMemory.create()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pending: deque[Queued] = deque()
        self._outstanding: dict[int, int] = {}
        self._ended: list[EngineResponse] = []

    @property
    def pids(self) -> dict[str, int]:
        return {f"rank{number}": process.pid for number, process in enumerate(self._processes, 1)}

    def clients(self) -> set[int]:
        """Name the clients whose requests are under way on any rank."""
        return set(self._outstanding)

    def start(self) -> None:
        for number in range(1, self._settings.ranks):
            ours, theirs = socket.socketpair()
            task = {
                "rank": number,
                "settings": self._settings.to_json(),
                "fd": theirs.fileno(),
                "memory_fd": self._memory.fd,
            }
            process = subprocess.Popen(
                [sys.executable, "-m", "harness.reference.ranks.rank", str(number)],  # for `ps` and `loadgen gil`
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno(), self._memory.fd],
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.close()
            theirs.close()
            self._processes.append(process)
            self._links.append(Link(ours))

    def stop(self) -> None:
        for link in self._links:
            link.close()
        self._memory.close()
        for process in self._processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # on the loop's thread

    def idle(self) -> bool:
        return not self._outstanding and not self._pending

    def take(self, load: Callable[[], RankLoad], *, block: bool) -> Taken:
        taken = self._local.take(load, block=block)
        self._pending.extend(taken.new)
        for queued in taken.new:
            self._outstanding[queued.request.client_id] = queued.request_id
        self._end_pending(set(taken.cancelled))
        loads = [load(), *(RankLoad(*LOAD.unpack(link.receive(LOAD.size))) for link in self._links)]
        gathered = b"".join(LOAD.pack(one.requests, one.tokens) for one in loads)
        for link in self._links:
            link.send(gathered)
        room = sum(self._settings.max_batch_size - one.requests for one in loads)
        offered = [self._pending.popleft() for _ in range(min(max(room, 0), len(self._pending)))]
        message = Broadcast(offered, taken.cancelled, taken.stopping)
        message = self._broadcast(message)
        shares = route(
            arrivals_of(message.new, double_getter=self._settings.double_getter == "on"),
            loads,
            self._settings.max_batch_size,
        )
        placed = {request_id for share in shares for request_id in share}
        self._pending.extendleft(reversed([one for one in message.new if one.request_id not in placed]))
        mine = set(shares[0])
        new = [one for one in message.new if one.request_id in mine]
        return Taken(new, message.cancelled, message.stopping, arrived=len(placed))

    def _end_pending(self, cancelled: set[int]) -> None:
        """End requests that no rank has been given yet."""
        for queued in [one for one in self._pending if one.request_id in cancelled]:
            self._pending.remove(queued)
            self._ended.append(Response(queued.request.client_id, [], 0, is_final=True, finish_reason="cancelled"))

    def _broadcast(self, message: Broadcast) -> Broadcast:
        """Serialise once, send to all; with `root_unpickle` on, rank 0 reads its own bytes back as the others do."""
        payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._memory.write(payload)
        for link in self._links:
            link.announce(payload)
        if self._settings.root_unpickle == "on":
            own: Broadcast = pickle.loads(payload)  # noqa: S301 - our own bytes
            return own
        return message

    def exchange(self, responses: list[EngineResponse]) -> list[EngineResponse]:
        """Gather every rank's responses of this turn; rank 0 waits for the slowest."""
        responses = responses + self._ended
        self._ended = []
        for link in self._links:
            responses = responses + link.receive_object()
        for response in responses:
            if isinstance(response, ErrorResponse) or response.is_final:
                self._outstanding.pop(response.client_id, None)
        return responses


class RankIntake:
    """An intake for the other ranks: everything comes from rank 0 and goes back to it."""

    def __init__(self, link: Link, memory: SharedMemory, rank: int, settings: ReferenceSettings) -> None:
        self._link = link
        self._memory = memory
        self._rank = rank
        self._settings = settings

    def idle(self) -> bool:
        return True

    def take(self, load: Callable[[], RankLoad], *, block: bool) -> Taken:  # noqa: ARG002 - rank 0 sets the pace
        try:
            own = load()
            self._link.send(LOAD.pack(own.requests, own.tokens))
            gathered = self._link.receive(LOAD.size * self._settings.ranks)
            message: Broadcast = pickle.loads(self._link.receive_broadcast(self._memory))  # noqa: S301 - rank 0's own bytes
        except LinkBroken:
            return Taken([], [], stopping=True, arrived=0)
        loads = [RankLoad(*pair) for pair in LOAD.iter_unpack(gathered)]
        arrivals = arrivals_of(message.new, double_getter=self._settings.double_getter == "on")
        mine = set(route(arrivals, loads, self._settings.max_batch_size)[self._rank])
        new = [one for one in message.new if one.request_id in mine]
        return Taken(new, message.cancelled, message.stopping, arrived=len(new))

    def exchange(self, responses: list[EngineResponse]) -> list[EngineResponse]:
        try:
            self._link.send_object(responses)
        except LinkBroken:
            os._exit(1)
        return []
