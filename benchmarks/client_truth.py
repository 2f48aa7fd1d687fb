"""How true the client's figures are: against a paced server that knows its own times, and beside a raw uvloop reader.

    .venv/bin/python benchmarks/client_truth.py [--levels 400,1024,2048] [--seconds 8] [--repeats 3] [--busy]

The server (loadgen.paced, a process of its own on the last core) sends 64 tokens a request, the first 200 ms after the
request, the others 50 ms apart, and notes when it handed each to the kernel. Requests are joined by id, so an error is
the client's figure minus the server's for the same requests. Load kept: tokens the server sent in the window, over what
users that never lose a moment would have drawn. CPU per token: the client process's own CPU in the window over those
tokens, records included; the raw reader (uvloop if installed, else asyncio; no JSON, no records) meets the same server
in the same run, in shuffled order. --busy takes half of the client's core away with another process. Afterwards an open
loop at --rate requests/s says how late requests were sent. Needs two cores.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from contracts.arrow import read_table
from contracts.records import REQUESTS
from loadgen import selftest
from loadgen.paced import read_truth
from loadgen.selftest import CYCLE_S, ISL, OSL, RAMP_USERS_PER_S, Level, Window

RATE_USERS = 2048


@dataclass(frozen=True, slots=True)
class Raw:
    load_kept: float
    cpu_us_per_token: float


class RawReader(asyncio.Protocol):
    """Receives bytes, sees where a response ends, sends the next request. Nothing else."""

    def __init__(self, over: list[bool]) -> None:
        ids = b",".join(b"%5d" % (256 + k) for k in range(ISL))
        body = b'{"model":"m","stream":true,"max_tokens":%d,"prompt":[%s]}' % (OSL, ids)
        self.request = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        self.over = over

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n0\r\n\r\n") and not self.over:
            self.transport.write(self.request)


async def read_raw(port: int, users: int, seconds: float) -> None:
    loop, over = asyncio.get_running_loop(), list[bool]()
    for user in range(users):
        await loop.create_connection(lambda: RawReader(over), "127.0.0.1", port)
        if user % 7 == 6:
            await asyncio.sleep(7 / RAMP_USERS_PER_S)
    await asyncio.sleep(CYCLE_S + 0.5)
    start_ns, cpu_s = time.monotonic_ns(), time.process_time()
    await asyncio.sleep(seconds)
    cpu_s = time.process_time() - cpu_s
    print(json.dumps({"start_ns": start_ns, "end_ns": time.monotonic_ns(), "cpu_s": cpu_s}), flush=True)
    over.append(True)
    await asyncio.sleep(CYCLE_S + 1)


def run_raw_here(port: int, users: int, seconds: float) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(read_raw(port, users, seconds))
    else:
        uvloop.run(read_raw(port, users, seconds))


def raw(users: int, seconds: float, busy: bool) -> Raw:
    with tempfile.TemporaryDirectory() as text:
        truth = Path(text) / "truth"
        with selftest.paced_server(truth) as port, rival(busy), selftest.on_cpus(server=False):
            words = [sys.executable, __file__, "raw", port, str(users), str(seconds)]
            window = Window(**json.loads(subprocess.check_output(words)))
        tokens = selftest.tokens_in(window, read_truth(truth))
        return Raw(selftest.load_kept(window, tokens, users), window.cpu_s / tokens * 1e6)


def ours(users: int, seconds: float, busy: bool) -> Level:
    with rival(busy):
        level = selftest.measure(users, seconds)
    if level.failed:
        raise SystemExit(f"{level.failed} requests failed: the figures would be of failures")
    return level


@contextlib.contextmanager
def rival(busy: bool) -> Iterator[None]:
    """Run another process on the client's core, if asked for."""
    if not busy:
        yield
        return
    with (
        selftest.on_cpus(server=False),
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process,
    ):
        try:
            yield
        finally:
            process.kill()


def spread(values: Sequence[float], form: str = "{:.2f}") -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return f"{form.format(statistics.median(values))} ({low} to {high})"


def compare(users: int, seconds: float, repeats: int, busy: bool) -> None:
    theirs: list[Raw] = []
    mine: list[Level] = []
    for _ in range(repeats):
        turns: list[Callable[[], None]] = [
            lambda: theirs.append(raw(users, seconds, busy)),
            lambda: mine.append(ours(users, seconds, busy)),
        ]
        for turn in random.sample(turns, 2):
            turn()

    def all_of(get: Callable[[Any], float], form: str = "{:.2f}", runs: Sequence[Any] = mine) -> str:
        return spread([get(run) for run in runs], form)

    ratios = [a.cpu_us_per_token / b.cpu_us_per_token for a, b in zip(mine, theirs, strict=True)]
    print(f"c{users}{' with a rival on its core' if busy else ''}: median (least to most) of {repeats}")
    print(f"  load kept         {all_of(lambda run: 100 * run.load_kept)} %, "
          f"raw {all_of(lambda run: 100 * run.load_kept, runs=theirs)} %")  # fmt: skip
    print(f"  CPU us per token  {all_of(lambda run: run.cpu_us_per_token)}, "
          f"raw {all_of(lambda run: run.cpu_us_per_token, runs=theirs)}, ratio {spread(ratios)}")  # fmt: skip
    print(f"  true TTFT         p50 {all_of(lambda run: run.true_ttft_p50_ms)}, "
          f"p99 {all_of(lambda run: run.true_ttft_p99_ms)} ms; "
          f"server late p99 {all_of(lambda run: run.server_late_ms)} ms")  # fmt: skip
    print(f"  TTFT error        p50 {all_of(lambda run: run.ttft_p50_error_ms, '{:+.3f}')}, "
          f"p99 {all_of(lambda run: run.ttft_p99_error_ms, '{:+.3f}')} ms")  # fmt: skip
    print(f"  ITL error         p99 {all_of(lambda run: run.itl_p99_error_ms, '{:+.3f}')} ms; "
          f"bounded chunks {all_of(lambda run: 100 * run.bounded_fraction)} %; "
          f"client lag p99 {all_of(lambda run: run.client_lag_p99_ms)} ms", flush=True)  # fmt: skip


def open_loop(rate_rps: float, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with selftest.paced_server(folder / "truth") as port:
            spec = selftest.load_spec(f"http://127.0.0.1:{port}", RATE_USERS, folder)
            spec = replace(spec, arrival="poisson", rate_rps=rate_rps, workload=replace(spec.workload, osl=4))
            selftest.run_load(spec, seconds)
        rows = read_table(folder / "requests.arrow", REQUESTS).to_pylist()
    lags = np.array([row["sent_ns"] - row["scheduled_ns"] for row in rows]) / 1e6
    p50, p99 = np.percentile(lags, [50, 99])
    print(f"open loop, Poisson, {rate_rps:g} requests/s: {len(rows)} sent, schedule_lag_ms p50 {p50:.2f} p99 {p99:.2f}")


def main() -> None:
    if sys.argv[1:2] == ["raw"]:
        run_raw_here(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default="400,1024,2048")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    for users in map(int, options.levels.split(",")):
        compare(users, options.seconds, options.repeats, options.busy)
    open_loop(options.rate, options.seconds)


if __name__ == "__main__":
    main()
