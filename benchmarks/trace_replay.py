"""Whether a replay is what the trace says: counts, lengths and due times of 10,000 lines of each format.

    .venv/bin/python benchmarks/trace_replay.py [--lines 10000] [--rate 400] [--workers 1] [--long 10000000]

Traces of known contents are written, replayed by load processes against a paced server (loadgen.paced: 2 ms to the
first token, 1 ms between tokens), and every row of the records is held against the line it names. Traces with times run
at those, scaled to --rate requests/s on average; the others in closed loop. `late` is how long after its due
time a request was sent, `CPU` the load processes' own per request. --long writes a trace of so many lines, too, and
compares how long a load process takes to be ready with it, and its memory after a thousand requests, with those of a
trace of a hundred thousand. Exit status 1 if a replay was not what its trace says.
"""

import argparse
import contextlib
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from common import end_with

from contracts.arrow import read_table
from contracts.load import LoadSpec, TraceSpec, WorkloadSpec
from contracts.records import REQUESTS
from loadgen import selftest
from loadgen.started import LoadProcess

USERS = 512
SHORT_LINES = 100_000
EPOCH = datetime(2023, 11, 16, 18, 17, 3, tzinfo=UTC)
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
    "his",
    "but",
    "at",
]


@dataclass(frozen=True, slots=True)
class Line:
    """What a trace says of a request: its line, due time (us since the first), prompt and output tokens."""

    number: int
    at_us: int | None
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Run:
    rows: Sequence[dict[str, Any]]
    cpu_s: float
    ready_s: float
    rss_mib: float


def drawn(count: int, gap_us: int, seed: int) -> list[tuple[int, int, int]]:
    seeded = random.Random(seed)
    at, found = 0, []
    for _ in range(count):
        found.append((at, seeded.randint(1, 2000), seeded.randint(1, 8)))
        at += round(seeded.expovariate(1 / gap_us)) // 1000 * 1000
    return found


