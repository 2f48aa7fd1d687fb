"""What the executor loop's GIL probe costs, as a share of the step: on and off in turn, within one running loop.

    PYTHONPATH=. python benchmarks/probe_cost.py [--active 64,2048] [--seconds 25]

A real executor loop with real requests and the emulated device at its defaults; the probe is taken out and put back
every few steps, and each stretch with it is paired with its neighbour without. Quiet: the loop is alone. Contended:
two threads beside it seal and unseal requests, as rank 0's RPC threads do, so that whatever gives the GIL up may lose
it. `CPU` is the loop thread's additional CPU time (medians of the stretches' steps, for the probe costs each step the
same), `wall` the additional time of the step (means, for a GIL that was lost costs few steps much), each over the
step's mean wall time: median of the pairs with its 95 % interval. Wall time tells of all else that moves, too. Exit
status 1 when the CPU's interval reaches 1 % of the step, or the wall's begins above it.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from harness.reference import log
from harness.reference.engine.gilprobe import GilProbe
from harness.reference.engine.intake import Queued, Taken
from harness.reference.engine.iterlog import IterationLog
from harness.reference.engine.loop import ExecutorLoop
from harness.reference.engine.request import EngineRequest
from harness.reference.rpc.envelope import seal, unseal
from harness.reference.settings import ReferenceSettings
from harness.reference.types import EngineResponse, GenerationRequest, SamplingParams

ISL = 1024
WARM_TURNS = 20
KEY = b"k" * 32
MARK = 0.01


@dataclass(slots=True)
class Stretch:
    probed: bool
    wall_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)


@dataclass
class Switching:
    """An intake that keeps `active` requests running, and switches the probe of `loop` between stretches of turns."""

    active: int
    stretch_turns: int
    until_s: float
    loop: Any = None
    stretches: list[Stretch] = field(default_factory=list)
    _turn: int = 0
    _last: tuple[int, int] = (0, 0)
    _probe: GilProbe | None = None

    def idle(self) -> bool:
        return False

    def take(self, _: Callable[[], Any], *, block: bool) -> Taken:  # noqa: ARG002
        now = time.monotonic_ns(), time.thread_time_ns()
        self._turn += 1
        new: list[Queued] = []
        if self._turn == 1:
            self._probe = GilProbe()
            new = [Queued(n, self._request(n)) for n in range(self.active)]
        elif self._turn > WARM_TURNS:
            self._note(now)
        if self._turn >= WARM_TURNS and (self._turn - WARM_TURNS) % self.stretch_turns == 0:
            self._switch()
            now = time.monotonic_ns(), time.thread_time_ns()
        self._last = now
        return Taken(new, [], stopping=time.monotonic() > self.until_s, arrived=len(new))

    def _note(self, now: tuple[int, int]) -> None:
        stretch = self.stretches[-1]
        stretch.wall_ns.append(now[0] - self._last[0])
        stretch.cpu_ns.append(now[1] - self._last[1])

    def _switch(self) -> None:
        """Begin the next stretch; on-off, then off-on, so that a drift does not look like a cost."""
        probed = len(self.stretches) % 4 in (0, 3)
        assert self._probe is not None
        self._probe.turn()
        self.loop._probe = self._probe if probed else None  # noqa: SLF001 - what is switched here
        self.stretches.append(Stretch(probed))

    def _request(self, number: int) -> EngineRequest:
        fits = ReferenceSettings().kv_cache_blocks * ReferenceSettings().tokens_per_block // self.active
        sampling = SamplingParams(max_tokens=min(60_000, fits - ISL - 64), ignore_eos=True)
        return EngineRequest(number, list(range(ISL)), sampling, streaming=True, arrival_time=0.0)

    def exchange(self, responses: list[EngineResponse]) -> list[EngineResponse]:
        return responses


def contend(over: threading.Event) -> None:
    """Do what the RPC threads do to requests, again and again, with their pauses."""
    request = GenerationRequest(list(range(4096)), SamplingParams(), streaming=True, arrival_time=0.0)
    while not over.wait(0.0005):
        unseal(seal(request, KEY), KEY)


def measure(active: int, *, contended: bool, seconds: float) -> list[Stretch]:
    settings = ReferenceSettings(max_batch_size=active)
    intake = Switching(active, stretch_turns=8 if active > 500 else 25, until_s=time.monotonic() + seconds)
    turns = IterationLog(settings, lambda: (0, 0))
    loop = intake.loop = ExecutorLoop(settings, intake, lambda _: None, turns.record)
    over = threading.Event()
    helpers = [threading.Thread(target=contend, args=(over,)) for _ in range(2 if contended else 0)]
    for helper in helpers:
        helper.start()
    runner = threading.Thread(target=loop.run)
    runner.start()
    runner.join()
    over.set()
    for helper in helpers:
        helper.join()
    whole = [stretch for stretch in intake.stretches if len(stretch.wall_ns) == intake.stretch_turns]
    return whole[: len(whole) // 2 * 2]


def alone_us(calls: int = 20_000) -> float:
    """Time what the loop calls in a turn, again and again: its CPU with warm caches."""
    probe = GilProbe()
    began = time.thread_time_ns()
    for _ in range(calls):
        probe.waited(0.005)
        probe.turn()
    spent = time.thread_time_ns() - began
    probe.close()
    return spent / calls / 1e3


@dataclass(frozen=True, slots=True)
class Cost:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, shares: Sequence[float]) -> "Cost":
        """Give the median and its 95 % interval by order statistics: a stretch that was preempted moves neither."""
        ordered = sorted(shares)
        below = max(0, int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5))
        return cls(median(ordered), ordered[below], ordered[-1 - below])

    def __str__(self) -> str:
        return f"{self.median:+.3%} ({self.low:+.3%} to {self.high:+.3%})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--active", default="64,2048", help="active requests per step (%(default)s)")
    parser.add_argument("--seconds", type=float, default=25.0, help="of each of the runs (%(default)s)")
    options = parser.parse_args()
    log.set_level("warning")
    print("the probe alone: " + ", ".join(f"{alone_us():.2f}" for _ in range(5)) + " us of CPU a step")
    print(f"{'active':>7} {'':<10} {'step ms':>8} {'pairs':>6}   {'CPU':<34}{'wall':<34}")
    above = False
    for active in map(int, options.active.split(",")):
        for contended in (False, True):
            stretches = measure(active, contended=contended, seconds=options.seconds)
            pairs = list(zip(stretches[::2], stretches[1::2], strict=True))
            if len(pairs) < 5:
                print(f"{active:>7}: {len(pairs)} pairs are too few; give more --seconds")
                return 1
            step_ns = fmean(fmean(one.wall_ns) for one in stretches)
            onoff = [(first, second) if first.probed else (second, first) for first, second in pairs]
            cpu = Cost.of([(median(on.cpu_ns) - median(off.cpu_ns)) / step_ns for on, off in onoff])
            wall = Cost.of([(fmean(on.wall_ns) - fmean(off.wall_ns)) / step_ns for on, off in onoff])
            above |= cpu.high >= MARK or wall.low >= MARK
            how = "contended" if contended else "quiet"
            print(f"{active:>7} {how:<10} {step_ns / 1e6:>8.2f} {len(pairs):>6}   {cpu!s:<34}{wall!s:<34}")
    print(f"the mark is {MARK:.0%} of the step: {'missed' if above else 'held'}")
    return int(above)


if __name__ == "__main__":
    sys.exit(main())
