"""`loadgen selftest`: how many users this machine can drive before its own figures go wrong."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from loadgen.cli import parsing, trust
from loadgen.cli.console import stdout_console
from loadgen.cli.trust import Trust
from loadgen.selftest import Level, measure

DEFAULT_LEVELS = [64, 256, 1024, 2048, 4096]
PLAIN_WIDTH = 120
COLUMNS = (
    "users", "TTFT p50 error", "TTFT p99 error", "ITL p99 error", "load kept", "bounded", "client lag p99",
    "CPU us/token", "server late p99", "",
)  # fmt: skip


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "selftest",
        description=__doc__ + " It stops at the first level that fails twice; exit status 1 when that is the first. "
        "Sweeps beyond the last good level then carry a warning.",
        epilog="example: loadgen selftest --levels 400,2048",
    )
    parser.add_argument(
        "--levels", type=parsing.concurrencies, metavar="N,N", default=DEFAULT_LEVELS,
        help="users, rising (default: 64,256,1024,2048,4096)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=parsing.positive, metavar="S", default=5.0, help="window a level, at least 3.9 (5)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure level after level; print what came out and up to where it can be trusted."""
    progress = Console(stderr=True)
    levels: list[Level] = []
    for users in sorted(options.levels):
        progress.print(f"{users} users ...", highlight=False)
        levels.append(_of_two(users, options.seconds))
        if levels[-1].complaints:
            break
    trusted = max((level.users for level in levels if not level.complaints), default=None)
    last = levels[-1]
    trust.save(Trust.now(trusted or 0, last.users if last.complaints else None, "; ".join(last.complaints)))
    if options.json:
        shown = [{**asdict(level), "complaints": level.complaints} for level in levels]
        print(json.dumps({"levels": shown, "trusted_users": trusted}, indent=1))
    else:
        _print_table(levels)
        print(_sentence(levels, trusted))
    return 1 if trusted is None else 0


def _of_two(users: int, seconds: float) -> Level:
    """Measure a level; one that fails is given a second chance, for a machine may be busy for a moment."""
    level = measure(users, seconds)
    if level.complaints:
        again = measure(users, seconds)
        if len(again.complaints) < len(level.complaints):
            return again
    return level


def _print_table(levels: Sequence[Level]) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in COLUMNS:
        table.add_column(name, justify="left" if not name else "right", overflow="fold")
    for level in levels:
        lag = level.client_lag_p99_ms
        table.add_row(
            str(level.users),
            f"{level.ttft_p50_error_ms:+.2f} ms",
            f"{level.ttft_p99_error_ms:+.2f} ms",
            f"{level.itl_p99_error_ms:+.2f} ms",
            f"{level.load_kept:.1%}",
            f"{level.bounded_fraction:.2%}",
            "unknown" if lag is None else f"{lag:.1f} ms",
            f"{level.cpu_us_per_token:.1f}",
            f"{level.server_late_ms:.1f} ms",
            "; ".join(level.complaints) or "good",
        )
    stdout_console(PLAIN_WIDTH).print(table)


def _sentence(levels: Sequence[Level], trusted: int | None) -> str:
    worst = levels[-1]
    if not worst.complaints:
        return f"Up to {worst.users} users one load process on this machine tells the truth."
    why = "; ".join(worst.complaints)
    if trusted is None:
        return f"Not even {worst.users} users can be trusted here: {why}. Is the machine busy?"
    return f"Up to {trusted} users one load process tells the truth; at {worst.users}: {why}. Use more --workers."
