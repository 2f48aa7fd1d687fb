"""`loadgen show DIR`: a sweep's figures, cell by cell, for people or (`--json`) for programs."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.table import Table

from analysis.scaling.study import study_scaling
from analysis.study import study_sweep
from analysis.summary import summary_of
from loadgen.cli import parsing
from loadgen.cli.console import stdout_console
from loadgen.cli.what_if import print_answers, status_of

PLAIN_WIDTH = 160


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "show",
        description=__doc__,
        epilog="example: loadgen show results/20261129-140000 --json | jq '.cells[].metrics.ttft_ms.p99'",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="a sweep's folder")
    parser.add_argument("--json", action="store_true", help="everything, as one JSON document")
    parser.add_argument("--slo", type=parsing.objective, metavar="TERMS", help=parsing.SLO_HELP)
    parser.add_argument(
        "--what-if", type=parsing.what_if, action="append", default=[], metavar="NAME=V,...", help=parsing.WHAT_IF_HELP
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    study = study_sweep(options.dir, options.slo, processes=parsing.cores())
    scaling = study_scaling(study, options.what_if)
    summary = summary_of(study, scaling)
    if options.json:
        json.dump(summary, sys.stdout, indent=1)
        print()
        return status_of(scaling.answers)
    console = stdout_console(PLAIN_WIDTH)
    console.print(_table(summary["cells"]))
    if summary["slo"] is not None:
        console.print(_slo(summary["slo"]))
    if options.what_if:
        print_answers(scaling)
    for warning in summary["warnings"]:
        where = f" [{warning['cell']}]" if warning.get("cell") else ""
        console.print(
            f"warning {warning['code']}{where}: {warning['detail']}", highlight=False, markup=False, soft_wrap=True
        )
    return status_of(scaling.answers)


def _table(cells: list[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="bold")
    for name in ("cell", "state", "block", "users"):
        table.add_column(name, no_wrap=True)
    table.add_column("knobs", overflow="fold", min_width=12)
    for name in ("requests", "errors", "req/s", "tok/s", "TTFT p50", "TTFT p99", "ITL p50", "step ms", "in flight"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in cells:
        metrics = cell["metrics"]
        knobs = " ".join(f"{name}={value}" for name, value in cell["knobs"].items())
        table.add_row(
            cell["id"], cell["state"], str(cell["block"]), str(cell["concurrency"]), knobs,
            _number(cell["requests"]), _number(cell["errors"]), _number(metrics["req_s"], 1),
            _number(metrics["output_tok_s"]), _number((metrics["ttft_ms"] or {}).get("p50")),
            _number((metrics["ttft_ms"] or {}).get("p99")), _number((metrics["itl_ms"] or {}).get("p50"), 1),
            _number((metrics["host_step_ms"] or {}).get("mean"), 1), _number(metrics["in_flight_mean"]),
        )  # fmt: skip
    return table


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _slo(slo: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("objective", overflow="fold")
    for name in ("users", *slo["terms"], "goodput req/s", "met"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in slo["rows"]:
        knobs = " ".join(f"{name}={value}" for name, value in row["knobs"].items())
        table.add_row(
            knobs, str(row["concurrency"]), *(f"{share:.1%}" for share in row["shares"]),
            _number(row["goodput_req_s"], 1), f"{row['met']} of {row['cells']}",
        )  # fmt: skip
    return table
