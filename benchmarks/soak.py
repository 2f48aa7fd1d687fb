"""Does the stack grow, or lose a token, when it runs for long? c2048 on the direct drive, with random aborts.

    PYTHONPATH=. python benchmarks/soak.py --minutes 30 [--concurrency 2048] [--abort-fraction 0.1] [--set NAME=VALUE]

Every answer is compared with the model's known one, token for token; a share of the requests is aborted, some before
they can have been admitted and some while decoding. At the end the client's counts of requests and tokens must be the
server's (`answered` of /server_info), and every completed request must have been in /perf_metrics once.

RSS, threads and open files of each process of the stack are sampled every second (this client's too, which is shown and
not judged: it keeps the samples), and every ten what the proxy and rank 0 have in use, of Python's allocator and of the
C library's (`memory` of /server_info). Growth is the slope over ten means of what was sampled after the warm-up, with
its 95 % interval (means rather than all samples, because neighbouring samples are not independent). A process grows
when even the interval's lower end, over the measured time, comes to more than 4 MiB, 50,000 blocks, or to one thread or
file. RSS counts only where nothing in use is known, or that grows too: a heap that once was larger is not given back,
and the largest of more and more stretches is larger. Exit status 1 when one grows or a token was lost. The first
minutes fill what is bounded (free lists, the rows kept for /metrics): a short run sees that, and may call it growth.
`last half` is the slope over the later half alone: what settles has a smaller one, what leaks the same.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from common import end_with, reference_stack
from scipy import stats

from contracts import direct as wire
from harness.httpget import get_json
from harness.reference.engine.device import expected_tokens
from harness.stacks.base import RunningServer
from loadgen.cli.parsing import fraction, positive

SAMPLE_S = 1.0
DRAIN_S = 120.0
PROMPTS = 256
SEGMENTS = 10
CLIENT = "client (soak)"
MIB = 1 << 20
IN_USE_EVERY_S = 10.0
IN_USE = ("python_blocks", "malloc_bytes")
GROWS = {"rss": 4.0 * MIB, "threads": 1.0, "files": 1.0, "python_blocks": 50_000.0, "malloc_bytes": 4.0 * MIB}
UNIT = {"rss": MIB, "threads": 1, "files": 1, "python_blocks": 1000, "malloc_bytes": MIB}
SHOWN = {"rss": "rss MiB", "python_blocks": "k blocks", "malloc_bytes": "malloc MiB"}


@dataclass(slots=True)
class Flight:
    """One request: its prompt's number, how many tokens it asks for, after how many it is aborted (None: never)."""

    prompt: int
    length: int
    abort_after: int | None
    tokens: bytearray = field(default_factory=bytearray)
    aborted: bool = False


@dataclass(slots=True)
class Counts:
    sent: int = 0
    completed: int = 0
    cancelled: int = 0
    tokens: int = 0
    perf_records: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def ended(self) -> int:
        return self.completed + self.cancelled


class SoakClient(asyncio.Protocol):
    """Keeps `concurrency` requests in flight until told to drain; checks every answer."""

    def __init__(self, rng: random.Random, isl: int, osl: int, concurrency: int, abort_fraction: float) -> None:
        self.counts = Counts()
        self.draining = False
        self.drained = asyncio.Event()
        self._rng = rng
        self._osl = osl
        self._concurrency = concurrency
        self._abort_fraction = abort_fraction
        prompts = [[rng.randrange(256, 32_000) for _ in range(isl)] for _ in range(PROMPTS)]
        self._prompts = [np.array(prompt, dtype=np.int32).tobytes() for prompt in prompts]
        self._answers = [np.array(expected_tokens(prompt, 2 * osl), dtype=np.int32).tobytes() for prompt in prompts]
        self._flights: dict[int, Flight] = {}
        self._frames = wire.FrameReader()
        self._next_tag = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def begin(self) -> None:
        for _ in range(self._concurrency):
            self._submit()

    def drain(self) -> None:
        self.draining = True
        if not self._flights:
            self.drained.set()

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def connection_lost(self, error: Exception | None) -> None:
        if self._flights:
            self.counts.wrong.append(f"the connection was lost with {len(self._flights)} requests in flight: {error}")
            self.drained.set()

    def _submit(self) -> None:
        rng = self._rng
        length = rng.randint(1, 2 * self._osl)
        abort_after = rng.randint(0, length) if rng.random() < self._abort_fraction else None
        flight = Flight(rng.randrange(PROMPTS), length, abort_after)
        self._next_tag = tag = (self._next_tag + 1) % (1 << 32)
        self._flights[tag] = flight
        self.counts.sent += 1
        head = wire.SUBMIT_HEAD.pack(tag, length, True)
        self._transport.write(wire.frame(wire.SUBMIT, head, self._prompts[flight.prompt]))
        if abort_after == 0:
            self._abort(tag, flight)

    def _abort(self, tag: int, flight: Flight) -> None:
        flight.aborted = True
        self._transport.write(wire.frame(wire.ABORT, wire.TAG.pack(tag)))

    def data_received(self, data: bytes) -> None:
        for kind, body in self._frames.feed(data):
            if kind == wire.FAILED:
                (tag,) = wire.TAG.unpack_from(body)
                del self._flights[tag]
                self.counts.wrong.append(f"request {tag} failed: {body[wire.TAG.size :].decode()}")
                self._go_on()
                continue
            (entries,) = wire.TAG.unpack_from(body)
            at = wire.TAG.size + entries * wire.ENTRY.size
            for tag, _, tokens, finish, _ in wire.ENTRY.iter_unpack(body[wire.TAG.size : at]):
                self._take(tag, body[at : at + 4 * tokens], finish)
                at += 4 * tokens

    def _take(self, tag: int, tokens: bytes, finish: int) -> None:
        flight = self._flights.get(tag)
        if flight is None:
            self.counts.wrong.append(f"a response for request {tag}, which has ended")
            return
        flight.tokens += tokens
        self.counts.tokens += len(tokens) // 4
        if finish != wire.RUNNING:
            del self._flights[tag]
            self._judge(tag, flight, finish)
            self._go_on()
        elif flight.abort_after is not None and not flight.aborted and len(flight.tokens) >= 4 * flight.abort_after:
            self._abort(tag, flight)

    def _judge(self, tag: int, flight: Flight, finish: int) -> None:
        if not self._answers[flight.prompt].startswith(flight.tokens):
            self.counts.wrong.append(f"request {tag} got other tokens than the model's")
        if finish == wire.CANCELLED and flight.aborted:
            self.counts.cancelled += 1
        elif finish == wire.LENGTH and len(flight.tokens) == 4 * flight.length:
            self.counts.completed += 1
        else:
            got = len(flight.tokens) // 4
            self.counts.wrong.append(f"request {tag} ended with finish {finish} at {got} of {flight.length} tokens")

    def _go_on(self) -> None:
        if not self.draining:
            self._submit()
        elif not self._flights:
            self.drained.set()


