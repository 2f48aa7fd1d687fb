"""`loadgen report DIR`: write a sweep's HTML report anew, and answer what-if questions about it."""

import argparse
import json
import sys
from pathlib import Path

from analysis.report.page import write_page, write_report
from analysis.scaling.document import scaling_document
from analysis.scaling.study import study_scaling
from analysis.study import study_sweep
from analysis.summary import without_nan
from loadgen.cli import parsing
from loadgen.cli.what_if import print_answers, status_of


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "report",
        description=__doc__,
        epilog="example: loadgen report results/20261129-140000 --what-if concurrency=1024 --slo 'ttft_ms:p99<2000'",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="a sweep's folder")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: DIR/report.html)")
    parser.add_argument("--slo", type=parsing.objective, metavar="TERMS", help=parsing.SLO_HELP)
    parser.add_argument(
        "--what-if", type=parsing.what_if, action="append", default=[], metavar="NAME=V,...", help=parsing.WHAT_IF_HELP
    )
    parser.add_argument(
        "--json", action="store_true", help="print knees, laws and answers as one JSON document, and not the path"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the report; with questions, print the answers first. Status 1 when one was refused."""
    if not options.what_if and not options.json:
        print(write_report(options.dir, options.out, options.slo, processes=parsing.cores()))
        return 0
    study = study_sweep(options.dir, options.slo, processes=parsing.cores())
    scaling = study_scaling(study, options.what_if)
    written = write_page(study, scaling, options.out)
    if options.json:
        json.dump(without_nan({"report": str(written), **scaling_document(scaling)}), sys.stdout, indent=1)
        print()
    else:
        print_answers(scaling)
        print(written)
    return status_of(scaling.answers)
