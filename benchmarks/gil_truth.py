"""The wait sampler against exact tracing: programs with known threads, watched both ways in the same seconds.

Truth is uprobes on the entry and the return of take_gil and drop_gil (perf; needs root and a Python with symbols). A
thread waits for the GIL from the entry of take_gil to its return, and holds it from there to the entry of drop_gil. A
probe takes time of its own: what an uncontended call seems to take (the 5th percentile) is taken off every call.
Printed: wait shares, the sampler's less the truth in percentage points, the holder most to blame by both; in brackets
the truth with drop_gil's time added, in which a thread that was made to let go waits for another to take over.
`--slowdown` instead runs the target with and without the sampler in turns and compares its work.

    python benchmarks/gil_truth.py --python 3.12.1 --target mix2 --seconds 5 --rate 200
"""

import argparse
import json
import mmap
import os
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from analysis.gil import GilTally, load_gil

PYENV = Path("/root/.pyenv/versions")
_LINE = re.compile(r"^\s*(\d+)\s+(\d+)\.(\d+):\s+giltruth:(\w+?)(?:__return)?:?\s*$")
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
UNCONTENDED_NS = 10_000
Spans = list[tuple[int, int]]


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


def library(pid: int) -> str:
    """Return the file that holds the interpreter: its libpython, or the program."""
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    match = re.search(r"(/\S*libpython\S+)", maps)
    return match[1] if match else str(Path(f"/proc/{pid}/exe").readlink())


@contextmanager
def probes(path: str) -> Iterator[bool]:
    """Put the four probes in place; says False where the file has no such symbols or perf may not."""
    words: list[str] = []
    for function in ("take_gil", "drop_gil"):
        words += ["--add", f"giltruth:{function}={function}", "--add", f"giltruth:{function}={function}%return"]
    try:
        done = subprocess.run(["perf", "probe", "-f", "-x", path, *words], capture_output=True, text=True, check=False)
        yield done.returncode == 0
    except FileNotFoundError:
        yield False
    finally:
        with suppress(FileNotFoundError):
            subprocess.run(["perf", "probe", "-d", "giltruth:*"], capture_output=True, check=False)


def traced(data: Path) -> dict[int, list[tuple[int, str]]]:
    """Read perf's events: per thread (CLOCK_MONOTONIC ns, event)."""
    argv = ["perf", "script", "-i", str(data), "-F", "tid,time,event", "--ns"]
    events: dict[int, list[tuple[int, str]]] = defaultdict(list)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as script:
        assert script.stdout is not None
        for line in script.stdout:
            match = _LINE.match(line)
            if match:
                suffix = "_return" if "__return" in line else ""
                events[int(match[1])].append((int(match[2]) * 10**9 + int(match[3]), match[4] + suffix))
    return events


def calls(events: list[tuple[int, str]], function: str, window: tuple[int, int]) -> Spans:
    """Pair a function's entries and returns; one open at an edge of the trace reaches to the window's edge."""
    found, entered = [], None
    seen = False
    for t_ns, event in events:
        if event == function:
            entered = t_ns
        elif event == f"{function}_return":
            if entered is not None or not seen:
                found.append((entered if entered is not None else window[0], t_ns))
            entered = None
        else:
            continue
        seen = True
    if entered is not None:
        found.append((entered, window[1]))
    return found


def clip(spans: Spans, window: tuple[int, int], less_ns: int = 0) -> Spans:
    cut = [(max(start + less_ns, window[0]), min(end, window[1])) for start, end in spans]
    return [(start, end) for start, end in cut if end > start]