def usage_of(pid: int) -> dict[str, int]:
    """Read a process' resident memory in bytes, its threads and its open files."""
    process = Path(f"/proc/{pid}")
    return {
        "rss": int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "threads": len(list((process / "task").iterdir())),
        "files": len(list((process / "fd").iterdir())),
    }


@dataclass(frozen=True, slots=True)
class Growth:
    """A slope per hour with its 95 % interval, from means of equal stretches of the samples."""

    first: float
    last: float
    per_hour: float
    low: float
    high: float
    grows: bool


def growth(times_s: Sequence[float], values: Sequence[float], limit: float) -> Growth:
    """Fit a line to `SEGMENTS` means; `limit` is the growth over the whole stretch that counts as such."""
    at = np.array([part.mean() for part in np.array_split(np.array(times_s), SEGMENTS)]) / 3600.0
    means = np.array([part.mean() for part in np.array_split(np.array(values, dtype=float), SEGMENTS)])
    if np.ptp(means) == 0:
        return Growth(values[0], values[-1], 0.0, 0.0, 0.0, grows=False)
    fit = stats.linregress(at, means)
    half = float(stats.t.ppf(0.975, SEGMENTS - 2) * fit.stderr)
    hours = (times_s[-1] - times_s[0]) / 3600.0
    low, high = fit.slope - half, fit.slope + half
    return Growth(values[0], values[-1], float(fit.slope), low, high, grows=bool(low * hours > limit))


@dataclass(frozen=True, slots=True)
class Sample:
    """`t_s` since the load began; usage by role."""

    t_s: float
    usage: Mapping[str, Mapping[str, int]]


async def soak(server: RunningServer, options: argparse.Namespace) -> tuple[Counts, list[Sample], list[str]]:
    """Load the server for the time asked; return counts, samples, and in words what does not add up."""
    client = SoakClient(
        random.Random(options.seed), options.isl, options.osl, options.concurrency, options.abort_fraction
    )
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(lambda: client, str(server.direct_socket))
    before = await asyncio.to_thread(get_json, server.url, "/server_info", timeout_s=30.0)
    await asyncio.to_thread(server.truth)
    pids = {**server.view().processes, CLIENT: os.getpid()}
    samples: list[Sample] = []
    start = time.monotonic()
    client.begin()
    told = asked = start
    while (now := time.monotonic()) < start + 60 * options.minutes and server.alive() and not client.drained.is_set():
        usage = {role: usage_of(pid) for role, pid in pids.items()}
        if now - asked > IN_USE_EVERY_S:
            asked = now
            info = await asyncio.to_thread(get_json, server.url, "/server_info", timeout_s=30.0)
            for process in info["processes"]:
                usage[process["role"]] |= process.get("memory", {})
        samples.append(Sample(now - start, usage))
        client.counts.perf_records += len(await asyncio.to_thread(server.truth))
        if now - told > 30:
            told = now
            done = client.counts
            print(
                f"{(now - start) / 60:5.1f} min: {done.completed} completed, {done.cancelled} cancelled, "
                f"{done.tokens} tokens, {len(done.wrong)} wrong",
                file=sys.stderr,
            )
        await asyncio.sleep(max(0.0, now + SAMPLE_S - time.monotonic()))
    client.drain()
    doubts: list[str] = []
    try:
        await asyncio.wait_for(client.drained.wait(), DRAIN_S)
    except TimeoutError:
        doubts.append(f"{client.in_flight} requests did not end within {DRAIN_S:g} s")
    counts = client.counts
    counts.perf_records += len(await asyncio.to_thread(server.truth))
    after = await asyncio.to_thread(get_json, server.url, "/server_info", timeout_s=30.0)
    transport.close()
    answered = {name: after["answered"][name] - before["answered"][name] for name in after["answered"]}
    for what, ours, theirs in (
        ("requests sent", counts.sent, after["submit"]["requests"] - before["submit"]["requests"]),
        ("requests ended", counts.ended, answered["requests"]),
        ("tokens", counts.tokens, answered["output_tokens"]),
        ("free KV blocks", after["kv_blocks"]["total"], after["kv_blocks"]["free"]),
        ("requests in flight", 0, after["in_flight"]),
    ):
        if ours != theirs:
            doubts.append(f"{what}: {ours} here, {theirs} at the server")
    if not counts.completed <= counts.perf_records <= counts.ended:
        doubts.append(f"/perf_metrics had {counts.perf_records} records of {counts.ended} requests")
    return counts, samples, doubts + counts.wrong


