"""`loadgen doctor`: what may be observed on this machine, and how to permit the rest."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from contracts.errors import UsageError
from harness.observers.gil.memory import Identity, TargetGoneError
from harness.reference import observed
from loadgen import selftest
from loadgen.ceiling import describe, find_ceiling, tokens_per_s
from loadgen.cli import parsing
from loadgen.cli.doctor_checks import CHECKS
from loadgen.cli.screen import visible
from loadgen.selftest import Level

FORMAT = 1
CLIENT_SECONDS = 4.0


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "doctor",
        description="Try every channel that the observers use, on a process started for it or on yours, and say how to "
        "permit the rest. Exit status 1 when the GIL cannot be watched.",
        epilog="example: loadgen doctor --pid 4242",
    )
    parser.add_argument(
        "--pid", type=parsing.count, metavar="PID", help="try them on this process (default: one started for it)"
    )
    parser.add_argument(
        "--client", action="store_true",
        help="measure instead how many tokens/s one load process can follow here (some two minutes)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Try the channels, or measure the client."""
    if options.client and options.pid is not None:
        raise UsageError("--client measures this tool's own load process: leave out --pid")
    return _client(options) if options.client else _observers(options)


def _client(options: argparse.Namespace) -> int:
    """Measure the client's ceiling; exit status 1 when it is late from the first level on."""

    def measure(users: int) -> Level:
        print(f"{users} users ...", file=sys.stderr, flush=True)
        return selftest.measure(users, CLIENT_SECONDS)

    ceiling = find_ceiling(measure)
    if options.json:
        good, late = (None if one is None else asdict(one) | {"tokens_s": tokens_per_s(one)}
                      for one in (ceiling.good, ceiling.late))  # fmt: skip
        json.dump({"format": FORMAT, "good": good, "late": late}, sys.stdout, indent=1)
        print()
    else:
        print("\n".join(describe(ceiling)))
    return 0 if ceiling.good is not None else 1


def _observers(options: argparse.Namespace) -> int:
    with _target(options.pid) as pid:
        checks = [check(pid) for check in CHECKS]
    if options.json:
        json.dump({"format": FORMAT, "checks": [asdict(check) for check in checks]}, sys.stdout, indent=1)
        print()
    else:
        for check in checks:
            print(f"{'yes' if check.ok else 'NO ':3}  {check.name}: {visible(check.seen)}")
            if check.remedy is not None:
                print(f"     {visible(check.remedy)}")
    return 0 if checks[0].ok else 1


@contextmanager
def _target(pid: int | None) -> Iterator[int]:
    """Give the process to try on: the one that is named, or one that lives for as long as this is entered.

    The latter lets observers in as the processes of a sweep's stack do.
    """
    if pid is not None:
        try:
            Identity.of(pid)
        except TargetGoneError as error:
            raise UsageError(f"--pid {pid}: {error}") from error
        yield pid
        return
    lets_in = "from harness.reference import observed; observed.let_observers_in()"
    program = f"import sys; {lets_in}; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, observed.VARIABLE: str(os.getpid())},
    ) as target:
        assert target.stdout is not None
        target.stdout.readline()
        yield target.pid
