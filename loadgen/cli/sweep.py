"""`loadgen sweep`: launch the stack over knob values and concurrencies, load it, watch it, compare."""

import argparse
from datetime import datetime
from functools import partial
from pathlib import Path

from contracts.errors import UsageError
from contracts.folder import SweepFolder
from harness import sweep as sweeps
from harness.plan import FACTORIAL, ONE_AT_A_TIME, Plan
from harness.stacks.reference import ReferenceStack
from loadgen.cli import parsing
from loadgen.cli.conclude import carry_out
from loadgen.cli.load_options import add_load_options, load_plan
from loadgen.cli.presets import PRESETS, with_preset
from loadgen.cli.trust import recall

KNOB = "TLLM_RPC_SUBMIT_BATCH_MAX"
DEFAULT_FACTORS = {KNOB: ["1", "8", "16", "32", "64"]}
DEFAULT_CONCURRENCY = [400, 2048]
STACKS = {"reference": ReferenceStack}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "sweep",
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
    parser.add_argument(
        "--repeats", type=parsing.count, metavar="N", default=3, help="blocks; below 3 no verdict (%(default)s)"
    )
    parser.add_argument(
        "--one-at-a-time", action="store_true",
        help="the baseline, and each other value alone, instead of every combination of values",
    )  # fmt: skip
    add_load_options(parser)
    parser.add_argument(
        "--preset", choices=sorted(PRESETS),
        help="a sweep by name; other options win. claims: the published levers, one at a time from the original's "
        "state, at c400 and c2048",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help=f"{KNOB}=1,32 in short windows: some four minutes")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="DIR", help="a new folder (default: results/TIME)")
    where.add_argument("--resume", type=Path, metavar="DIR", help="run what is not done of the sweep in DIR")
    parser.set_defaults(run=partial(run, parser))


def plan_from(options: argparse.Namespace) -> Plan:
    """Turn the options into a plan, with --quick's shorter windows where nothing else was said."""
    quick: bool = options.quick
    concurrency = options.concurrency or DEFAULT_CONCURRENCY
    return Plan(
        stack=options.stack,
        factors=parsing.factors(options.settings) or ({KNOB: ["1", "32"]} if quick else DEFAULT_FACTORS),
        concurrency=concurrency,
        repeats=options.repeats,
        seed=options.seed,
        load=load_plan(
            options,
            options.drive or STACKS[options.stack].drives[0],
            concurrency,
            duration_s=8.0 if quick else 20.0,
            warmup_s=2.0 if quick else 4.0,
        ),
        observe=not options.no_observe,
        quick=quick,
        slo=options.slo,
        design=ONE_AT_A_TIME if options.one_at_a_time else FACTORIAL,
    )


def default_folder() -> Path:
    return Path("results") / datetime.now().strftime("%Y%m%d-%H%M%S")  # noqa: DTZ005 - the user's own time


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the sweep; print the verdict on stdout and the report's path last."""
    argv = options.argv
    if options.preset is not None and options.resume is None:
        options = parser.parse_args(with_preset(options.preset, argv[2:], options.settings))
    if options.resume is not None:
        folder = SweepFolder(options.resume)
        plan, cells = sweeps.reopen(folder)
        if plan.stack not in STACKS:
            raise UsageError(f"{folder.json} is of the stack {plan.stack!r}, which cannot be launched again from here")
        stack = STACKS[plan.stack]()
        sweeps.check_plan(plan, stack)
    else:
        plan = plan_from(options)
        stack = STACKS[plan.stack]()
        sweeps.check_plan(plan, stack)
        folder = SweepFolder(options.out or default_folder())
        cells = sweeps.begin(folder, plan, argv, client_trust=recall())
    return carry_out(folder, plan, cells, stack)
