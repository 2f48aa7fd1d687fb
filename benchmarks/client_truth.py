"""How true the client's figures are: against a paced server that knows its own times, and beside a raw uvloop reader.

    .venv/bin/python benchmarks/client_truth.py [--levels 400,1024,2048] [--seconds 8] [--repeats 2] [--busy]

The server (loadgen.paced, a process of its own on the other core) sends 64 tokens a request, the first 200 ms after
the request, the others 50 ms apart, and notes when it handed each to the kernel. Requests are joined by id, so an error
is the client's figure minus the server's for the same requests. Load kept: tokens the server sent in the window, over
what users that never lose a moment would have drawn. CPU per token: the client process's own CPU in the window over
those tokens; the raw reader (uvloop if installed, else asyncio; no JSON, no records) meets the same server in the same
run. --busy takes half of the client's core away with another process. Needs two cores.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contracts.arrow import read_table
from contracts.load import LoadSpec, WorkloadSpec
from contracts.records import CLIENT, REQUESTS
from loadgen.paced import Truth, read_truth

ROOT = Path(__file__).parents[1]
FIRST_MS, GAP_MS, ISL, OSL = 200.0, 50.0, 256, 64
CYCLE_S = (FIRST_MS + GAP_MS * (OSL - 1)) / 1000
RAMP_USERS_PER_S = 700
CLIENT_CPU, SERVER_CPU = 0, 1


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to; the raw reader has no figures of its own to be wrong about."""

    kept: float
    cpu_us: float
    server_late_ms: float
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    itl_p99: float | None = None
    true_ttft: tuple[float, float] | None = None
    bounded: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    start_ns: int
    end_ns: int
    cpu_s: float


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@contextlib.contextmanager
def paced(truth: Path) -> Iterator[str]:
    words = ["taskset", "-c", str(SERVER_CPU), sys.executable, "-m", "loadgen.paced", str(truth)]
    words += ["--first-ms", str(FIRST_MS), "--gap-ms", str(GAP_MS)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(), cwd=ROOT
    ) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(60)


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
    loop, over = asyncio.get_running_loop(), []
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


def serve_raw(port: int, users: int, seconds: float) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(read_raw(port, users, seconds))
    else:
        uvloop.run(read_raw(port, users, seconds))


def run_raw(port: str, users: int, seconds: float, _: Path) -> Window:
    words = ["taskset", "-c", str(CLIENT_CPU), sys.executable, __file__, "raw", port, str(users), str(seconds)]
    return Window(**json.loads(subprocess.check_output(words, env=environment())))


def run_ours(port: str, users: int, seconds: float, folder: Path) -> Window:
    spec = LoadSpec(
        drive="http",
        target=f"http://127.0.0.1:{port}",
        endpoint="completions",
        model="m",
        worker=0,
        users=users,
        first_user=0,
        spawn_rate=RAMP_USERS_PER_S,
        quota=None,
        drain_s=60,
        connect_timeout_s=5,
        read_timeout_s=60,
        workload=WorkloadSpec(ISL, OSL, isl_spread=0, osl_spread=0),
        requests_path=f"{folder}/requests.arrow",
        client_path=f"{folder}/client.arrow",
    )
    words = ["taskset", "-c", str(CLIENT_CPU), sys.executable, *PROFILER, "-m", "loadgen.process"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment()
    ) as process:
        tell(process, spec.to_json(), '{"do": "start"}')
        until(process, "ramped")
        start_ns = time.monotonic_ns() + int((CYCLE_S + 0.5) * 1e9)
        end_ns = start_ns + int(seconds * 1e9)
        tell(process, json.dumps({"do": "steady", "start_ns": start_ns, "end_ns": end_ns}))
        done = until(process, "done")
    if done["failed"]:
        raise SystemExit(f"{done['failed']} requests failed: the figures would be of failures")
    rows = read_table(folder / "client.arrow", CLIENT).to_pydict()
    inside = [k for k, t in enumerate(rows["t_ns"]) if start_ns <= t <= end_ns]
    cpu_ns = rows["cpu_ns"][inside[-1]] - rows["cpu_ns"][inside[0]]
    return Window(rows["t_ns"][inside[0]], rows["t_ns"][inside[-1]], cpu_ns / 1e9)


PROFILER = os.environ.get("CLIENT_TRUTH_PYTHON_OPTIONS", "").split()


def tell(process: Any, *lines: str) -> None:
    for line in lines:
        process.stdin.write(line + "\n")
    process.stdin.flush()


def until(process: Any, name: str) -> dict[str, Any]:
    while line := process.stdout.readline():
        event = json.loads(line)
        if event["event"] == name:
            return event
    raise SystemExit(f"the load process ended before {name!r}")


