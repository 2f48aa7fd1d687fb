"""The published claims about host overhead that can be tried here, one row each: published, measured, verdict.

    PYTHONPATH=. python benchmarks/claims.py [--only ID,ID] [--repeats 3] [--json]

Small ones time the operation itself, both forms in turn; the others run `loadgen sweep` on the reference stack, both
settings in every block. Ratios are better over worse as the claim states it; `low` and `high` are the 95 % interval of
the mean log ratio over the repeats (their span below three). `reproduced`: the interval lies above 1 and reaches the
published ratio; `direction only`: it lies above 1; else `not reproduced`. Nothing is tuned until a ratio fits.
"""

import argparse
import copy
import functools
import json
import math
import pickle
import queue
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from common import run_sweep

from analysis.claims import BATCH_MAX, judge
from analysis.compare import ratio_interval
from harness.reference.engine.intake import LocalIntake, Queued
from harness.reference.engine.request import EngineRequest
from harness.reference.ranks.group import Broadcast, RankGroup
from harness.reference.ranks.router import RankLoad
from harness.reference.settings import ReferenceSettings
from harness.reference.types import SamplingParams

LONG = 40_000


@dataclass(frozen=True, slots=True)
class Measured:
    """Paired ratios, and what was measured in words."""

    ratios: Sequence[float]
    why: str


@dataclass(frozen=True, slots=True)
class Claim:
    """`published` is the ratio as the claim states it; None where only a direction or a shape was published."""

    id: str
    claim: str
    condition: str
    published: float | None
    measure: Callable[[int], Measured]


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    claim: str
    condition: str
    published: float | None
    measured: float
    low: float
    high: float
    verdict: str
    why: str


# operations


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _paired(slow: Callable[[], object], fast: Callable[[], object], repeats: int, inner: int) -> list[float]:
    """Time both in turn, `inner` times each per repeat; return slow over fast of the medians."""
    ratios = []
    for _ in range(max(repeats, 3)):
        pairs = [(_timed(slow), _timed(fast)) for _ in range(inner)]
        ratios.append(statistics.median(pair[0] for pair in pairs) / statistics.median(pair[1] for pair in pairs))
    return ratios


def _ids(count: int) -> list[int]:
    return [256 + (n * 7919) % 31_000 for n in range(count)]


def enqueue_copy(repeats: int) -> Measured:
    ids = _ids(39_000)
    ratios = _paired(lambda: copy.deepcopy(ids), lambda: list(ids), repeats, 15)
    return Measured(ratios, "deepcopy over list() of one prompt's token ids")


def _engine_request(packed: bool, tokens: int = LONG) -> EngineRequest:
    ids = _ids(tokens)
    prompt = (
        EngineRequest(0, ids, SamplingParams(), streaming=True, arrival_time=0.0).prompt.tobytes() if packed else ids
    )
    return EngineRequest(0, prompt, SamplingParams(), streaming=True, arrival_time=0.0)


def token_ids_pickle(repeats: int) -> Measured:
    listed, packed = _engine_request(packed=False), _engine_request(packed=True)

    def there_and_back(request: EngineRequest) -> object:
        return pickle.loads(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))

    ratios = _paired(lambda: there_and_back(listed), lambda: there_and_back(packed), repeats, 25)
    return Measured(ratios, "pickle and unpickle of the engine's request, token by token over int32 bytes")


@dataclass(frozen=True, slots=True)
class _Turn:
    """CPU time of rank 0's loop thread in s: taking a turn's new requests, and of that the broadcast alone."""

    take: float
    broadcast: float


