"""`loadgen run`: load a server that is already running, and watch it if its pids are given."""

import argparse
import ipaddress
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from contracts.errors import UsageError
from contracts.folder import SweepFolder
from contracts.remote import DEFAULT_PORT, SECRET_NAME
from harness import sweep as sweeps
from harness.plan import Plan
from harness.remote import WorkersFrom
from harness.stacks.attach import AttachStack
from harness.stages import stage_factors
from loadgen.cli import parsing
from loadgen.cli.conclude import carry_out
from loadgen.cli.load_options import add_load_options, load_plan
from loadgen.cli.sweep import default_folder
from loadgen.cli.worker import secret_from


def _on_this_machine(url: str) -> bool:
    """Say whether a URL names this machine: a unix socket, localhost or a loopback address."""
    parts = urlsplit(url)
    if parts.scheme == "unix" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "run",
        description=__doc__,
        epilog="example: loadgen run --url http://127.0.0.1:8000 --concurrency 400 --pid $(pgrep -f EngineCore)",
    )
    parser.add_argument("--url", required=True, help="the server's base URL, as in http://127.0.0.1:8000")
    parser.add_argument("--model", help="the model's name (default: the first that /v1/models lists)")
    parser.add_argument(
        "--pid", type=parsing.count, action="append", default=[], metavar="N",
        help="a server process on this machine to watch; the first is the one whose GIL is sampled",
    )  # fmt: skip
    users = parser.add_mutually_exclusive_group()
    users.add_argument("--concurrency", type=parsing.concurrencies, metavar="N,N", default=[400], help="users (400)")
    users.add_argument(
        "--stages", type=parsing.stages, metavar="N:S,...", default=[],
        help="one load through several levels, each a cell: 400:20,1024:20 holds, 400-2048:60 ramps (users:seconds)",
    )  # fmt: skip
    parser.add_argument("--repeats", type=parsing.count, metavar="N", default=1, help="blocks (%(default)s)")
    parser.add_argument("--remote", action="store_true", help="permit a server that is not on this machine")
    add_load_options(parser)
    parser.add_argument(
        "--locustfile", type=Path, metavar="FILE", help="users of your own, subclasses of loadgen.users.LlmUser"
    )
    parser.add_argument(
        "--web-ui", type=parsing.count, nargs="?", const=8089, metavar="PORT",
        help="Locust's page on loopback while the load runs (port 8089); the first load process's figures",
    )  # fmt: skip
    parser.add_argument(
        "--workers-from", type=parsing.count, metavar="N",
        help="wait for so many `loadgen worker`s and put the load on their machines, one process each",
    )  # fmt: skip
    parser.add_argument(
        "--bind", metavar="ADDRESS", default=f"127.0.0.1:{DEFAULT_PORT}",
        help="where workers call, address:port; port 0 takes a free one (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--secret-file", type=Path, metavar="FILE", help=f"the workers' secret (default: {SECRET_NAME})"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="a new folder (default: results/TIME)")
    parser.set_defaults(run=run)


def _workers_from(options: argparse.Namespace) -> WorkersFrom | None:
    """Read where load machines call, and make a secret where none was given. Raises UsageError."""
    if options.workers_from is None:
        return None
    if options.workers > 1:
        raise UsageError("--workers are processes here and --workers-from are elsewhere: give one of them")
    host, colon, port = options.bind.rpartition(":")
    if not colon:
        host, port = options.bind, str(DEFAULT_PORT)
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--bind {options.bind}: expected ADDRESS or ADDRESS:PORT")
    secret = secret_from(options.secret_file)
    if secret is None:
        secret = secrets.token_urlsafe(32)
        print(f"the workers' secret, made for this run: {SECRET_NAME}={secret}", file=sys.stderr, flush=True)
    return WorkersFrom(options.workers_from, host, int(port), secret)


def run(options: argparse.Namespace) -> int:
    """Run one cell per concurrency and repeat; print its figures and the report's path."""
    if not options.remote and not _on_this_machine(options.url):
        raise UsageError(f"{options.url} is not on this machine: add --remote if it is yours to load")
    stack = AttachStack(options.url, endpoint=options.endpoint, model=options.model, pids=options.pid)
    stages = options.stages
    if stages and (options.duration or options.requests or options.arrival != "closed" or options.trace):
        raise UsageError("--stages says how long and how many: leave out --duration, --requests, --arrival and --trace")
    concurrency = sorted({stage.users for stage in stages}) or options.concurrency
    first = [stages[0].ramp_from or stages[0].users] if stages else concurrency
    load = load_plan(options, "http", first, duration_s=20.0, warmup_s=4.0)
    plan = Plan(
        stack=stack.name,
        factors=stage_factors(stages),
        concurrency=concurrency,
        repeats=options.repeats,
        seed=options.seed,
        load=replace(
            load,
            stages=stages,
            workers=options.workers_from or options.workers,
            locustfile=None if options.locustfile is None else str(options.locustfile.absolute()),
            web_port=options.web_ui,
        ),
        observe=not options.no_observe,
        quick=False,
        slo=options.slo,
    )
    workers_from = _workers_from(options)
    if options.locustfile is not None and options.arrival != "closed":
        raise UsageError("users of a --locustfile run in closed loop: leave out --arrival")
    if options.locustfile is not None and workers_from is None and not options.locustfile.is_file():
        raise UsageError(f"--locustfile {options.locustfile}: there is no such file")
    if options.web_ui is not None:
        if workers_from is not None:
            raise UsageError("--web-ui shows a load on this machine: leave out --workers-from")
        print(f"Locust's page, while the load runs: http://127.0.0.1:{options.web_ui}", file=sys.stderr, flush=True)
    sweeps.check_plan(plan, stack)
    folder = SweepFolder(options.out or default_folder())
    cells = sweeps.begin(folder, plan, options.argv)
    return carry_out(folder, plan, cells, stack, workers_from)
