"""The load's options, shared by `sweep` and `run`, and the plan they make."""

import argparse

from contracts.errors import UsageError
from harness.plan import LoadPlan
from loadgen.cli import parsing
from loadgen.cli.workload_options import add_workload_options, think_s, workload_spec

RAMP_USERS_PER_S = 700
MIN_RAMP_S = 0.2


def add_load_options(parser: argparse.ArgumentParser) -> None:
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--duration", type=parsing.positive, metavar="S", help="steady window, s (default: 20)")
    length.add_argument("--requests", type=parsing.count, metavar="N", help="end the window after so many requests")
    parser.add_argument("--warmup", type=parsing.not_negative, metavar="S", help="least warm-up, s (default: 4)")
    parser.add_argument("--drain", type=parsing.positive, metavar="S", default=60.0, help="time to end what runs (60)")
    add_workload_options(parser)
    parser.add_argument(
        "--endpoint",
        choices=["completions", "chat", "responses"],
        default="completions",
        help="over HTTP (%(default)s)",
    )
    parser.add_argument(
        "--arrival",
        choices=["closed", "constant", "poisson", "gamma", "trace"],
        default="closed",
        help="closed loop, or an open loop: by a seeded schedule at --rate, or at a --trace's own times (%(default)s)",
    )
    parser.add_argument("--rate", type=parsing.positive, metavar="R", help="requests/s of an open loop")
    parser.add_argument("--burstiness", type=parsing.positive, metavar="B", default=1.0, help="of --arrival gamma (1)")
    parser.add_argument("--think", type=parsing.not_negative, metavar="S", help="pause between a user's requests (0)")
    parser.add_argument(
        "--abort-fraction", type=parsing.fraction, metavar="F", default=0.0, help="share of requests that are cut (0)"
    )
    parser.add_argument("--abort-after", type=parsing.count, metavar="N", default=8, help="chunks before a cut (8)")
    parser.add_argument(
        "--give-up", type=parsing.not_negative, metavar="S", default=10.0,
        help="end a cell when every request has failed for so long; 0: never (%(default)g)",
    )  # fmt: skip
    parser.add_argument("--new-connections", action="store_true", help="no keep-alive: a connection a request")
    parser.add_argument("--insecure", action="store_true", help="accept any TLS certificate")
    parser.add_argument(
        "--extra-body", type=parsing.json_object, metavar="JSON", default={}, help="fields added to each request body"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the order and the prompts (%(default)s)")
    parser.add_argument("--workers", type=parsing.count, metavar="N", default=1, help="load processes (%(default)s)")
    parser.add_argument("--slo", type=parsing.objective, metavar="TERMS", help=parsing.SLO_HELP)
    parser.add_argument("--no-observe", action="store_true", help="without py-spy and the host sampler")


def load_plan(
    options: argparse.Namespace, drive: str, concurrency: list[int], *, duration_s: float, warmup_s: float
) -> LoadPlan:
    """Make the load's plan; `duration_s` and `warmup_s` hold where the options say nothing. Raises UsageError."""
    if (options.arrival in ("closed", "trace")) != (options.rate is None):
        raise UsageError("--arrival constant, poisson or gamma goes with --rate R, and closed or trace without")
    workload = workload_spec(options, drive)
    to_the_end = options.requests or workload.trace
    if options.arrival == "trace":
        warmup_s = 0.0
    return LoadPlan(
        drive=drive,
        endpoint=options.endpoint,
        workload=workload,
        duration_s=options.duration or (None if to_the_end else duration_s),
        requests=options.requests,
        warmup_s=warmup_s if options.warmup is None else options.warmup,
        ramp_s=max(MIN_RAMP_S, max(concurrency) / RAMP_USERS_PER_S),
        drain_s=options.drain,
        workers=options.workers,
        arrival=options.arrival,
        rate_rps=options.rate,
        burstiness=options.burstiness,
        think_s=think_s(options),
        abort_fraction=options.abort_fraction,
        abort_after_tokens=options.abort_after,
        give_up_s=options.give_up,
        keep_alive=not options.new_connections,
        tls_verify=not options.insecure,
        extra_body=options.extra_body,
    )
