"""The wait sampler against exact tracing: programs with known threads, watched both ways in the same seconds.

Truth is uprobes on the entry and the return of take_gil and drop_gil (perf; needs root and a Python with symbols). A
thread holds the GIL from the return of take_gil to the entry of drop_gil, and waits for it inside either: in drop_gil
one that was asked to let go stays until another has taken over. A probe takes time of its own: what an uncontended call
seems to take (the 5th percentile) is taken off every call. Printed: wait shares (in brackets take_gil's alone), the
sampler's less the truth in percentage points, the 95 % interval that the sampler gives itself, and the holder most to
blame by both.
`--slowdown` instead runs the target with and without the sampler in turns and compares its work. `--stack` instead
loads the reference stack and holds the sampler's GIL wait a step against the executor loop's own account of it, cell
by cell: the part in which the loop slept on the GIL, for its own clocks tell a wait for a core apart.

    python benchmarks/gil_truth.py --python 3.12.1 --target mix2 --seconds 5 --rate 200
    python benchmarks/gil_truth.py --stack 400,2048 --seconds 15
"""

import argparse
import json
import mmap
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common import run_sweep, spread

from analysis.gil.exact import ExactGil, account, total
from analysis.gil.looks import GilTally, load_gil
from contracts.errors import UsageError
from harness.observers.gil.exact import ExactTrace, library, probes, read_events, recording, spans_of
from harness.observers.gil.recorder import sampler_argv

WAITS = 0.01  # a thread that waits for less of the time has no error worth counting
PYENV = Path("/root/.pyenv/versions")
COMMON = """
import asyncio, hashlib, mmap, os, queue, struct, sys, threading, time
counts = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096)
def start(name, run, *args):
    threading.Thread(target=run, args=args, name=name, daemon=True).start()
def busy(slot=0):
    n = 0
    while True:
        for _ in range(2000): n += 1
        struct.pack_into('<Q', counts, 8 * slot, n)
def io():
    while True: time.sleep(0.001)
def sleeper():
    while True: time.sleep(0.02)
def native():
    data = bytes(4_000_000)
    while True: hashlib.sha256(data).digest()
def locked(lock=threading.Lock()):
    lock.acquire(); lock.acquire()
def pump(slot):
    inbox = queue.SimpleQueue()
    def answer():
        while True: inbox.get()
    start(f'answer{slot}', answer)
    n = 0
    while True:
        inbox.put(n); n += 1; time.sleep(0.0005)
        struct.pack_into('<Q', counts, 8 * slot, n)
async def loop():
    n = 0
    while True:
        await asyncio.sleep(0); n += 1
        if n % 100 == 0: struct.pack_into('<Q', counts, 8, n)
def mix(k):
    for n in range(k): start(f'busy{n}', busy, n)
    for name, run in (('io', io), ('native', native), ('sleeper', sleeper), ('lock0', locked), ('lock1', locked)):
        start(name, run)
    while True: time.sleep(0.05)
"""
TARGETS = {
    "spin1": "start('busy0', busy, 0); time.sleep(1000)",
    "spin2": "[start(f'busy{n}', busy, n) for n in range(2)]; time.sleep(1000)",
    "spin3": "[start(f'busy{n}', busy, n) for n in range(3)]; time.sleep(1000)",
    "mix0": "mix(0)",
    "mix1": "mix(1)",
    "mix2": "mix(2)",
    "asyncio": "start('busy0', busy, 0); asyncio.run(loop())",
    "hundred": "[start(f'idle{n}', locked) for n in range(100)]; [start(f'pump{n}', pump, n) for n in range(2, 4)]; "
    "start('busy0', busy, 0); time.sleep(1000)",
}


@contextmanager
def target(python: str, name: str) -> Iterator[tuple[int, mmap.mmap]]:
    """Run a target; give its pid and the page of counters it works up."""
    with tempfile.NamedTemporaryFile() as page:
        page.truncate(4096)
        with subprocess.Popen([python, "-c", COMMON + TARGETS[name], page.name]) as process:
            try:
                time.sleep(1.0)  # start-up is not what is measured
                with mmap.mmap(page.fileno(), 4096) as counts:
                    yield process.pid, counts
            finally:
                process.kill()