def table(samples: Sequence[Sample], warmup_s: float) -> tuple[list[str], list[str]]:
    """Return the lines of the growth table, and who grows."""
    kept = [sample for sample in samples if sample.t_s >= warmup_s]
    if len(kept) < 6 * SEGMENTS:
        return [f"only {len(kept)} samples after the warm-up: no growth can be told"], ["too few samples"]
    lines = [
        f"{'process':<14}{'':<11}{'after warm-up':>14}{'at the end':>12}   growth per hour (95 % interval)   last half"
    ]
    growing: list[str] = []
    for role in kept[0].usage:
        found = {kind: _growth_of(kept, role, kind) for kind in GROWS}
        known = {kind: one for kind, one in found.items() if one is not None}
        in_use = [known[kind][0].grows for kind in IN_USE if kind in known]
        for kind, (whole, half) in known.items():
            more = whole.grows and role != CLIENT
            spared = kind == "rss" and bool(in_use) and not any(in_use)
            slope = f"{whole.per_hour:+.1f} ({whole.low:+.1f} to {whole.high:+.1f})"
            verdict = "" if not more else "  (nothing in use grows)" if spared else "  GROWS"
            lines.append(
                f"{role:<14}{SHOWN.get(kind, kind):<11}{whole.first:>14.1f}{whole.last:>12.1f}   {slope:<32}"
                f"{half.per_hour:+.1f}{verdict}"
            )
            if more and not spared:
                growing.append(f"{role} grows in {kind}")
    return lines, growing


def _growth_of(samples: Sequence[Sample], role: str, kind: str) -> tuple[Growth, Growth] | None:
    """Give the growth over the whole and over the later half; None where it was hardly ever sampled."""
    rows = [(sample.t_s, sample.usage[role][kind] / UNIT[kind]) for sample in samples if kind in sample.usage[role]]
    if len(rows) < 2 * SEGMENTS:
        return None
    times, values = zip(*rows, strict=True)
    later = len(rows) // 2
    limit = GROWS[kind] / UNIT[kind]
    return growth(times, values, limit), growth(times[later:], values[later:], limit)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=positive, default=30.0)
    parser.add_argument("--warmup-minutes", type=positive, help="left out of the growth (a quarter, at most 5)")
    parser.add_argument("--concurrency", type=int, default=2048)
    parser.add_argument("--isl", type=int, default=1024)
    parser.add_argument("--osl", type=int, default=64, help="mean; lengths are uniform from 1 to twice that")
    parser.add_argument("--abort-fraction", type=fraction, default=0.1)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=Path, metavar="FILE", help="also write the samples, one JSON line each")
    return parser.parse_args()


def main() -> int:
    options = parse()
    warmup_s = 60 * (options.warmup_minutes or min(5.0, options.minutes / 4))
    with reference_stack(options.settings, "soak-") as (server, _, _):
        counts, samples, doubts = asyncio.run(soak(server, options))
    if options.samples:
        rows = [json.dumps({"t_s": sample.t_s, **sample.usage}) for sample in samples]
        options.samples.write_text("\n".join(rows) + "\n")
    lines, growing = table(samples, warmup_s)
    print("\n".join(lines))
    print(
        f"{counts.sent} requests: {counts.completed} completed, {counts.cancelled} cancelled; {counts.tokens} tokens; "
        f"{counts.perf_records} records in /perf_metrics"
    )
    for line in [*growing, *doubts[:20]]:
        print(f"WRONG: {line}")
    if not doubts:
        print("no token was lost, doubled or altered: every count is the server's")
    return 1 if growing or doubts else 0


if __name__ == "__main__":
    end_with(main)
