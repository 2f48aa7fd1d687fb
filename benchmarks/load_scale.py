"""How long a cell of very many requests takes to load and summarise, and how much memory that needs.

    python benchmarks/load_scale.py [--requests 1000000] [--chunks 100] [--keep DIR]

Writes one cell (benchmarks/made_up.py) and runs `loadgen show --json` on it in a process of its own. Targets on a
2-core machine: a million requests of 100 chunk times each in under 60 s and within 4 GiB.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from common import run_measured
from made_up import Size, many_requests, write_sweep

from contracts.folder import Phases, SweepFolder

USERS = 2048
AT_ONCE = 50_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000, help="(default: %(default)s)")
    parser.add_argument("--chunks", type=int, default=100, help="chunk times of each (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write it there, and leave it or use what is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = options.keep or Path(scratch) / "sweep"
        if not path.exists():
            began = time.perf_counter()
            write(path, options.requests, options.chunks)
            print(f"written in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        size = sum(file.stat().st_size for file in path.rglob("*.arrow"))
        out = Path(scratch) / "show.json"
        run = run_measured([sys.executable, "-m", "loadgen.cli.main", "show", str(path), "--json"], out)
        print(f"cell      {options.requests:,} requests of {options.chunks} chunks, {size / 1e6:,.0f} MB of records")
        print(f"summarise {run.wall_s:.1f} s wall, {run.cpu_s:.1f} s of CPU, peak {run.peak_mib:,.0f} MiB")
    return 0


def write(path: Path, count: int, chunks: int) -> None:
    """Write a sweep of one cell whose requests file is replaced by a very long one, and its window by theirs."""
    folder: SweepFolder = write_sweep(path, ["1"], [USERS], 1, Size(chunks=chunks))
    (cell,) = folder.cell_folders()
    for _ in many_requests(cell.requests(), count, chunks, USERS, AT_ONCE):
        pass
    info = cell.read()
    start = info.phases.start_ns or 0
    length = round(count / USERS * 2.2e9)
    cell.write(replace(info, phases=Phases(start, start, start + 2 * 10**9, start + length, start + length)))


if __name__ == "__main__":
    sys.exit(main())