def observe(pid: int, rate: float, seconds: float, folder: Path) -> tuple[GilTally, ExactTrace | None]:
    """Run the sampler, and exact tracing around it where it is possible."""
    out, data = folder / "gil.arrow", folder / "perf.data"
    argv = sampler_argv(pid, out, "--duration", str(seconds), "--rate", str(rate))
    events = None
    try:
        with probes(library(pid)) as group, recording(pid, group, data):
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        events = read_events(data) or None
        if events is None:
            print("NO TRUTH: perf recorded no call; on a slow machine it may not have begun in time")
    except UsageError as error:
        print(f"NO TRUTH: {error}")
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    rows = load_gil(out)
    tally = GilTally()
    for row in rows:
        tally.add(row)
    return tally, None if events is None else spans_of(events, (rows[0].t_ns, rows[-1].t_ns))


@dataclass(frozen=True, slots=True)
class Error:
    """The sampler's wait share less the truth, and half the 95 % interval that it gave, in percentage points.

    `told` None: it gave no interval. `taking` is the error against take_gil's time alone.
    """

    points: float
    told: float | None
    taking: float

    @property
    def inside(self) -> bool:
        return self.told is not None and abs(self.points) <= self.told


def compare(python: str, name: str, rate: float, seconds: float) -> list[Error]:
    """Print one target's table; return the errors of the threads that wait (none: no truth to be had)."""
    with tempfile.TemporaryDirectory() as scratch, target(python, name) as (pid, _):
        tally, trace = observe(pid, rate, seconds, Path(scratch))
    missed = tally.missed / max(tally.missed + tally.looks, 1)
    print(f"{name} on {python}: {tally.looks} looks, {missed:.0%} missed")
    names = {one.tid: one.name for one in tally.threads()}
    truth = {} if trace is None else {one.tid: one for one in exact(trace, names).threads()}
    errors: list[Error] = []
    for thread in sorted(tally.threads(), key=lambda thread: thread.name):
        if trace is None:
            print(f"  {thread.name:12} {thread.wait:6.3f}")
            continue
        known = truth.get(thread.tid)
        wait = known.wait if known else 0.0
        taking = total(trace.takes.get(thread.tid, ())) / (trace.window[1] - trace.window[0])
        told = None if thread.error is None else 100 * thread.error
        error = Error(100 * (thread.wait - wait), told, 100 * (thread.wait - taking))
        if wait > WAITS or abs(error.points) >= 100 * WAITS:
            errors.append(error)
        blame = ""
        if known and wait > 0.02 and thread.blame:
            top = max((part for part in known.blame if part.tid), key=lambda part: part.fraction, default=None)
            if top is not None:
                said: dict[int | None, float] = defaultdict(float)
                for part in thread.blame:
                    said[part.tid] += part.fraction
                blame = f"  top holder {top.name} {top.fraction:.2f} / {said.get(top.tid, 0.0):.2f}"
                blame += "" if max(said, key=lambda tid: said[tid]) == top.tid else "  OTHER"
        if thread.name.startswith(("idle", "answer")) and abs(error.points) < 0.2:
            continue
        print(f"  {thread.name:12} truth {wait:6.3f} ({taking:6.3f})  sampler {thread.wait:6.3f}  "
              f"error {error.points:+5.1f} points (told ±{error.told or 0:.1f}){blame}", flush=True)  # fmt: skip
    return errors


def summary(points: Sequence[float]) -> str:
    """Write errors in percentage points up."""
    two, four = (sum(abs(one) <= limit for one in points) for limit in (2, 4))
    spread = statistics.fmean(one * one for one in points) ** 0.5
    return (
        f"error within 2 points for {two}, within 4 for {four}, mean {statistics.fmean(points):+.1f}, "
        f"root mean square {spread:.1f}, largest {max(map(abs, points)):.1f}"
    )


def exact(trace: ExactTrace, names: dict[int, str]) -> ExactGil:
    return account(trace.window, trace.waits, trace.holds, names)


