"""Rank 0's garbage collector: how it is set up while the loop runs, and a log line for each pause worth knowing."""

import contextlib
import gc
import time
from collections.abc import Iterator

from harness.reference import log
from harness.reference.settings import ReferenceSettings

LOGGED_FROM_MS = 1.0


class _PauseLog:
    """Logs a line `gc: generation = G, pause = Xms, ...` for every pause of a millisecond or more."""

    def __init__(self) -> None:
        self._began = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.monotonic()
            return
        pause_ms = (time.monotonic() - self._began) * 1e3
        if pause_ms >= LOGGED_FROM_MS:
            log.info(
                f"gc: generation = {info['generation']}, pause = {pause_ms:.3f}ms, collected = {info['collected']}, "
                f"monotonic = {self._began:.6f}"
            )


@contextlib.contextmanager
def collector(settings: ReferenceSettings) -> Iterator[None]:
    """Set the collector up as the settings say, and put it back at the end."""
    before, was_on = gc.get_threshold(), gc.isenabled()
    pauses = _PauseLog()
    gc.callbacks.append(pauses)
    if settings.gc in ("threshold", "frozen"):
        gc.set_threshold(settings.gc_gen0_threshold, *before[1:])
    if settings.gc == "frozen":
        gc.collect()
        gc.freeze()
    if settings.gc == "off":
        gc.disable()
    try:
        yield
    finally:
        gc.callbacks.remove(pauses)
        gc.set_threshold(*before)
        if settings.gc == "frozen":
            gc.unfreeze()
        if was_on:
            gc.enable()