def _turn(tokens: int, requests: int, ranks: int, *, packed: bool, turns: int, **settings: str) -> _Turn:
    """Give rank 0 `requests` new requests a turn, with real rank processes; return the medians over the turns.

    CPU time, not wall: with more ranks than cores the wall shows the ranks' own unpickling, which elsewhere has cores.
    """
    items: queue.Queue[Any] = queue.Queue()
    group = RankGroup(ReferenceSettings(ranks=ranks, **settings), LocalIntake(items))  # type: ignore[arg-type]
    take: list[float] = []
    broadcast: list[float] = []
    send = group._broadcast  # noqa: SLF001 - the part that the claim is about

    def timed_broadcast(message: Broadcast) -> Broadcast:
        began = time.thread_time()
        result = send(message)
        broadcast.append(time.thread_time() - began)
        return result

    group._broadcast = timed_broadcast  # type: ignore[method-assign]  # noqa: SLF001
    group.start()
    try:
        for turn in range(turns):
            for n in range(requests):
                items.put(Queued(turn * requests + n + 1, _engine_request(packed, tokens)))
            began = time.thread_time()
            group.take(lambda: RankLoad(0, 0), block=False)
            take.append(time.thread_time() - began)
            group.exchange([])
            group._outstanding.clear()  # noqa: SLF001 - nobody answers here
    finally:
        group.stop()
    return _Turn(statistics.median(take), statistics.median(broadcast))


def broadcast(repeats: int) -> Measured:
    """Measure in the original's state of then, in which rank 0 read its own bytes back, and in the later one too."""

    def ratios(root_unpickle: str) -> list[float]:
        def loop_s(*, packed: bool) -> float:
            return _turn(LONG, 45, 8, packed=packed, turns=3, root_unpickle=root_unpickle).broadcast

        return [loop_s(packed=False) / loop_s(packed=True) for _ in range(max(repeats, 3))]

    return Measured(
        ratios("on"),
        "the loop's CPU time in one turn's broadcast of 45 requests to 8 ranks, list over int32, rank 0 reading "
        f"its own bytes back; without that {_geometric(ratios('off')):.1f}",
    )


def root_unpickle(repeats: int) -> Measured:
    both = {"root_unpickle": "on", "double_getter": "on"}
    ratios = [
        _turn(LONG, 10, 4, packed=False, turns=4, **both).take / _turn(LONG, 10, 4, packed=False, turns=4).take
        for _ in range(max(repeats, 3))
    ]
    return Measured(ratios, "the loop's CPU time in the intake of 10 requests a turn, 4 ranks, both on over both off")


# sweeps


def _sweep(*words: str, repeats: int) -> list[dict[str, Any]]:
    """Run a sweep and return its cells as `loadgen show --json` gives them."""
    cells: list[dict[str, Any]] = run_sweep(*words, "--repeats", str(repeats))["cells"]
    return cells


def _value(cell: dict[str, Any], name: str) -> float:
    value: Any = cell["metrics"]
    for part in name.split("."):
        value = value and value[part]
    if value is None:
        raise SystemExit(f"cell {cell['id']} has no {name}: {cell['error'] or 'see loadgen doctor'}")
    return float(value)


def _block_ratios(
    cells: list[dict[str, Any]], knob: str, over: str, under: str, metric: str, concurrency: int
) -> list[float]:
    """Return, block by block, the metric at `knob`=`over` over that at `under`."""
    found: dict[tuple[int, str], float] = {
        (cell["block"], cell["knobs"][knob]): _value(cell, metric)
        for cell in cells
        if cell["concurrency"] == concurrency
    }
    blocks = sorted({block for block, _ in found})
    return [found[block, over] / found[block, under] for block in blocks]


def _spread_over(cells: list[dict[str, Any]], over: str, under: str, concurrency: int) -> str:
    """Write the ratios of the measures that batched submit was published with."""
    parts = []
    for metric in ("gil_wait_ms_per_step.mean", "gil_probe_ms.mean", "ttft_ms.p50", "ttft_ms.p99", "output_tok_s"):
        ratios = _block_ratios(cells, BATCH_MAX, over, under, metric, concurrency)
        parts.append(f"{metric} {_geometric(ratios):.2f}")
    return ", ".join(parts)