def slowdown(python: str, name: str, rate: float, seconds: float, pairs: int) -> None:
    """Stop and continue the sampler beside one running target; print the paired change of the work done."""
    with target(python, name) as (pid, counts):
        argv = sampler_argv(pid, Path(os.devnull), "--rate", str(rate))
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as sampler:
            time.sleep(2.0)  # the sampler's start is not its cost
            ratios: list[float] = []
            for _ in range(pairs):
                done = {}
                for sampled in (False, True) if len(ratios) % 2 else (True, False):
                    sampler.send_signal(signal.SIGCONT if sampled else signal.SIGSTOP)
                    before, began = sum(struct.unpack_from("<8Q", counts)), time.monotonic()
                    time.sleep(seconds)
                    done[sampled] = (sum(struct.unpack_from("<8Q", counts)) - before) / (time.monotonic() - began)
                ratios.append(done[True] / done[False] - 1)
            sampler.send_signal(signal.SIGCONT)
            sampler.send_signal(signal.SIGINT)
    half = 2.1 * statistics.stdev(ratios) / len(ratios) ** 0.5
    mean = statistics.mean(ratios)
    interval = [round(mean + sign * half, 4) for sign in (-1, 1)]
    found = {"target": name, "rate_hz": rate, "pairs": pairs, "change": round(mean, 4), "interval_95": interval}
    print(json.dumps(found), flush=True)


def stack(concurrencies: str, seconds: float, repeats: int) -> None:
    """Print the sampler's wait a step over the loop's own, for each cell and over the blocks of each concurrency."""
    words = ["--concurrency", concurrencies, "--set", "TLLM_RPC_SUBMIT_BATCH_MAX=1", "--isl", "1024"]
    shown = run_sweep(*words, "--duration", f"{seconds:g}", "--repeats", str(repeats))
    ratios: defaultdict[int, list[float]] = defaultdict(list)
    for cell in shown["cells"]:
        sampled, own = cell["metrics"]["gil_wait_ms_per_step"], cell["metrics"]["gil_probe_ms"]
        if sampled is None or own is None:
            print(f"c{cell['concurrency']}: no looks, or no account of the loop's ({cell['error'] or 'see doctor'})")
            continue
        ratios[cell["concurrency"]].append(sampled["asleep"] / own["mean"])
        print(
            f"c{cell['concurrency']:<5} sampler {sampled['asleep']:.3f} ms a step asleep ({sampled['mean']:.3f} with "
            f"the waits for a core), loop {own['mean']:.3f} ms, ratio {sampled['asleep'] / own['mean']:.3f}"
        )
    for concurrency, found in ratios.items():
        print(f"c{concurrency:<5} sampler over loop: {spread(found, 3)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], help="pyenv version or path; may be repeated")
    parser.add_argument("--target", action="append", default=[], choices=sorted(TARGETS))
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="processes that burn CPU beside the target")
    parser.add_argument("--slowdown", type=int, default=0, metavar="PAIRS")
    parser.add_argument("--stack", metavar="N,N", help="concurrencies to load the reference stack with")
    parser.add_argument("--repeats", type=int, default=3, help="blocks of --stack")
    options = parser.parse_args()
    if options.stack:
        stack(options.stack, options.seconds, options.repeats)
        return 0
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    errors: list[Error] = []
    try:
        for version in options.python or [sys.executable]:
            beside = PYENV / version / "bin" / "python3"
            python = str(beside) if beside.exists() else version
            for name in options.target or TARGETS:
                if options.slowdown:
                    slowdown(python, name, options.rate, options.seconds, options.slowdown)
                else:
                    errors.extend(compare(python, name, options.rate, options.seconds))
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    if errors:
        inside = sum(error.inside for error in errors)
        width = statistics.median(error.told or 0.0 for error in errors)
        print(f"{len(errors)} threads wait. {summary([error.points for error in errors])}")
        print(f"inside the interval told for {inside}, whose median is ±{width:.1f}")
        print(f"by take_gil alone: {summary([error.taking for error in errors])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
