"""`loadgen report DIR`: write a sweep's HTML report anew."""

import argparse
from pathlib import Path

from analysis.report import write_report
from loadgen.cli import parsing


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "report",
        description=__doc__,
        epilog="example: loadgen report results/20261129-140000",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="a sweep's folder")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: DIR/report.html)")
    parser.add_argument("--slo", type=parsing.objective, metavar="TERMS", help=parsing.SLO_HELP)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    print(write_report(options.dir, options.out, options.slo))
    return 0
