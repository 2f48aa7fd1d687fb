"""`loadgen report DIR`: write a sweep's HTML report anew."""

import argparse
from pathlib import Path

from analysis.report import write_report


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "report",
        help="write a sweep's HTML report anew",
        description=__doc__,
        epilog="example: loadgen report results/20261129-140000",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="a sweep's folder")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: DIR/report.html)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    print(write_report(options.dir, options.out))
    return 0
