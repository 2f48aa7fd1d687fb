"""One epoll for all connections of a load process, and a hub that looks at it once in a while when much arrives.

Waking for every token costs more than reading it. The kernel's stamps make it harmless to look a little later, so under
load the hub sleeps a millisecond between two looks, and one wake-up serves what came meanwhile; when little comes it
wakes for each arrival. Connections whose arrivals are not stamped are never made to wait.
"""

from collections.abc import Callable
from typing import Any, Final

from gevent import get_hub
from gevent.monkey import get_original

from loadgen.transport.kernelclock import KernelClock

_PAUSE_S: Final = 0.001
_WORTH_A_PAUSE: Final = 3  # arrivals in one look
_MOST_EVENTS: Final = 2048
_IN: Final = 1  # EPOLLIN, and libev's EV_READ


class Reactor:
    """Calls a connection's handler when bytes wait for it. One per process and hub; the handlers must not wait."""

    def __init__(self, clock: KernelClock) -> None:
        self.clock = clock
        self._epoll = get_original("select", "epoll")()  # gevent's patches hide it
        self._handlers: dict[int, Callable[[], None]] = {}
        self._hasty: set[int] = set()
        self._watcher: Any = None
        self._timer: Any = None
        self._pausing = False

    def add(self, fd: int, handler: Callable[[], None], *, patient: bool) -> None:
        """Watch a descriptor from now on; `patient` ones may be looked at a millisecond late."""
        self._handlers[fd] = handler
        if not patient:
            self._hasty.add(fd)
        self._epoll.register(fd, _IN)
        if self._watcher is None:
            loop = get_hub().loop
            self._watcher = loop.io(self._epoll.fileno(), _IN)
            self._timer = loop.timer(_PAUSE_S, _PAUSE_S)
            self._watcher.start(self._look)
        elif self._pausing and not patient:
            self._pause(wanted=False)

    def remove(self, fd: int) -> None:
        """Stop watching; call it before the descriptor is closed."""
        del self._handlers[fd]
        self._hasty.discard(fd)
        self._epoll.unregister(fd)
        if not self._handlers:  # nothing of ours may keep the hub waiting
            for watcher in (self._watcher, self._timer):
                watcher.stop()
                watcher.close()
            self._watcher = self._timer = None
            self._pausing = False

    def _look(self) -> None:
        events = self._epoll.poll(0, _MOST_EVENTS)
        handlers = self._handlers
        for fd, _ in events:
            handler = handlers.get(fd)  # one before it may have closed this one
            if handler is not None:
                handler()
        if self._watcher is not None:
            wanted = len(events) >= _WORTH_A_PAUSE and not self._hasty
            if wanted is not self._pausing:
                self._pause(wanted=wanted)

    def _pause(self, *, wanted: bool) -> None:
        self._pausing = wanted
        start, stop = (self._timer, self._watcher) if wanted else (self._watcher, self._timer)
        stop.stop()
        start.start(self._look)
