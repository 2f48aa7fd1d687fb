"""`loadgen export DIR --format F`: a sweep's records and figures in the formats of other tools."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.plan import SweepInfo
from analysis.slo import Term, parse_slo
from analysis.tables import CellTables, load_cell, records_of
from contracts.errors import ToolError, UsageError
from contracts.folder import CellFolder, CellInfo, SweepFolder
from loadgen.cli import parsing

TABULAR = ("csv", "parquet", "openmetrics")  # all cells in one file
SUFFIXES = {"vllm": "vllm.json", "aiperf": "aiperf.json", "speedscope": "speedscope.json", "perfetto": "perfetto.json"}
TABLES = ("requests", "cells", "steps")


@dataclass(frozen=True, slots=True)
class _Cell:
    """A chosen cell: its folder, and what its cell.json says."""

    folder: CellFolder
    info: CellInfo


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "export",
        description=__doc__,
        epilog="example: loadgen export results/20261129-140000 --format perfetto --cell 003 --out cell.json",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="a sweep's folder")
    parser.add_argument(
        "--format", choices=[*TABULAR, *SUFFIXES], required=True,
        help="csv, parquet, openmetrics: all cells in one file; vllm (its bench serve), aiperf, speedscope (GIL "
             "holders' stacks), perfetto (a timeline): one file a cell",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="PATH",
        help="the file to write (default: standard output); a folder for several cells of a format of one file a cell",
    )  # fmt: skip
    parser.add_argument("--cell", metavar="ID", help="this cell alone, as in 003 (default: all)")
    parser.add_argument("--table", choices=TABLES, help="of csv and parquet (default: cells)")
    parser.add_argument("--slo", type=parsing.objective, metavar="TERMS", help=parsing.SLO_HELP)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.table and options.format not in {"csv", "parquet"}:
        raise UsageError(f"--table goes with --format csv or parquet, not with {options.format}")
    sweep = SweepFolder(options.dir)
    info = SweepInfo.from_json(sweep.read())
    cells = _choose(sweep, options.cell)
    objective = options.slo or info.plan.get("slo")
    terms = parse_slo(objective) if objective else ()
    if options.out is not None:
        _refuse_records(options.out, sweep)
    if options.format in TABULAR:
        _write_table(options, [load_cell(cell.folder) for cell in cells], terms)
        return 0
    return _write_cells(options, cells, info, terms)


def _choose(sweep: SweepFolder, wanted: str | None) -> list[_Cell]:
    cells = [_Cell(folder, folder.read()) for folder in sweep.cell_folders()]
    if not cells:
        raise UsageError(f"{sweep.path} has no cell yet: nothing to export")
    if wanted is None:
        return cells
    chosen = [cell for cell in cells if wanted in {cell.info.id, cell.info.slug}]
    if not chosen:
        raise UsageError(f"--cell {wanted}: {sweep.path} has {', '.join(cell.info.id for cell in cells)}")
    return chosen


def _refuse_records(out: Path, sweep: SweepFolder) -> None:
    """Refuse to write over the results themselves."""
    target = out.resolve()
    if target == sweep.json.resolve() or target.is_relative_to(sweep.cells.resolve()):
        raise UsageError(f"--out {out} is among the records of {sweep.path}: give another place")


def _write_table(options: argparse.Namespace, cells: Sequence[CellTables], terms: Sequence[Term]) -> None:
    if options.format == "openmetrics":
        from analysis.export.openmetrics import openmetrics

        _write(options.out, openmetrics(cells, terms))
        return
    from analysis.export.frames import table, to_csv, to_parquet

    if options.format == "parquet" and options.out is None:
        raise UsageError("--format parquet is binary: give --out FILE")
    frame = table(cells, options.table or "cells", terms)
    _write(options.out, to_csv(frame) if options.format == "csv" else to_parquet(frame))


def _write_cells(options: argparse.Namespace, cells: Sequence[_Cell], sweep: SweepInfo, terms: Sequence[Term]) -> int:
    """Write one document a cell; 1 when a cell had nothing to export, the others are written all the same."""
    build = _builder(options.format, sweep, terms)
    if len(cells) == 1:
        _write(options.out, _json(build(cells[0])))
        return 0
    if options.out is None:
        names = ", ".join(cell.info.id for cell in cells)
        raise UsageError(f"--format {options.format} is one file a cell: choose one with --cell ({names}), or give a "
                         f"folder with --out")  # fmt: skip
    if options.out.exists() and not options.out.is_dir():
        raise UsageError(f"--out {options.out} is a file: {len(cells)} cells need a folder, or choose one with --cell")
    options.out.mkdir(parents=True, exist_ok=True)
    status = 0
    for cell in cells:
        try:
            document = build(cell)
        except ToolError as error:
            print(f"left out: {error}", file=sys.stderr)
            status = 1
            continue
        _write(options.out / f"{cell.folder.path.name}.{SUFFIXES[options.format]}", _json(document))
    return status


def _builder(form: str, sweep: SweepInfo, terms: Sequence[Term]) -> Callable[[_Cell], dict[str, Any]]:
    if form == "vllm":
        from analysis.export.vllm import vllm_result

        return lambda cell: vllm_result(load_cell(cell.folder), sweep, records_of(cell.folder, cell.info), terms)
    if form == "aiperf":
        from analysis.export.aiperf import aiperf_export

        return lambda cell: aiperf_export(load_cell(cell.folder), sweep, terms)
    if form == "speedscope":
        from analysis.export.speedscope import speedscope

        return lambda cell: speedscope(cell.folder, cell.info)
    return _timeline


def _timeline(cell: _Cell) -> dict[str, Any]:
    from analysis.export.perfetto import perfetto

    document, thinned = perfetto(load_cell(cell.folder))
    for what in thinned:
        print(f"{cell.info.id}: {what}", file=sys.stderr)
    return document


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"


def _write(out: Path | None, content: str | bytes) -> None:
    """Write to standard output, or replace a file atomically and say which on standard output."""
    if out is None:
        assert isinstance(content, str)
        sys.stdout.write(content)
        return
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder: give a file's name")
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(out)
    except FileNotFoundError as error:
        raise UsageError(f"--out {out}: there is no folder {out.parent}") from error
    finally:
        temporary.unlink(missing_ok=True)
    print(out)
