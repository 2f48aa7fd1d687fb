"""`loadgen compare BASE OTHER`: one sweep against another; with --fail-if a gate for CI."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from analysis.study import study_sweep
from analysis.versus import Difference, Gate, differences, metadata_differences, refusals
from contracts.errors import UsageError
from loadgen.cli import parsing
from loadgen.cli.console import stdout_console

SHOWN = ("output_tok_s", "ttft_ms.p50", "ttft_ms.p99", "itl_ms.p50", "host_step_ms.mean")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "compare",
        description=__doc__,
        epilog="example: loadgen compare results/before results/after --fail-if 'ttft_ms.p99 > +5%'",
    )
    parser.add_argument("base", type=Path, metavar="BASE", help="a sweep's folder")
    parser.add_argument("other", type=Path, metavar="OTHER", help="the sweep that is held against it")
    parser.add_argument(
        "--fail-if", action="append", default=[], metavar="EXPR", dest="gates",
        help="as in 'ttft_ms.p99 > +5%%': exit 1 when the 95%% interval lies wholly beyond it",
    )  # fmt: skip
    parser.add_argument("--cross-machine", action="store_true", help="permit sweeps of different machines")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything, as one JSON document")
    form.add_argument("--format", choices=["text", "markdown"], default="text", help="markdown for a pull request")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare; 0, or 1 when a gate tripped. Raises UsageError for sweeps that must not be compared."""
    gates = [Gate.parse(text) for text in options.gates]
    base, other = (study_sweep(path, processes=parsing.cores()) for path in (options.base, options.other))
    reasons = refusals(base, other, cross_machine=options.cross_machine)
    if reasons:
        raise UsageError(f"{options.base} and {options.other} cannot be compared: {'; '.join(reasons)}")
    found = differences(base, other)
    if not found:
        raise UsageError(f"{options.base} and {options.other} have no finished setting and concurrency in common")
    tripped = [(gate, one) for gate in gates for one in found if gate.trips(one)]
    metadata = metadata_differences(base, other)
    if options.json:
        json.dump(
            {
                "format": 1,
                "differences": [_plain(one) for one in found],
                "tripped": [{"gate": gate.text, **_plain(one)} for gate, one in tripped],
                "metadata": [dict(zip(("name", "base", "other"), row, strict=True)) for row in metadata],
            },
            sys.stdout,
            indent=1,
        )
        print()
    else:
        shown = [one for one in found if one.measure.name in SHOWN]
        (_markdown if options.format == "markdown" else _text)(shown, metadata)
    for gate, one in tripped:
        print(f"gate {gate.text}: {one.setting.label} at c{one.concurrency} is at {_change(one)}", file=sys.stderr)
    return 1 if tripped else 0


def _plain(one: Difference) -> dict[str, Any]:
    return {
        **asdict(one),
        "measure": one.measure.name,
        "setting": dict(one.setting.pairs),
    }


def _change(one: Difference) -> str:
    text = f"{one.ratio - 1:+.1%}"
    if one.low is not None and one.high is not None:
        text += f" ({one.low - 1:+.1%} to {one.high - 1:+.1%})"
    return text


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


HEADER = ("users", "setting", "measure", "cells", "base", "other", "change (95% interval)", "verdict")


def _cells(one: Difference) -> tuple[str, ...]:
    return (
        str(one.concurrency),
        one.setting.label,
        one.measure.label,
        f"{one.base_cells}/{one.other_cells}",
        _number(one.base),
        _number(one.other),
        _change(one),
        one.verdict,
    )


def _text(found: list[Difference], metadata: list[tuple[str, str, str]]) -> None:
    console = stdout_console(150)
    table = Table(box=None, header_style="bold")
    for name in HEADER:
        table.add_column(name, overflow="fold")
    for one in found:
        table.add_row(*(Text(cell) for cell in _cells(one)))
    console.print(table)
    for name, before, after in metadata:
        console.print(f"differs: {name}: {before} -> {after}", highlight=False, markup=False, soft_wrap=True)


def _markdown(found: list[Difference], metadata: list[tuple[str, str, str]]) -> None:
    def row(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"

    print(row(HEADER))
    print("|" + "---|" * len(HEADER))
    for one in found:
        print(row(_cells(one)))
    if metadata:
        print("\nAlso different: " + ", ".join(f"`{name}` ({one} -> {two})" for name, one, two in metadata))
