"""Whether more load processes tell the same truth, and how much more they draw: 1, 2 and 4 against the paced server.

    .venv/bin/python benchmarks/client_scale.py [--processes 1,2,4] [--users 512] [--seconds 8] [--json]

The same number of users is shared out over so many processes. Each request is joined with the server's own times: the
error of TTFT and of ITL is the client's minus the server's, of the same request. Distributions of these errors are
compared per pair of process counts by a two-sample Kolmogorov-Smirnov test (scipy). With ten thousand requests such a
test finds differences of microseconds, which nobody cares about: so beside p it says D, and the difference of medians
and of 99th percentiles in ms, which is what must stay small. `bounded` is the share of chunks that shared a read with a
later one: a busy machine makes them, and their times are upper bounds. Exit status 1 when a median differs by more than
0.5 ms or a 99th percentile by more than 5 ms.
"""

import argparse
import itertools
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np
import numpy.typing as npt
from common import end_with
from scipy import stats

from contracts.arrow import read_table
from contracts.clock import NS_PER_MS, NS_PER_S
from contracts.load import LoadSpec
from contracts.records import REQUESTS
from harness.loadcrew import shares_of
from loadgen import selftest
from loadgen.paced import read_truth
from loadgen.selftest import CYCLE_S, Window
from loadgen.started import LoadProcess

SETTLE_S = 0.5
MOST_MEDIAN_MS, MOST_P99_MS = 0.5, 5.0
ERRORS = ("ttft_error_ms", "itl_error_ms")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Run:
    processes: int
    requests: int
    tok_s: float
    load_kept: float
    bounded_fraction: float
    ttft_error_ms: Floats
    itl_error_ms: Floats


def run(processes: int, users: int, seconds: float) -> Run:
    with tempfile.TemporaryDirectory(prefix="loadgen-scale-") as text:
        folder = Path(text)
        with selftest.paced_server(folder / "truth") as port:
            window = drive(f"http://127.0.0.1:{port}", processes, users, seconds, folder)
        truth = read_truth(folder / "truth")
        rows = [row for path in folder.glob("*/requests.arrow") for row in read_table(path, REQUESTS).to_pylist()]
    failed = [row for row in rows if row["error_kind"] is not None]
    if failed:
        raise SystemExit(f"{len(failed)} requests failed, such as {failed[0]['error']}: figures would be of failures")
    inside = [row for row in rows if window.start_ns <= row["sent_ns"] < window.end_ns]
    if not inside:
        raise SystemExit(
            f"no request began in the window of {seconds:g} s: the machine is too busy, or --seconds too few"
        )
    pairs = [(row, truth[row["server_id"]]) for row in inside]
    ttft = np.array([row["chunk_ns"][0] - row["sent_ns"] - (true.sends_ns[0] - true.arrival_ns) for row, true in pairs])
    itl = np.concatenate([np.diff(row["chunk_ns"]) - np.diff(true.sends_ns) for row, true in pairs])
    tokens = selftest.tokens_in(window, truth)
    chunks = sum(len(row["chunk_ns"]) for row in inside)
    return Run(
        processes=processes,
        requests=len(inside),
        tok_s=tokens / seconds,
        load_kept=selftest.load_kept(window, tokens, users),
        bounded_fraction=sum(row["merged_chunks"] for row in inside) / chunks,
        ttft_error_ms=ttft / NS_PER_MS,
        itl_error_ms=itl / NS_PER_MS,
    )


def drive(target: str, processes: int, users: int, seconds: float, folder: Path) -> Window:
    """Run the processes through ramp, one round and a common window."""
    first = 0
    specs: list[LoadSpec] = []
    for worker, share in enumerate(shares_of(users, processes)):
        place = folder / str(worker)
        place.mkdir()
        spec = replace(selftest.load_spec(target, share, place), worker=worker, workers=processes, first_user=first)
        specs.append(replace(spec, spawn_rate=spec.spawn_rate / processes))
        first += share
    with ExitStack() as stack:
        with selftest.on_cpus(server=False):
            started = [stack.enter_context(LoadProcess(spec)) for spec in specs]
        for process in started:
            process.until("ready")
        for process in started:
            process.tell("start")
        for process in started:
            process.until("ramped")
        start_ns = monotonic_ns() + int((CYCLE_S + SETTLE_S) * NS_PER_S)
        end_ns = start_ns + int(seconds * NS_PER_S)
        for process in started:
            process.tell("steady", start_ns=start_ns, end_ns=end_ns)
        for process in started:
            process.until("done")
    return Window(start_ns, end_ns, 0.0)


def compare(one: Run, two: Run) -> dict[str, Any]:
    found: dict[str, Any] = {"processes": [one.processes, two.processes]}
    for name in ERRORS:
        a, b = getattr(one, name), getattr(two, name)
        test = stats.ks_2samp(a, b, method="asymp")
        found[name] = {
            "ks_d": float(test.statistic),
            "ks_p": float(test.pvalue),
            "median_difference_ms": float(np.median(b) - np.median(a)),
            "p99_difference_ms": float(np.percentile(b, 99) - np.percentile(a, 99)),
        }
    return found


def describe(one: Run) -> dict[str, Any]:
    told: dict[str, Any] = {"processes": one.processes, "requests": one.requests}
    told |= {"tok_s": one.tok_s, "load_kept": one.load_kept, "bounded_fraction": one.bounded_fraction}
    for name in ERRORS:
        p50, p99 = np.percentile(getattr(one, name), [50, 99])
        told[name] = {"p50": float(p50), "p99": float(p99)}
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--users", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = []
    for text in options.processes.split(","):
        print(f"{text} processes ...", file=sys.stderr, flush=True)
        runs.append(run(int(text), options.users, options.seconds))
    pairs = [compare(one, two) for one, two in itertools.combinations(runs, 2)]
    good = all(
        abs(pair[name]["median_difference_ms"]) <= MOST_MEDIAN_MS
        and abs(pair[name]["p99_difference_ms"]) <= MOST_P99_MS
        for pair in pairs
        for name in ERRORS
    )
    told = [describe(one) for one in runs]
    if options.json:
        print(json.dumps({"users": options.users, "runs": told, "pairs": pairs, "good": good}, indent=1))
        return 0 if good else 1
    for one in told:
        print(
            f"{one['processes']} processes: {one['tok_s']:,.0f} tok/s, {one['load_kept']:.1%} of the load kept, "
            f"{one['bounded_fraction']:.2%} bounded, "
            f"{one['requests']} requests; TTFT error p50 {one['ttft_error_ms']['p50']:+.3f} p99 "
            f"{one['ttft_error_ms']['p99']:+.3f} ms, ITL error p50 {one['itl_error_ms']['p50']:+.4f} p99 "
            f"{one['itl_error_ms']['p99']:+.3f} ms"
        )
    for pair in pairs:
        for name in ERRORS:
            test = pair[name]
            print(
                f"{pair['processes'][0]} against {pair['processes'][1]}, {name}: KS D {test['ks_d']:.4f} p "
                f"{test['ks_p']:.3g}, median {test['median_difference_ms']:+.4f} ms, p99 "
                f"{test['p99_difference_ms']:+.3f} ms"
            )
    print("the same within the marks" if good else "NOT the same (or, where chunks are bounded, the machine too busy)")
    return 0 if good else 1


if __name__ == "__main__":
    end_with(main)
