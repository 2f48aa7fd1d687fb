"""Where a lever pays: batched submit, int32 ids and in-process submit over device time, prompt length, rate and users.

    PYTHONPATH=. python benchmarks/regimes.py [--repeats 3] [--duration 8] [--only NAME,NAME] [--json]

Each regime is two sweeps of the reference stack, one lever at a time against the regime's own baseline, paired within
blocks: batched submit and int32 ids in layout `pool` (rank 0 in a process of its own), in-process submit in layout
`thread` (the only one that has it). Printed: what the report says limits the baseline, and each lever's effect on the
step, on TTFT and on throughput, as ratios other over baseline with 95 % intervals (`.` where the interval holds 1).
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from common import run_sweep

BATCH, IDS, SUBMIT = "TLLM_RPC_SUBMIT_BATCH_MAX", "REFSTACK_TOKEN_IDS", "REFSTACK_SUBMIT"
MEASURES = ("host_step_ms.mean", "gil_wait_ms_per_step.mean", "ttft_ms.p50", "ttft_ms.p99", "output_tok_s")


@dataclass(frozen=True, slots=True)
class Regime:
    """One point of the grid: users, lengths, and the words that make the load and the stack what they are."""

    name: str
    what: str
    users: int
    isl: int
    osl: int
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One lever's effect on one measure in one regime; `low` and `high` None with fewer than three blocks."""

    regime: str
    lever: str
    measure: str
    ratio: float | None
    low: float | None
    high: float | None


def _set(**values: object) -> tuple[str, ...]:
    return tuple(word for name, value in values.items() for word in ("--set", f"REFSTACK_{name}={value}"))


DEVICE_BOUND = _set(DEVICE_BASE_MS=60, HOST_WORK="lean")
HTTP = ("--drive", "http", *_set(DEVICE_BASE_MS=20, HOST_WORK="lean", STREAM_INTERVAL=20))
REGIMES = (
    Regime("host c400", "host-bound: device 5 ms, faithful host work", 400, 1024, 64),
    Regime("host c2048", "the same at c2048", 2048, 1024, 64),
    Regime("host c2048 isl4096", "the same with longer prompts", 2048, 4096, 64),
    Regime("balanced c1024", "device 30 ms: about what the host needs", 1024, 1024, 64, _set(DEVICE_BASE_MS=30)),
    Regime("device c400", "device 60 ms, lean host work", 400, 1024, 64, DEVICE_BOUND),
    Regime("device c2048", "the same at c2048", 2048, 1024, 64, DEVICE_BOUND),
    Regime("front end c1024", "HTTP and short outputs: one front end is the limit", 1024, 1024, 16, HTTP),
    Regime(  # a request takes 11 s: only after that are as many in flight as will be
        "40k prompts 6/s", "long prompts at the low rate of long outputs, device 20 ms", 256, 40_000, 512,
        ("--arrival", "poisson", "--rate", "6", "--warmup", "20", "--duration", "60", *_set(DEVICE_BASE_MS=20)),
    ),
    Regime("40k prompts c128", "long prompts in closed loop, device 5 ms", 128, 40_000, 64),
    Regime(
        "1k prompts 300/s", "short prompts in open loop, device 5 ms", 1024, 1024, 32,
        ("--arrival", "poisson", "--rate", "300"),
    ),
)  # fmt: skip


def _sweep(regime: Regime, settings: Sequence[str], repeats: int, duration: float) -> dict[str, Any]:
    """Run one sweep and return what `loadgen show --json` says of it."""
    return run_sweep(
        "--one-at-a-time", "--concurrency", str(regime.users), "--isl", str(regime.isl), "--osl", str(regime.osl),
        "--duration", str(duration), "--repeats", str(repeats), *regime.words,
        *(word for setting in settings for word in ("--set", setting)),
    )  # fmt: skip


