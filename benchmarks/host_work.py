"""Host work of the executor loop per active request and step, stage by stage: faithful, lean, and their ratio.

    PYTHONPATH=. python benchmarks/host_work.py [--active 2048] [--isl 4096] [--rounds 7]

One process, no RPC, no contention: the loop's own stages on real request objects, both modes in turn in every round.
`scaled` multiplies by the fixed loop's reference time over its time now, so that figures of different moments and
machines can be laid side by side. In a running stack the same work costs more (cold caches, other threads).
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from common import scale, spread

from harness.reference.engine.blocks import BlockManager
from harness.reference.engine.device import EmulatedDevice
from harness.reference.engine.loop import make_host
from harness.reference.engine.request import ActiveRequest, EngineRequest
from harness.reference.settings import ReferenceSettings
from harness.reference.types import SamplingParams

STAGES = ("schedule", "prepare", "launch", "update", "respond", "debug string")
T = TypeVar("T")


class Bench:
    """A set of active requests in one host mode, stepped and timed."""

    def __init__(self, mode: str, active: int, isl: int) -> None:
        settings = ReferenceSettings(host_work=mode, max_batch_size=active)
        blocks = BlockManager(settings.kv_cache_blocks, settings.tokens_per_block, active, settings.max_seq_len)
        self._host = make_host(settings, blocks)
        self._device = EmulatedDevice(
            active, base_ms=0, per_request_us=0, per_prompt_token_us=0, calls=settings.device_calls
        )
        self._active: list[ActiveRequest] = []
        sampling = SamplingParams(max_tokens=2048, ignore_eos=True, return_perf_metrics=True)
        for n in range(active):
            engine_request = EngineRequest(n, list(range(isl)), sampling, streaming=True, arrival_time=0.0)
            request = ActiveRequest(n, engine_request, n)
            assert blocks.admit(request)
            self._host.admit(request)
            self._active.append(request)
        self._spent: dict[str, float] = {}
        self._step = 0

    def _timed(self, stage: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = work()
        self._spent[stage] = (time.perf_counter() - began) * 1e6 / len(self._active)
        return result

    def step(self) -> dict[str, float]:
        """Run one step; return microseconds per active request by stage."""
        self._step += 1
        host = self._host
        batch = self._timed("schedule", lambda: host.schedule(self._active))
        inputs = self._timed("prepare", lambda: host.prepare(batch))
        launched = self._timed("launch", lambda: self._device.launch(inputs))
        tokens = self._device.wait(launched)
        self._timed("update", lambda: host.update(batch, tokens, self._step))
        responses = self._timed("respond", lambda: host.respond(batch))
        self._timed("debug string", lambda: f"{responses}")
        return dict(self._spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--active", type=int, default=2048)
    parser.add_argument("--isl", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    benches = {mode: Bench(mode, options.active, options.isl) for mode in ("faithful", "lean")}
    for bench in benches.values():
        bench.step()
    raw: dict[str, list[float]] = defaultdict(list)
    scaled: dict[str, list[float]] = defaultdict(list)
    ratios: list[float] = []
    stages: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(options.rounds):
        total: dict[str, float] = {}
        for mode, bench in benches.items():
            factor = scale()
            steps = [bench.step() for _ in range(5)]
            middle = {stage: statistics.median(step[stage] for step in steps) for stage in STAGES}
            total[mode] = sum(middle.values())
            raw[mode].append(total[mode])
            scaled[mode].append(total[mode] * factor)
            for stage in STAGES:
                stages[mode, stage].append(middle[stage])
        ratios.append(total["faithful"] / total["lean"])
    print(f"us per active request and step, {options.active} active, ISL {options.isl}: median (least-most)")
    print(f"{'stage':<14}{'faithful':>22}{'lean':>22}")
    for stage in STAGES:
        row = "".join(f"{spread(stages[mode, stage], 2):>22}" for mode in benches)
        print(f"{stage:<14}{row}")
    print(f"{'sum':<14}" + "".join(f"{spread(raw[mode]):>22}" for mode in benches))
    print(f"{'sum, scaled':<14}" + "".join(f"{spread(scaled[mode]):>22}" for mode in benches))
    print(f"faithful / lean: {spread(ratios)}")


if __name__ == "__main__":
    main()
