"""`loadgen nsys FILE`: the GIL of a real server as Nsight Systems traced it, in the report of a sweep."""

import argparse
from pathlib import Path

from harness.imports.nsys import STEP, read_trace
from harness.imports.nsys_folder import write_folder
from loadgen.cli import parsing
from loadgen.cli.sweep import default_folder
from loadgen.cli.verdict import report_on


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "nsys",
        description="Read an nsys trace of a Python server (nsys profile -t cuda,nvtx,python-gil ...; nsys export "
        "--type sqlite) into a results folder: the executor loop's GIL wait per step, exactly, and who held the GIL "
        "meanwhile.",
        epilog="example: loadgen nsys rank0.sqlite --out results/gb200",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="what nsys export --type sqlite wrote")
    parser.add_argument("--pid", type=parsing.count, metavar="N", help="the process (default: the first with steps)")
    parser.add_argument(
        "--step", default=STEP, metavar="REGEX",
        help="NVTX ranges that begin a turn of the executor loop; a group named iteration numbers it (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="a new folder (default: results/TIME)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    trace = read_trace(options.file, pid=options.pid, step=options.step)
    folder = write_folder(trace, options.file, options.out or default_folder(), options.argv)
    print(f"process {trace.pid}: {len(trace.turns)} steps, {len(trace.holds)} threads with the GIL")
    report_on(folder.path)
    return 0
