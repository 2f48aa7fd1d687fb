"""`loadgen sweep`: launch the stack over knob values and concurrencies, load it, watch it, compare."""

import argparse
from datetime import datetime
from pathlib import Path

from rich.console import Console

from analysis.report import write_report
from contracts.errors import UsageError
from contracts.folder import SweepFolder
from contracts.load import WorkloadSpec
from harness import sweep as sweeps
from harness.plan import LoadPlan, Plan
from harness.stacks.reference import ReferenceStack
from loadgen.cli import parsing
from loadgen.cli.progress import SweepProgress
from loadgen.cli.verdict import print_verdict

KNOB = "TLLM_RPC_SUBMIT_BATCH_MAX"
DEFAULT_FACTORS = {KNOB: ["1", "8", "16", "32", "64"]}
DEFAULT_CONCURRENCY = [400, 2048]
STACKS = {"reference": ReferenceStack}
EXIT = {sweeps.DONE: 0, sweeps.FAILED: 1, sweeps.INTERRUPTED: 130}
RAMP_USERS_PER_S = 700
MIN_RAMP_S = 0.2


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "sweep",
        help="measure knob values against each other over concurrencies and repeats",
        description=__doc__,
        epilog="example: loadgen sweep --concurrency 400,2048 --set TLLM_RPC_SUBMIT_BATCH_MAX=1,32 --repeats 5",
    )
    parser.add_argument("--stack", choices=sorted(STACKS), default="reference", help="what to launch (%(default)s)")
    parser.add_argument(
        "--drive", choices=["rpc", "http"], help="rpc: straight into the proxy; http: end to end (default: rpc)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=V1,V2", dest="settings",
        help=f"a knob and its values, the first being the baseline (default: {KNOB}=1,8,16,32,64)",
    )  # fmt: skip
    parser.add_argument(
        "--concurrency", type=parsing.concurrencies, metavar="N,N", help="users in closed loop (default: 400,2048)"
    )
    parser.add_argument("--repeats", type=parsing.count, metavar="N", help="blocks; below 3 no verdict (default: 3)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--duration", type=parsing.positive, metavar="S", help="steady window, s (default: 20)")
    length.add_argument("--requests", type=parsing.count, metavar="N", help="end the window after so many requests")
    parser.add_argument("--warmup", type=parsing.not_negative, metavar="S", help="least warm-up, s (default: 4)")
    parser.add_argument("--drain", type=parsing.positive, metavar="S", default=60.0, help="time to end what runs (60)")
    parser.add_argument("--isl", type=parsing.count, metavar="N", help="prompt tokens, mean (default: 4096)")
    parser.add_argument("--osl", type=parsing.count, metavar="N", help="output tokens, mean (default: 64)")
    parser.add_argument(
        "--spread", type=parsing.fraction, metavar="F", default=0.1, help="lengths are uniform within +-F (0.1)"
    )
    parser.add_argument(
        "--endpoint", choices=["completions", "chat"], default="completions", help="for --drive http (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the order and the prompts (%(default)s)")
    parser.add_argument("--workers", type=parsing.count, metavar="N", default=1, help="load processes (%(default)s)")
    parser.add_argument("--no-observe", action="store_true", help="without py-spy and the host sampler")
    parser.add_argument("--quick", action="store_true", help=f"{KNOB}=1,32 in short windows: some four minutes")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="DIR", help="a new folder (default: results/TIME)")
    where.add_argument("--resume", type=Path, metavar="DIR", help="run what is not done of the sweep in DIR")
    parser.set_defaults(run=run)


def plan_from(options: argparse.Namespace) -> Plan:
    """Turn the options into a plan, with --quick's shorter windows where nothing else was said."""
    quick: bool = options.quick
    factors = parsing.factors(options.settings) or ({KNOB: ["1", "32"]} if quick else DEFAULT_FACTORS)
    concurrency = options.concurrency or DEFAULT_CONCURRENCY
    duration = options.duration or (None if options.requests else (8.0 if quick else 20.0))
    warmup = options.warmup if options.warmup is not None else (2.0 if quick else 4.0)
    load = LoadPlan(
        drive=options.drive or STACKS[options.stack].drives[0],
        endpoint=options.endpoint,
        workload=WorkloadSpec(
            isl=options.isl or 4096,
            osl=options.osl or 64,
            isl_spread=options.spread,
            osl_spread=options.spread,
            seed=options.seed,
        ),
        duration_s=duration,
        requests=options.requests,
        warmup_s=warmup,
        ramp_s=max(MIN_RAMP_S, max(concurrency) / RAMP_USERS_PER_S),
        drain_s=options.drain,
        workers=options.workers,
    )
    return Plan(
        stack=options.stack,
        factors=factors,
        concurrency=concurrency,
        repeats=options.repeats or 3,
        seed=options.seed,
        load=load,
        observe=not options.no_observe,
        quick=quick,
    )


def run(options: argparse.Namespace) -> int:
    """Run the sweep; print the verdict on stdout and the report's path last."""
    if options.resume is not None:
        folder = SweepFolder(options.resume)
        plan, cells = sweeps.reopen(folder)
        if plan.stack not in STACKS:
            raise UsageError(f"{folder.json} is of the stack {plan.stack!r}, which this release does not know")
        stack = STACKS[plan.stack]()
        sweeps.check_plan(plan, stack)
    else:
        plan = plan_from(options)
        stack = STACKS[plan.stack]()
        sweeps.check_plan(plan, stack)
        folder = SweepFolder(options.out or Path("results") / datetime.now().strftime("%Y%m%d-%H%M%S"))  # noqa: DTZ005
        cells = sweeps.begin(folder, plan, options.argv)
    console = Console(stderr=True)
    console.print(f"{len(cells)} cells into {folder.path}", highlight=False)
    with SweepProgress(console, len(cells)) as progress:
        outcome = sweeps.run(folder, plan, cells, stack, progress)
    return _conclude(folder, outcome, console)


def _conclude(folder: SweepFolder, outcome: str, console: Console) -> int:
    if folder.cell_folders():
        report = write_report(folder.path)
        print_verdict(folder.path)
        print(f"report: {report}")
    if outcome == sweeps.INTERRUPTED:
        console.print(f"interrupted; go on with: loadgen sweep --resume {folder.path}", highlight=False)
    return EXIT[outcome]