@functools.cache
def _batch_sweep(repeats: int) -> list[dict[str, Any]]:
    return _sweep(
        "--concurrency", "400,2048", "--set", f"{BATCH_MAX}=1,8,16,32,64", "--duration", "10", "--isl", "1024",
        repeats=repeats,
    )  # fmt: skip


def _batched(concurrency: int, repeats: int) -> Measured:
    cells = _batch_sweep(repeats)
    ratios = _block_ratios(cells, BATCH_MAX, "1", "32", "gil_wait_ms_per_step.mean", concurrency)
    sizes = "; ".join(f"{size}: {_spread_over(cells, '1', size, concurrency)}" for size in ("8", "16", "32", "64"))
    return Measured(ratios, f"executor loop's GIL wait a step, MAX 1 over 32. All measures, MAX 1 over {sizes}")


def batched_submit_c400(repeats: int) -> Measured:
    return _batched(400, repeats)


def batched_submit_c2048(repeats: int) -> Measured:
    return _batched(2048, repeats)


def in_process_submit(repeats: int) -> Measured:
    knob = "REFSTACK_SUBMIT"
    cells = _sweep(
        "--concurrency", "1024", "--set", f"{knob}=rpc,in-process", "--set", "REFSTACK_LAYOUT=thread", "--duration",
        "10",        "--isl", "1024", repeats=repeats,
    )  # fmt: skip
    ratios = _block_ratios(cells, knob, "rpc", "in-process", "ttft_ms.p50", 1024)
    rate = _geometric(_block_ratios(cells, knob, "in-process", "rpc", "output_tok_s", 1024))
    return Measured(ratios, f"TTFT p50, rpc over in-process, layout thread; throughput in-process over rpc {rate:.2f}")


def front_end_saturation(repeats: int) -> Measured:
    """Compare server-side queueing before the engine at c2048 with c512; published 1520 against 54 ms."""
    cells = _sweep(
        "--drive", "http", "--concurrency", "512,1024,2048", "--set", f"{BATCH_MAX}=1", "--isl", "1024", "--osl", "256",
        "--set", "REFSTACK_STREAM_INTERVAL=20", "--set", "REFSTACK_HOST_WORK=lean", "--set",
        "REFSTACK_DEVICE_BASE_MS=20", "--duration", "15", repeats=repeats,
    )  # fmt: skip
    by: dict[tuple[int, int], float] = {
        (cell["block"], cell["concurrency"]): _value(cell, "ttft_ms.p50") for cell in cells
    }
    steps = [_value(cell, "host_step_ms.mean") for cell in cells]
    blocks = sorted({block for block, _ in by})
    ratios = [by[block, 2048] / by[block, 512] for block in blocks]
    shape = " / ".join(f"{statistics.mean(by[b, c] for b in blocks):.0f}" for c in (512, 1024, 2048))
    return Measured(
        ratios, f"TTFT p50 c2048 over c512 ({shape} ms at c512/1024/2048); step {min(steps):.0f}-{max(steps):.0f} ms"
    )


def large_bodies(repeats: int) -> Measured:
    """Client against engine output speed when bodies are large; published 21 against 25 tok/s/user."""
    cells = _sweep(
        "--drive", "http", "--concurrency", "256", "--set", f"{BATCH_MAX}=1", "--isl", "100000", "--osl", "64",
        "--set", "REFSTACK_MAX_SEQ_LEN=200000", "--set", "REFSTACK_DEVICE_BASE_MS=40", "--duration", "15",
        repeats=repeats,
    )  # fmt: skip
    ratios = [
        1000.0 / _value(cell, "host_step_ms.mean") / _value(cell, "output_speed_tok_s_user.p50") for cell in cells
    ]
    return Measured(
        ratios, "engine steps/s over the client's output tokens/s per user, p50, prompts of 100k ids as JSON"
    )