def least(spans: Spans) -> int:
    lengths = sorted(end - start for start, end in spans)
    shortest = lengths[len(lengths) // 20] if lengths else 0
    return shortest if shortest < UNCONTENDED_NS else 0


def holds(events: list[tuple[int, str]], window: tuple[int, int]) -> Spans:
    """From a return of take_gil to the next entry of drop_gil."""
    found, since = [], None
    for t_ns, event in events:
        if event == "take_gil_return":
            since = t_ns
        elif event == "drop_gil":
            if since is not None:
                found.append((since, t_ns))
            since = None
    return found if since is None else [*found, (since, window[1])]


def overlap(waits: Spans, held: Spans) -> int:
    starts = [start for start, _ in held]
    total = 0
    for start, end in waits:
        at = max(bisect_left(starts, start) - 1, 0)
        while at < len(held) and held[at][0] < end:
            total += max(0, min(end, held[at][1]) - max(start, held[at][0]))
            at += 1
    return total


def observe(pid: int, rate: float, seconds: float, folder: Path, *, trace: bool) -> tuple[GilTally, tuple[int, int]]:
    """Run the sampler, and perf around it where asked; return the looks and the span they cover."""
    perf = None
    if trace:
        argv = ["perf", "record", "-q", "-e", "giltruth:*", "-k", "CLOCK_MONOTONIC", "-m", "8192", "-p", str(pid)]
        perf = subprocess.Popen([*argv, "-o", str(folder / "perf.data")], stderr=subprocess.DEVNULL)
        time.sleep(0.5)
    out = folder / "gil.arrow"
    argv = [sys.executable, "-m", "harness.observers.gil", str(pid), "--out", str(out)]
    subprocess.run([*argv, "--duration", str(seconds), "--rate", str(rate)], check=True, stdout=subprocess.DEVNULL)
    if perf is not None:
        perf.send_signal(signal.SIGINT)
        perf.wait()
    rows = load_gil(out)
    tally = GilTally()
    for row in rows:
        tally.add(row)
    return tally, (rows[0].t_ns, rows[-1].t_ns)


def compare(python: str, name: str, rate: float, seconds: float) -> float | None:
    """Print one target's table; return the largest error in percentage points (None: no truth to be had)."""
    with tempfile.TemporaryDirectory() as scratch, target(python, name) as (pid, _), probes(library(pid)) as trace:
        tally, window = observe(pid, rate, seconds, Path(scratch), trace=trace)
        events = traced(Path(scratch) / "perf.data") if trace else {}
    missed = tally.missed / max(tally.missed + tally.looks, 1)
    print(f"{name} on {python}: {tally.looks} looks, {missed:.0%} missed" + ("" if trace else ", NO SYMBOLS: no truth"))
    length = window[1] - window[0]
    takes = {tid: calls(one, "take_gil", window) for tid, one in events.items()}
    drops = {tid: calls(one, "drop_gil", window) for tid, one in events.items()}
    take_ns, drop_ns = (least([span for one in spans.values() for span in one]) for spans in (takes, drops))
    held = {tid: clip(holds(one, window), window) for tid, one in events.items()}
    errors = []
    for thread in sorted(tally.threads(), key=lambda thread: thread.name):
        if not trace:
            print(f"  {thread.name:12} {thread.wait:6.3f}")
            continue
        took = clip(takes.get(thread.tid, []), window, take_ns)
        waits = sorted(took + clip(drops.get(thread.tid, []), window, drop_ns))
        wait, more = (sum(end - start for start, end in spans) / length for spans in (took, waits))
        errors.append(100 * (thread.wait - wait))
        shares = {tid: overlap(took, spans) for tid, spans in held.items() if tid != thread.tid}
        blame = ""
        if wait > 0.02 and shares and thread.blame:
            top = max(shares, key=lambda tid: shares[tid])
            names = {one.tid: one.name for one in tally.threads()}
            said: dict[int | None, float] = defaultdict(float)
            for part in thread.blame:
                said[part.tid] += part.fraction
            share = shares[top] / (wait * length)
            blame = f"  top holder {names.get(top)} {share:.2f} / {said.get(top, 0.0):.2f}"
            blame += "" if max(said, key=lambda tid: said[tid]) == top else "  OTHER"
        if thread.name.startswith(("idle", "answer")) and abs(errors[-1]) < 0.2:
            continue
        print(f"  {thread.name:12} truth {wait:6.3f} ({more:6.3f})  sampler {thread.wait:6.3f}  "
              f"error {errors[-1]:+5.1f} points{blame}", flush=True)  # fmt: skip
    return max(map(abs, errors)) if errors else None


def slowdown(python: str, name: str, rate: float, seconds: float, pairs: int) -> None:
    """Stop and continue the sampler beside one running target; print the paired change of the work done."""
    with target(python, name) as (pid, counts):
        argv = [sys.executable, "-m", "harness.observers.gil", str(pid), "--out", os.devnull, "--rate", str(rate)]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], help="pyenv version or path; may be repeated")
    parser.add_argument("--target", action="append", default=[], choices=sorted(TARGETS))
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="processes that burn CPU beside the target")
    parser.add_argument("--slowdown", type=int, default=0, metavar="PAIRS")
    options = parser.parse_args()
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    worst = []
    try:
        for version in options.python or [sys.executable]:
            beside = PYENV / version / "bin" / "python3"
            python = str(beside) if beside.exists() else version
            for name in options.target or TARGETS:
                if options.slowdown:
                    slowdown(python, name, options.rate, options.seconds, options.slowdown)
                else:
                    worst.append(compare(python, name, options.rate, options.seconds))
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    known = [error for error in worst if error is not None]
    if known:
        print(f"largest error {max(known):.1f} points")
    return 0


if __name__ == "__main__":
    sys.exit(main())
