"""How long a report of a large sweep takes to build, how big it is, and how fast a browser opens it.

    python benchmarks/report_scale.py [--cells 200] [--keep DIR]

Writes a sweep (benchmarks/made_up.py), builds its report in a process of its own as a user would, and opens it in
headless Chromium. Targets on a 2-core machine: 200 cells in under 60 s, below 15 MB, load event within 2 s.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from common import run_measured, spread
from made_up import Size, write_sweep

VALUES = ("1", "8", "16", "32", "64")
CONCURRENCIES = (64, 256, 1024, 2048)
CHROMIUM = Path("/usr/bin/chromium")
OPENINGS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=200, help="about how many (default: %(default)s)")
    parser.add_argument("--window", type=float, default=20.0, metavar="S", help="of a cell (default: %(default)g)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write it there, and leave it or use what is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = options.keep or Path(scratch) / "sweep"
        if not path.exists():
            began = time.perf_counter()
            blocks = max(round(options.cells / len(VALUES) / len(CONCURRENCIES)), 1)
            write_sweep(path, VALUES, CONCURRENCIES, blocks, Size(window_s=options.window))
            print(f"written in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        cells = len(list(path.glob("cells/*/cell.json")))
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        out = Path(scratch) / "report.html"
        run = run_measured([sys.executable, "-m", "loadgen.cli.main", "report", str(path), "--out", str(out)])
        print(f"sweep     {cells} cells, {size / 1e6:,.0f} MB of records")
        print(f"build     {run.wall_s:.1f} s wall, {run.cpu_s:.1f} s of CPU, peak {run.peak_mib:,.0f} MiB")
        print(f"size      {out.stat().st_size / 1e6:.2f} MB")
        opened = open_in_browser(out)
        if opened:
            print(f"open      {spread(opened, 0)} ms to the load event, {len(opened)} times")
    return 0


def open_in_browser(page_file: Path) -> list[float]:
    """Open it in headless Chromium; return the times to the load event, ms (none without playwright or Chromium)."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("open      playwright is not installed", file=sys.stderr)
        return []
    if not CHROMIUM.exists():
        print(f"open      {CHROMIUM} is not there", file=sys.stderr)
        return []
    found = []
    with sync_playwright() as session:
        browser = session.chromium.launch(executable_path=str(CHROMIUM), args=["--headless", "--no-sandbox"])
        for _ in range(OPENINGS):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(page_file.as_uri(), wait_until="load")
            timing = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventStart")
            found.append(float(timing))
            page.close()
        browser.close()
    return found


if __name__ == "__main__":
    sys.exit(main())