def gc_pauses(repeats: int) -> Measured:
    knob = "REFSTACK_GC"
    cells = _sweep(
        "--concurrency", "1024", "--set", f"{knob}=default,threshold,off", "--duration", "10", "--isl", "1024",
        repeats=repeats,
    )  # fmt: skip
    ratios = _block_ratios(cells, knob, "default", "off", "host_step_ms.p99", 1024)
    threshold = _geometric(_block_ratios(cells, knob, "default", "threshold", "host_step_ms.p99", 1024))
    return Measured(ratios, f"step p99, collector default over off; over threshold 20000: {threshold:.2f}")


def stream_interval(repeats: int) -> Measured:
    knob = "REFSTACK_STREAM_INTERVAL"
    cells = _sweep(
        "--concurrency", "2048", "--set", f"{knob}=1,20", "--duration", "10", "--isl", "1024", repeats=repeats
    )
    ratios = _block_ratios(cells, knob, "1", "20", "host_step_ms.mean", 2048)
    return Measured(ratios, "executor-loop step, interval 1 over 20")


CLAIMS = (
    Claim("enqueue_copy", "shallow copy instead of deepcopy (#14889)", "39k ids", 4.6 / 0.07, enqueue_copy),
    Claim("token_ids_pickle", "int32 bytes instead of a list (#15134)", "40k ids", 1.21 / 0.06, token_ids_pickle),
    Claim("broadcast", "broadcast of many requests, int32 (#15134)", "45 x 40k ids, 8 ranks", 54.6 / 6.6, broadcast),
    Claim(
        "root_unpickle",
        "no root self-unpickle, one getter (#15133)",
        "10 x 40k ids, 4 ranks",
        123.5 / 105,
        root_unpickle,
    ),
    Claim("batched_submit_c400", "batched submit (#15109): mild at c400", "ISL 1k", None, batched_submit_c400),
    Claim("batched_submit_c2048", "batched submit (#15109): severe at c2048", "ISL 1k", None, batched_submit_c2048),
    Claim("in_process_submit", "in-process submit (#15114)", "layout thread, c1024, ISL 1k", None, in_process_submit),
    Claim(
        "front_end_saturation", "one HTTP loop saturates (#16413)", "c512/1024/2048", 1520 / 54, front_end_saturation
    ),
    Claim("large_bodies", "client slower than engine (#15690)", "c256, 100k ids", 25 / 21, large_bodies),
    Claim("gc_pauses", "collector pauses in the loop (#14218)", "c1024", None, gc_pauses),
    Claim("stream_interval", "stream interval relieves the loop (#5284)", "c2048", None, stream_interval),
)


def _geometric(ratios: Sequence[float]) -> float:
    return math.exp(statistics.mean(math.log(ratio) for ratio in ratios))


def row_of(claim: Claim, measured: Measured) -> Row:
    """Hold the measured ratios against the published one; the span stands in for the interval where there is none."""
    _, low, high = ratio_interval(measured.ratios)
    verdict = judge(claim.published, low, high)
    low, high = (min(measured.ratios), max(measured.ratios)) if low is None or high is None else (low, high)
    middle = _geometric(measured.ratios)
    return Row(claim.id, claim.claim, claim.condition, claim.published, middle, low, high, verdict, measured.why)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="ID,ID")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = [word for word in options.only.split(",") if word]
    unknown = set(wanted) - {claim.id for claim in CLAIMS}
    if unknown:
        print(
            f"error: no claim {', '.join(sorted(unknown))}; there are: {', '.join(c.id for c in CLAIMS)}",
            file=sys.stderr,
        )
        return 2
    rows = []
    for claim in CLAIMS:
        if wanted and claim.id not in wanted:
            continue
        row = row_of(claim, claim.measure(options.repeats))
        rows.append(row)
        if not options.json:
            published = "-" if row.published is None else f"{row.published:.2f}"
            measured = f"{row.measured:.2f} ({row.low:.2f}-{row.high:.2f})"
            print(f"{row.id:<22} published {published:>6}  measured {measured}  {row.verdict}")
            print(f"{'':<22} {row.claim}; {row.condition}; {row.why}", flush=True)
    if options.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