def judge(window: Window, truth: dict[str, Truth], users: int, requests: Path) -> Run:
    sends = np.concatenate([one.sends_ns for one in truth.values()])
    tokens = int(((sends >= window.start_ns) & (sends < window.end_ns)).sum())
    length_s = (window.end_ns - window.start_ns) / 1e9
    kept = tokens / (users * OSL / CYCLE_S * length_s)
    due = [one.sends_ns - one.arrival_ns - (FIRST_MS + GAP_MS * np.arange(len(one.sends_ns))) * 1e6
           for one in truth.values()]  # fmt: skip
    late_ms = float(np.percentile(np.concatenate(due), 99)) / 1e6
    cpu_us = window.cpu_s / tokens * 1e6
    if not requests.exists():
        return Run(kept, cpu_us, late_ms)
    rows = [row for row in read_table(requests, REQUESTS).to_pylist()
            if window.start_ns <= row["sent_ns"] < window.end_ns and row["error_kind"] is None]  # fmt: skip
    ttft = [(row["chunk_ns"][0] - row["sent_ns"]) / 1e6 for row in rows]
    theirs = [truth[row["server_id"]] for row in rows]
    true_ttft = [(one.sends_ns[0] - one.arrival_ns) / 1e6 for one in theirs]
    itl = np.concatenate([np.diff(row["chunk_ns"]) for row in rows]) / 1e6
    true_itl = np.concatenate([np.diff(one.sends_ns) for one in theirs]) / 1e6
    p = np.percentile
    bounded = [len(row["chunk_ns"]) - len(set(row["chunk_ns"])) for row in rows]
    return Run(
        kept,
        cpu_us,
        late_ms,
        float(p(ttft, 50) - p(true_ttft, 50)),
        float(p(ttft, 99) - p(true_ttft, 99)),
        float(p(itl, 99) - p(true_itl, 99)),
        (float(p(true_ttft, 50)), float(p(true_ttft, 99))),
        sum(bounded) / (len(rows) * OSL),
    )


@contextlib.contextmanager
def rival(busy: bool) -> Iterator[None]:
    """Run another process on the client's core, if asked for."""
    if not busy:
        yield
        return
    with subprocess.Popen(["taskset", "-c", str(CLIENT_CPU), sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def once(name: str, users: int, seconds: float, busy: bool) -> Run:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with paced(folder / "truth") as port, rival(busy):
            window = {"raw": run_raw, "ours": run_ours}[name](port, users, seconds, folder)
        return judge(window, read_truth(folder / "truth"), users, folder / "requests.arrow")


def spread(values: list[float], form: str = "{:.2f}") -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return f"{form.format(statistics.median(values))} ({low} to {high})"


def compare(users: int, seconds: float, repeats: int, busy: bool) -> None:
    got: dict[str, list[Run]] = {"raw": [], "ours": []}
    for _ in range(repeats):
        for name in random.sample(sorted(got), 2):
            got[name].append(once(name, users, seconds, busy))
    raw, ours = got["raw"], got["ours"]
    true50, true99 = ([run.true_ttft[k] for run in ours] for k in (0, 1))
    print(f"c{users}{' with a rival on its core' if busy else ''}: median (least to most) of {repeats}")
    print(f"  load kept          ours {spread([100 * run.kept for run in ours])} %   "
          f"raw {spread([100 * run.kept for run in raw])} %")  # fmt: skip
    print(f"  CPU us per token   ours {spread([run.cpu_us for run in ours])}   "
          f"raw {spread([run.cpu_us for run in raw])}   "
          f"ratio {spread([a.cpu_us / b.cpu_us for a, b in zip(ours, raw, strict=True)])}")  # fmt: skip
    print(f"  TTFT truth         p50 {spread(true50)}   p99 {spread(true99)} ms; "
          f"server late p99 {spread([run.server_late_ms for run in ours])} ms")  # fmt: skip
    print(f"  TTFT error         p50 {spread([run.ttft_p50 for run in ours], '{:+.3f}')}   "
          f"p99 {spread([run.ttft_p99 for run in ours], '{:+.3f}')} ms")  # fmt: skip
    print(f"  ITL error          p99 {spread([run.itl_p99 for run in ours], '{:+.3f}')} ms; "
          f"bounded chunks {spread([100 * run.bounded for run in ours])} %", flush=True)  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["raw"]:
        serve_raw(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default="400,1024,2048")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    for users in map(int, options.levels.split(",")):
        compare(users, options.seconds, options.repeats, options.busy)


if __name__ == "__main__":
    main()
