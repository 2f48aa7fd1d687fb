"""What the observers of a sweep cost the reference stack: output tokens/s with them and without, in turns, one stack.

    PYTHONPATH=. python benchmarks/observer_cost.py [--concurrency 2048] [--blocks 30] [--seconds 3] [--set NAME=VALUE]
    PYTHONPATH=. python benchmarks/observer_cost.py --states waits --blocks 150 --seconds 1 --settle 0.1

Closed loop on the direct drive, placed on the cores as a sweep places it. Each block has a stretch in every state, in a
random order of its own: `none`; `waits`, the wait sampler at its default; `py-spy`, its non-blocking GIL channel at the
default rate; `all`, what a cell has: both and the host sampler. A stretch begins `--settle` seconds after its state
does (py-spy needs a second to start, the wait sampler none), and its rate is between two arrivals of tokens, so that no
step is cut. Many short stretches tell most, for what else moves is slow.

Printed: tokens/s over those of the same block's `none`, less one: the trimmed mean (a fifth off each end) over the
blocks with its 95 % bootstrap interval, and the wait sampler's own CPU as a share of a core. `SHOWN`: the whole
interval is above a loss of 1 % (py-spy, all: 2 %); `MISSED`: it is below. Exit status 1 unless all are shown.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from common import end_with, reference_stack
from scipy import stats
from soak import SoakClient

from harness.observers.gil.recorder import sampler_argv
from harness.observers.gil_stacks import record_argv
from harness.observers.host import EVERY_S, HostSampler
from harness.placement import Placement
from harness.stacks.base import RunningServer
from loadgen.cli.parsing import positive

MARKS = {"waits": 0.01, "py-spy": 0.02, "all": 0.02}
STATES = ("none", *MARKS)
WARM_S = 15.0
TRIM = 0.2


class CountingClient(SoakClient):
    """Remembers when how many tokens had come."""

    def __init__(self, rng: random.Random, isl: int, osl: int, concurrency: int) -> None:
        super().__init__(rng, isl, osl, concurrency, 0.0)
        self.times_s: list[float] = []
        self.totals: list[int] = []

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.times_s.append(time.monotonic())
        self.totals.append(self.counts.tokens)

    async def arrival_after(self, moment_s: float) -> None:
        for _ in range(1000):
            if self.times_s[-1] >= moment_s:
                return
            await asyncio.sleep(0.02)
        raise SystemExit("no token came for 20 s")

    def rate(self, begin_s: float, end_s: float) -> float:
        """Give tokens/s from the last arrival before `begin_s` to the first after `end_s`."""
        first = bisect_left(self.times_s, begin_s) - 1
        last = bisect_left(self.times_s, end_s)
        return (self.totals[last] - self.totals[first]) / (self.times_s[last] - self.times_s[first])


class Watchers:
    """The observers, each of which can be off for a while."""

    def __init__(self, server: RunningServer, placement: Placement, folder: Path) -> None:
        view = server.view()
        assert view.executor_pid is not None
        self._pid = view.executor_pid
        self._cpus = placement.observers
        self._host = HostSampler(folder / "host.arrow")
        self._host.watch({**view.processes, "client": os.getpid()}, view.threads)
        self._sampler = self._start(sampler_argv(self._pid, folder / "gil.arrow", "--pulse"))
        time.sleep(3.0)  # its start is not its cost
        self._sampler.send_signal(signal.SIGSTOP)
        self._folder = folder

    def _start(self, argv: Sequence[str]) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if self._cpus:
            os.sched_setaffinity(process.pid, self._cpus)
        return process

    @contextlib.contextmanager
    def watching(self, state: str) -> Iterator[None]:
        """Have the state's observers at work; py-spy is begun anew, for it would make up for looks it slept through."""
        spy = None
        if state in {"waits", "all"}:
            self._sampler.send_signal(signal.SIGCONT)
        if state in {"py-spy", "all"}:
            spy = self._start(record_argv(self._pid, self._folder / "stacks.raw"))
        try:
            yield
        finally:
            self._sampler.send_signal(signal.SIGSTOP)
            if spy is not None:
                spy.send_signal(signal.SIGINT)
                spy.wait()

    def sample_host(self) -> None:
        self._host.sample()

    def sampler_cpu_s(self) -> float:
        fields = Path(f"/proc/{self._sampler.pid}/schedstat").read_text().split()
        return int(fields[0]) / 1e9

    def close(self) -> None:
        self._host.stop()
        self._sampler.send_signal(signal.SIGCONT)
        self._sampler.send_signal(signal.SIGINT)
        self._sampler.wait()


