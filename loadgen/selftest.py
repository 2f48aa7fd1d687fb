"""How far this machine's figures can be trusted: the load process against a paced server that knows the truth.

A level drives so many users for some seconds and joins each request with the server's own times of it. What the client
adds to a latency, and what it does not ask for in time, is its error; a server's lateness is part of the truth.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from contracts.arrow import read_table
from contracts.clock import NS_PER_MS, NS_PER_S
from contracts.errors import LoadError
from contracts.load import LoadSpec, WorkloadSpec
from contracts.records import CLIENT, REQUESTS
from loadgen.paced import Truth, read_truth
from loadgen.started import LoadProcess

FIRST_MS, GAP_MS, ISL, OSL = 200.0, 50.0, 256, 64
CYCLE_S = (FIRST_MS + GAP_MS * (OSL - 1)) / 1000
RAMP_USERS_PER_S = 700.0
_SETTLE_S = 0.5
_LEAST_KEPT = 0.98
_MOST_TTFT_P50_MS, _MOST_TTFT_P99_MS, _MOST_ITL_P99_MS = 1.0, 5.0, 3.0
_END_S = 60.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that is looked at, and the CPU time that the client used in it."""

    start_ns: int
    end_ns: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Level:
    """What came out at one concurrency; errors are the client's figure minus the server's, for the same requests.

    `load_kept` is the share of the tokens that users who never lose a moment would have drawn. `bounded_fraction` of
    the chunks shared a read with a later one. `server_late_ms` is how late the server sent, p99: if it is much, the
    server was the bottleneck, and `load_kept` is not the client's alone.
    """

    users: int
    requests: int
    true_ttft_p50_ms: float
    true_ttft_p99_ms: float
    ttft_p50_error_ms: float
    ttft_p99_error_ms: float
    itl_p99_error_ms: float
    load_kept: float
    bounded_fraction: float
    client_lag_p99_ms: float | None
    cpu_us_per_token: float
    server_late_ms: float
    failed: int

    @property
    def complaints(self) -> list[str]:
        """Say in which ways this level's figures cannot be trusted."""
        limits = [
            (abs(self.ttft_p50_error_ms) > _MOST_TTFT_P50_MS, f"TTFT p50 is {self.ttft_p50_error_ms:+.1f} ms off"),
            (abs(self.ttft_p99_error_ms) > _MOST_TTFT_P99_MS, f"TTFT p99 is {self.ttft_p99_error_ms:+.1f} ms off"),
            (abs(self.itl_p99_error_ms) > _MOST_ITL_P99_MS, f"ITL p99 is {self.itl_p99_error_ms:+.1f} ms off"),
            (self.load_kept < _LEAST_KEPT, f"only {self.load_kept:.1%} of the load was kept"),
            (self.failed > 0, f"{self.failed} requests failed"),
        ]
        return [words for wrong, words in limits if wrong]


def measure(users: int, seconds: float) -> Level:
    """Run one level, through one round of requests at least; the server gets a core of its own where there are two.

    Raises LoadError.
    """
    seconds = max(seconds, CYCLE_S + _SETTLE_S)
    with tempfile.TemporaryDirectory(prefix="loadgen-selftest-") as text:
        folder = Path(text)
        with paced_server(folder / "truth") as port:
            window, failed = drive(f"http://127.0.0.1:{port}", users, seconds, folder)
        return judge(window, read_truth(folder / "truth"), users, folder, failed)