def _findings(regime: Regime, document: dict[str, Any]) -> list[Finding]:
    found = []
    for effect in document["comparisons"]:
        if effect["metric"] not in MEASURES:
            continue
        turned = [f"{name}={value}" for name, value in effect["knobs"].items() if document["baseline"][name] != value]
        low, high = effect["interval"] or (None, None)
        found.append(Finding(regime.name, " ".join(turned), effect["metric"], effect["ratio"], low, high))
    return found


def _limits(document: dict[str, Any]) -> str:
    """Say what limited the baseline's cells, by the report's own rules, and over how many."""
    cells = [cell for cell in document["cells"] if cell["knobs"] == document["baseline"] and cell["limit"]]
    return ", ".join(f"{name} ({n})" for name, n in Counter(cell["limit"]["name"] for cell in cells).most_common())


def _steps(document: dict[str, Any]) -> str:
    """Write the baseline's mean step and request rate."""
    cells = [cell["metrics"] for cell in document["cells"] if cell["knobs"] == document["baseline"]]
    steps = [cell["host_step_ms"]["mean"] for cell in cells if cell["host_step_ms"]]
    rates = [cell["req_s"] for cell in cells if cell["req_s"]]
    if not steps or not rates:
        return "no steps in the log"
    return f"step {sum(steps) / len(steps):.1f} ms, {sum(rates) / len(rates):.0f} requests/s; cores: {_cores(document)}"


def _cores(document: dict[str, Any]) -> str:
    """Write how many cores each part burned in the baseline's cells, mean."""
    cells = [cell["cores"] for cell in document["cells"] if cell["knobs"] == document["baseline"]]
    parts = []
    for name in ("engine", "executor", "front_end", "load"):
        known = [cell[name] for cell in cells if cell[name] is not None]
        if known:
            parts.append(f"{name} {sum(known) / len(known):.2f}")
    return ", ".join(parts)


def _print(found: Sequence[Finding]) -> None:
    for lever in dict.fromkeys(finding.lever for finding in found):
        parts = []
        for finding in found:
            if finding.lever != lever or finding.ratio is None:
                continue
            span = "" if finding.low is None else f" ({finding.low:.2f}-{finding.high:.2f})"
            clear = finding.low is not None and finding.high is not None and not finding.low <= 1 <= finding.high
            parts.append(f"{finding.measure} {finding.ratio:.2f}{span}{'' if clear else ' .'}")
        print(f"    {lever}: {'; '.join(parts)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--duration", type=float, default=8.0, help="steady window of a cell, s")
    parser.add_argument("--only", default="", metavar="NAME,NAME")
    parser.add_argument("--json", action="store_true", help="the findings as one list, instead of text")
    options = parser.parse_args()
    wanted = [word for word in options.only.split(",") if word]
    if unknown := set(wanted) - {regime.name for regime in REGIMES}:
        names = ", ".join(regime.name for regime in REGIMES)
        print(f"error: no regime {', '.join(sorted(unknown))}; there are: {names}", file=sys.stderr)
        return 2
    everything: list[Finding] = []
    for regime in REGIMES:
        if wanted and regime.name not in wanted:
            continue
        pool = _sweep(regime, (f"{BATCH}=1,32", f"{IDS}=list,int32"), options.repeats, options.duration)
        thread = _sweep(
            regime, (f"{SUBMIT}=rpc,in-process", "REFSTACK_LAYOUT=thread"), options.repeats, options.duration
        )
        everything += (found := [*_findings(regime, pool), *_findings(regime, thread)])
        if not options.json:
            print(f"{regime.name}: {regime.what}; c{regime.users}, ISL {regime.isl}, OSL {regime.osl}")
            print(
                f"    limited by: {_limits(pool)}; {_steps(pool)}; layout thread: {_limits(thread)}; {_steps(thread)}"
            )
            _print(found)
    if options.json:
        json.dump([asdict(finding) for finding in everything], sys.stdout, indent=1)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