async def stretch(client: CountingClient, watchers: Watchers, state: str, seconds: float, settle_s: float) -> float:
    """Have one state for so long; return its tokens/s."""
    with watchers.watching(state):
        await asyncio.sleep(settle_s)
        begin = time.monotonic()
        while (left := begin + seconds - time.monotonic()) > 0:
            if state == "all":
                await asyncio.to_thread(watchers.sample_host)
            await asyncio.sleep(min(left, EVERY_S))
        end = time.monotonic()
    await client.arrival_after(end)
    return client.rate(begin, end)


async def measure(
    server: RunningServer, watchers: Watchers, options: argparse.Namespace
) -> tuple[list[dict[str, float]], float]:
    """Return tokens/s by state for each block, and the wait sampler's CPU as a share of a core while it was on."""
    rng = random.Random(options.seed)
    client = CountingClient(rng, options.isl, options.osl, options.concurrency)
    transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: client, str(server.direct_socket))
    client.begin()
    await asyncio.sleep(WARM_S)
    blocks: list[dict[str, float]] = []
    cpu = on = 0.0
    for _ in range(options.blocks):
        rates = {}
        for state in rng.sample(["none", *options.states], len(options.states) + 1):
            began, cpu_before = time.monotonic(), watchers.sampler_cpu_s()
            rates[state] = await stretch(client, watchers, state, options.seconds, options.settle)
            if state in {"waits", "all"}:
                cpu += watchers.sampler_cpu_s() - cpu_before
                on += time.monotonic() - began
        blocks.append(rates)
        print(
            " ".join(f"{state} {rates[state]:.0f}" for state in STATES if state in rates), file=sys.stderr, flush=True
        )
    client.drain()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(client.drained.wait(), 60.0)
    transport.close()
    return blocks, cpu / on if on else 0.0


def change(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Give the trimmed mean of ratios, less one, with its 95 % bootstrap interval."""
    data = np.log(ratios)

    def middle(values: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(stats.trim_mean(values, TRIM, axis=axis))

    found = stats.bootstrap((data,), middle, n_resamples=5000, rng=np.random.default_rng(1), method="percentile")
    low, high = found.confidence_interval
    return tuple(float(np.expm1(value)) for value in (middle(data), low, high))  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=2048)
    parser.add_argument("--isl", type=int, default=256)
    parser.add_argument("--osl", type=int, default=128, help="mean; lengths are uniform from 1 to twice that")
    parser.add_argument("--blocks", type=int, default=30, help="at least 3")
    parser.add_argument("--seconds", type=positive, default=3.0)
    parser.add_argument("--settle", type=positive, default=1.0, metavar="S")
    parser.add_argument("--states", nargs="+", choices=list(MARKS), default=list(MARKS), help="beside none (all)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.blocks < 3:
        parser.error("--blocks: fewer than 3 tell nothing")
    with reference_stack(options.settings, "observer-cost-") as (server, placement, folder):
        watchers = Watchers(server, placement, folder)
        try:
            blocks, cpu = asyncio.run(measure(server, watchers, options))
        finally:
            watchers.close()
    sampled = f"; the wait sampler took {cpu:.1%} of a core" if {"waits", "all"} & {*options.states} else ""
    print(f"c{options.concurrency}, {len(blocks)} blocks{sampled}")
    shown = True
    for state in options.states:
        mark = MARKS[state]
        middle, low, high = change([block[state] / block["none"] for block in blocks])
        shown &= low > -mark
        verdict = "SHOWN" if low > -mark else "not shown" if high > -mark else "MISSED"
        print(f"{state:<8} tokens/s {middle:+.2%} ({low:+.2%} to {high:+.2%}); a loss below {mark:.0%}: {verdict}")
    return 0 if shown else 1


if __name__ == "__main__":
    end_with(main)