@contextmanager
def on_cpus(*, server: bool) -> Iterator[None]:
    """Let what is started here begin on the last CPU that we may use (the server), or on the others (the client)."""
    allowed = os.sched_getaffinity(0)
    last = max(allowed)
    share = {last} if server else allowed - {last}
    os.sched_setaffinity(0, share or allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def paced_server(truth: Path, first_ms: float = FIRST_MS, gap_ms: float = GAP_MS) -> Iterator[str]:
    """Run a paced server, give its port; its truth is written when this is left."""
    words = [sys.executable, "-m", "loadgen.paced", str(truth)]
    words += ["--first-ms", str(first_ms), "--gap-ms", str(gap_ms)]
    with on_cpus(server=True):
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
            process.stdin.close()
            process.wait(_END_S)
        finally:
            process.kill()


def load_spec(target: str, users: int, folder: Path) -> LoadSpec:
    return LoadSpec(
        drive="http",
        target=target,
        endpoint="completions",
        model="paced",
        worker=0,
        users=users,
        first_user=0,
        spawn_rate=RAMP_USERS_PER_S,
        quota=None,
        drain_s=_END_S,
        connect_timeout_s=10,
        read_timeout_s=_END_S,
        workload=WorkloadSpec(ISL, OSL, isl_spread=0, osl_spread=0),
        requests_path=str(folder / "requests.arrow"),
        client_path=str(folder / "client.arrow"),
    )


def drive(target: str, users: int, seconds: float, folder: Path) -> tuple[Window, int]:
    """Load a target in closed loop; give the window that was looked at, and the number of failures."""
    start_ns, end_ns, failed = run_load(load_spec(target, users, folder), seconds)
    rows = read_table(folder / "client.arrow", CLIENT).to_pydict()
    inside = [place for place, t_ns in enumerate(rows["t_ns"]) if start_ns <= t_ns <= end_ns]
    if len(inside) < 2:  # a difference takes two
        raise LoadError(f"the load process hardly got to write about itself at {users} users")
    first, last = inside[0], inside[-1]
    cpu_ns = rows["cpu_ns"][last] - rows["cpu_ns"][first]
    return Window(rows["t_ns"][first], rows["t_ns"][last], cpu_ns / NS_PER_S), failed


def run_load(spec: LoadSpec, seconds: float) -> tuple[int, int, int]:
    """Run a load process through ramp, one full round of requests and a window; give its ends and the failures."""
    with on_cpus(server=False):
        process = LoadProcess(spec)
    with process:
        process.tell("start")
        process.until("ramped")
        start_ns = monotonic_ns() + int((CYCLE_S + _SETTLE_S) * NS_PER_S)
        end_ns = start_ns + int(seconds * NS_PER_S)
        process.tell("steady", start_ns=start_ns, end_ns=end_ns)
        done = process.until("done")
    return start_ns, end_ns, int(done["failed"])


def tokens_in(window: Window, truth: Mapping[str, Truth]) -> int:
    """Count the tokens that the server sent in the window."""
    sends = np.concatenate([one.sends_ns for one in truth.values()]) if truth else np.empty(0)
    return int(((sends >= window.start_ns) & (sends < window.end_ns)).sum())


def load_kept(window: Window, tokens: int, users: int) -> float:
    return tokens / (users * OSL / CYCLE_S * (window.end_ns - window.start_ns) / NS_PER_S)


def late_ms(truth: Mapping[str, Truth]) -> float:
    """Give how late the server sent its tokens, p99."""
    steps = [one.sends_ns - one.arrival_ns - (FIRST_MS + GAP_MS * np.arange(len(one.sends_ns))) * NS_PER_MS
             for one in truth.values()]  # fmt: skip
    return float(np.percentile(np.concatenate(steps), 99)) / NS_PER_MS


def judge(window: Window, truth: Mapping[str, Truth], users: int, folder: Path, failed: int) -> Level:
    """Compare the client's records of the window with the truth. Raises LoadError when there are none."""
    rows = [
        row
        for row in read_table(folder / "requests.arrow", REQUESTS).to_pylist()
        if window.start_ns <= row["sent_ns"] < window.end_ns and row["error_kind"] is None and row["server_id"] in truth
    ]
    if not rows:
        raise LoadError(f"no request of {users} users began in the window and ended well: give it more --seconds")
    theirs = [truth[row["server_id"]] for row in rows]
    ttft = np.array([row["chunk_ns"][0] - row["sent_ns"] for row in rows]) / NS_PER_MS
    true_ttft = np.array([one.sends_ns[0] - one.arrival_ns for one in theirs]) / NS_PER_MS
    itl, true_itl = _gaps_ms([row["chunk_ns"] for row in rows]), _gaps_ms([one.sends_ns for one in theirs])
    lags = [row["client_lag_ns"] / NS_PER_MS for row in rows if row["client_lag_ns"] is not None]
    tokens = tokens_in(window, truth)
    return Level(
        users=users,
        requests=len(rows),
        true_ttft_p50_ms=_p(true_ttft, 50),
        true_ttft_p99_ms=_p(true_ttft, 99),
        ttft_p50_error_ms=_p(ttft, 50) - _p(true_ttft, 50),
        ttft_p99_error_ms=_p(ttft, 99) - _p(true_ttft, 99),
        itl_p99_error_ms=_p(itl, 99) - _p(true_itl, 99),
        load_kept=load_kept(window, tokens, users),
        bounded_fraction=sum(row["merged_chunks"] for row in rows) / sum(len(row["chunk_ns"]) for row in rows),
        client_lag_p99_ms=_p(np.array(lags), 99) if lags else None,
        cpu_us_per_token=window.cpu_s / max(tokens, 1) * 1e6,
        server_late_ms=late_ms(truth),
        failed=failed,
    )


def _gaps_ms(times: Sequence[Any]) -> Floats:
    return np.concatenate([np.diff(one) for one in times]) / NS_PER_MS


def _p(values: Floats, percent: int) -> float:
    return float(np.percentile(values, percent))
