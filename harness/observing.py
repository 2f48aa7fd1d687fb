"""The observers of one cell, started and ended together: what is recorded from outside, and what went wrong with it."""

from collections.abc import Sequence

from contracts.doubts import Doubt
from contracts.folder import CellFolder, GilStacks
from harness.observers.gil.pulse import GilPulse
from harness.observers.gil.recorder import GilWaitRecorder
from harness.observers.gil_stacks import GilStackRecorder
from harness.observers.host import HostSampler
from harness.observers.iterlog import IterationTail
from harness.placement import Placement
from harness.process import Guard
from harness.stacks.base import ServerView

MIN_STACKS_S = 2


class CellObservers:
    """Begun with the load, told of its warm-up and when the steady window opens and closes, stopped whatever happens.

    Without `observe` only the server's own log is followed. `doubts` and `stacks` are complete after `stop`.
    """

    def __init__(
        self, guard: Guard, folder: CellFolder, placement: Placement, *, writes_steps: bool, observe: bool
    ) -> None:
        self._guard = guard
        self._folder = folder
        self._placement = placement
        self._tail = IterationTail(folder.server_log, folder.steps, folder.gc) if writes_steps else None
        self._host = HostSampler(folder.host) if observe else None
        self._stacks: GilStackRecorder | None = None
        self._waits: GilWaitRecorder | None = None
        self.doubts: list[Doubt] = []
        self.stacks: GilStacks | None = None

    def begin(self, view: ServerView, load_pids: Sequence[int]) -> None:
        if self._tail is not None:
            self._tail.start()
        if self._host is not None:
            self.learn(view)
            self._host.watch({f"load{n or ''}": pid for n, pid in enumerate(load_pids)}, {})
            self._host.start()

    def learn(self, view: ServerView) -> None:
        """Take up processes and thread names that the server has told since."""
        if self._host is not None:
            self._host.watch(view.processes, view.threads)

    def warm_up(self, view: ServerView) -> None:
        """Start the wait sampler on the process that runs the executor loop: when the window opens it is at work."""
        pid = view.executor_pid
        if self._host is None or pid is None or self._waits is not None:
            return
        log = self._folder.path / "gil.log"
        self._waits = GilWaitRecorder(self._guard, pid, self._folder.gil, log, cpus=self._placement.observers)

    def open_window(self, view: ServerView, duration_s: float | None) -> None:
        """Start py-spy on the process that runs the executor loop, for as long as the window is open.

        The wait sampler, too, where that process is not known until now.
        """
        self.warm_up(view)
        pid = view.executor_pid
        if self._host is None or pid is None:
            return
        self.learn(view)
        self._stacks = GilStackRecorder(
            self._guard,
            pid,
            self._folder.stacks,
            self._folder.path / "py-spy.log",
            duration_s=None if duration_s is None else max(MIN_STACKS_S, int(duration_s - 1)),
            cpus=self._placement.observers,
        )

    def gil_pulse(self) -> GilPulse | None:
        """Give what the wait sampler saw in the last second, once; None when there is nothing new."""
        return None if self._waits is None else self._waits.pulse()

    def close_window(self) -> None:
        if self._waits is not None:
            self.doubts += self._waits.finish()

    def finish(self) -> None:
        """Account for the stacks; call it when the load has drained."""
        if self._stacks is not None:
            self.stacks, doubts = self._stacks.finish()
            self.doubts += doubts

    def stop(self) -> None:
        for recorder in (self._stacks, self._waits):
            if recorder is not None:
                recorder.abandon()
        for sampler in (self._tail, self._host):
            if sampler is not None:
                self.doubts += sampler.stop()