def mooncake(path: Path, count: int, gap_us: int) -> list[Line]:
    rows = drawn(count, gap_us, 1)
    with open(path, "w", encoding="utf-8") as file:
        for n, (at, prompt, output) in enumerate(rows):
            ids = [0, *range(n * 10, n * 10 + (prompt - 1) // 512)]
            document = {"timestamp": at // 1000, "input_length": prompt, "output_length": output, "hash_ids": ids}
            file.write(json.dumps(document) + "\n")
    return [Line(n, *row) for n, row in enumerate(rows, 1)]


def azure(path: Path, count: int, gap_us: int) -> list[Line]:
    rows = drawn(count, gap_us, 2)
    with open(path, "w", encoding="utf-8") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        file.writelines(
            f"{EPOCH + timedelta(microseconds=at):%Y-%m-%d %H:%M:%S.%f}0,{prompt},{output}\n"
            for at, prompt, output in rows
        )
    return [Line(n, *row) for n, row in enumerate(rows, 2)]


def burstgpt(path: Path, count: int, gap_us: int) -> list[Line]:
    rows = drawn(count, gap_us, 3)
    with open(path, "w", encoding="utf-8") as file:
        file.write("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
        file.writelines(
            f"{5 + at / 1e6:.3f},ChatGPT,{prompt},{output},{prompt + output},Conversation log\n"
            for at, prompt, output in rows
        )
    return [Line(n, *row) for n, row in enumerate(rows, 2)]


def jsonl(path: Path, count: int, gap_us: int) -> list[Line]:
    rows = drawn(count, gap_us, 4)
    with open(path, "w", encoding="utf-8") as file:
        for at, prompt, output in rows:
            document = {"prompt": list(range(300, 300 + prompt)), "output_length": output, "timestamp": at / 1000}
            file.write(json.dumps(document) + "\n")
    return [Line(n, *row) for n, row in enumerate(rows, 1)]


def sharegpt(path: Path, count: int, gap_us: int) -> list[Line]:
    """Write conversations of one turn, whose texts are of four bytes a token, as they are estimated."""
    rows = [(prompt, output) for _, prompt, output in drawn(count, gap_us, 5)]

    def text(tokens: int) -> str:
        return (" ".join(WORDS) * (tokens // 10 + 1))[: 4 * tokens]

    document = [
        {
            "id": str(n),
            "conversations": [{"from": "human", "value": text(prompt)}, {"from": "gpt", "value": text(output)}],
        }
        for n, (prompt, output) in enumerate(rows)
    ]
    path.write_text(json.dumps(document), encoding="utf-8")
    return [Line(n, None, *row) for n, row in enumerate(rows, 1)]


FORMATS: dict[str, Callable[[Path, int, int], list[Line]]] = {
    "mooncake": mooncake, "azure": azure, "burstgpt": burstgpt, "jsonl": jsonl, "sharegpt": sharegpt,
}  # fmt: skip


def replay(specs: Sequence[LoadSpec], stop_after: int | None = None) -> Run:
    """Run one load process a spec to the trace's end, or until so many requests are over."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        with selftest.on_cpus(server=False):
            processes = [stack.enter_context(LoadProcess(spec)) for spec in specs]
        for process in processes:
            process.until("ready")
        ready_s = time.monotonic() - began
        for process in processes:
            process.tell("start")
        if stop_after is not None:
            while processes[0].until("progress")["completed"] < stop_after:
                pass
        rss = sum(resident_mib(process.pid) for process in processes)
        if stop_after is not None:
            for process in processes:
                process.tell("stop")
        cpu_s = sum(process.until("done")["cpu_s"] for process in processes)
    rows = [row for spec in specs for row in read_table(Path(spec.requests_path), REQUESTS).to_pylist()]
    return Run(rows, cpu_s, ready_s, rss)


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def specs_of(name: str, path: Path, target: str, folder: Path, workers: int, scale: float | None) -> list[LoadSpec]:
    workload = WorkloadSpec("trace", 64, trace=TraceSpec(str(path), name, "", scale or 1.0))
    specs = []
    for worker in range(workers):
        place = folder / f"{name}{worker}"
        place.mkdir()
        spec = selftest.load_spec(target, USERS // workers if scale else 32, place)
        specs.append(
            replace(spec, worker=worker, workers=workers, workload=workload, arrival="trace" if scale else "closed")
        )
    return specs


def complaints(lines: Sequence[Line], run: Run, scale: float | None, workers: int) -> list[str]:
    """Say in which ways the records differ from the trace."""
    rows = {row["trace_line"]: row for row in run.rows}
    found = []
    if len(run.rows) != len(lines) or len(rows) != len(lines):
        found.append(f"{len(run.rows)} requests of {len(rows)} lines for {len(lines)} lines")
    failed = [row for row in run.rows if row["error_kind"] is not None]
    if failed:
        found.append(f"{len(failed)} failed, as {failed[0]['error']}")
    known = [(line, rows[line.number]) for line in lines if line.number in rows]
    wrong = [line for line, row in known if (row["prompt_tokens"], row["max_tokens"]) != (line.prompt, line.output)]
    if wrong:
        found.append(f"{len(wrong)} with other lengths, the first on line {wrong[0].number}")
    short = [line for line, row in known if row["error_kind"] is None and row["output_tokens"] != line.output]
    if short:
        found.append(f"{len(short)} with other outputs, the first on line {short[0].number}")
    if scale:
        for worker in range(workers):
            mine = [(line, row) for line, row in known if row["worker"] == worker]
            due_ns = [(line.at_us or 0) * 1000 / scale for line, _ in mine]
            origin = mine[0][1]["scheduled_ns"] - round(due_ns[0])
            early = [row["scheduled_ns"] - origin - due for (_, row), due in zip(mine, due_ns, strict=True)]
            if max(map(abs, early)) > 1:
                found.append(f"due times up to {max(map(abs, early)):.0f} ns from the trace's")
    return found


def check(name: str, options: argparse.Namespace, folder: Path, target: str) -> bool:
    path = folder / name
    lines = FORMATS[name](path, options.lines, 100_000)
    last_us = lines[-1].at_us
    scale = None if last_us is None else last_us / 1e6 * options.rate / options.lines
    run = replay(specs_of(name, path, target, folder, options.workers, scale))
    problems = complaints(lines, run, scale, options.workers)
    late = [(row["sent_ns"] - row["scheduled_ns"]) / 1e6 for row in run.rows if row["scheduled_ns"] is not None]
    how = f"late p50 {np.percentile(late, 50):.2f} p99 {np.percentile(late, 99):.2f} ms" if late else "closed loop"
    cpu_us = run.cpu_s / max(len(run.rows), 1) * 1e6
    verdict = "; ".join(problems) or "as the trace says"
    print(f"{name:>9}: {len(run.rows)} requests, {how}, CPU {cpu_us:.0f} us: {verdict}", flush=True)
    return not problems


def long_trace(count: int, folder: Path, target: str) -> None:
    found = {}
    for lines in (SHORT_LINES, count):
        path = folder / f"long{lines}"
        with open(path, "w", encoding="utf-8") as file:
            file.write("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
            file.writelines(
                f"{at},ChatGPT,40,2,42,Conversation log\n" * min(1000, lines - at) for at in range(0, lines, 1000)
            )
        place = folder / str(lines)
        place.mkdir()
        runs = [replay(specs_of("burstgpt", path, target, fresh(place, n), 1, None), 900) for n in range(3)]
        found[lines] = sorted(run.ready_s for run in runs)[1], sorted(run.rss_mib for run in runs)[1]
        path.unlink()
    (short_s, short_mib), (long_s, long_mib) = found.values()
    print(f"{count} lines against {SHORT_LINES}, medians of 3: ready after {long_s:.2f} s against {short_s:.2f} s, "
          f"{long_mib:.0f} MiB against {short_mib:.0f} MiB", flush=True)  # fmt: skip


def fresh(folder: Path, number: int) -> Path:
    place = folder / str(number)
    place.mkdir()
    return place


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=400.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--long", type=int, metavar="LINES")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trace-replay-") as text:
        folder = Path(text)
        with selftest.paced_server(folder / "truth", first_ms=2, gap_ms=1) as port:
            target = f"http://127.0.0.1:{port}"
            good = [check(name, options, folder, target) for name in FORMATS]
            if options.long:
                long_trace(options.long, folder, target)
    return 0 if all(good) else 1


if __name__ == "__main__":
    end_with(main)
