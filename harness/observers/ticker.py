"""A thread that does the same small thing again and again until it is stopped, or cannot go on."""

import threading
from collections.abc import Callable

from contracts.doubts import Doubt


class Ticker:
    """Calls `work` every `every_s`. An OSError (a full disk) ends it and is kept as a doubt, not raised in a thread."""

    def __init__(self, name: str, work: Callable[[], None], every_s: float) -> None:
        self._name = name
        self._work = work
        self._every_s = every_s
        self._over = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, finish: Callable[[], None]) -> tuple[Doubt, ...]:
        """End the thread, then call `finish` (a last time, and close); return what went wrong."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._guarded(finish)
        if self._failure is None:
            return ()
        return (Doubt("observer_failed", f"{self._name}: {self._failure.strerror or self._failure}"),)

    def _run(self) -> None:
        while self._failure is None:
            self._guarded(self._work)
            if self._over.wait(self._every_s):
                return

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self._failure = error
