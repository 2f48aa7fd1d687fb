"""What the benchmarks share: the fixed loop that tells how fast the machine is just now, spreads, whole sweeps."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from contracts.errors import ToolError
from harness.placement import Placement, available_cpus, place
from harness.process import Guard
from harness.stacks.base import RunningServer
from harness.stacks.reference import ReferenceStack
from loadgen.cli.parsing import factors

LOOP_ITERATIONS = 120_000
REFERENCE_LOOP_MS = 7.1  # the loop's median on the machine whose figures docs/reference-stack.md compares with


def fixed_loop_ms() -> float:
    """Time a loop of pure Python: the measure of this machine's speed at this moment."""
    began = time.perf_counter()
    x = 0
    for i in range(LOOP_ITERATIONS):
        x += i & 7
    return (time.perf_counter() - began) * 1e3


def scale() -> float:
    """Return the factor that turns a time taken now into one on the machine of the reference figures."""
    return REFERENCE_LOOP_MS / min(fixed_loop_ms() for _ in range(3))


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Write `median (least-most)`."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def end_with(main: Callable[[], int]) -> NoReturn:
    """Run a bench and end with its exit status; what a user can mend is one line, not a traceback."""
    try:
        sys.exit(main())
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


def run_sweep(*words: str) -> dict[str, Any]:
    """Run `loadgen sweep` with these words in a folder of its own; return what `loadgen show --json` says of it."""
    base = [sys.executable, "-m", "loadgen.cli.main"]
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "s")
        run = [*base, "sweep", *words, "--out", out]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(run)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        shown = subprocess.run([*base, "show", out, "--json"], capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(shown.stdout)
    return document


@dataclass(frozen=True, slots=True)
class Measured:
    """What a finished process took."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def run_measured(argv: Sequence[str], out: Path | None = None) -> Measured:
    """Run a program to its end, its output into a file or nowhere; give its times and its peak resident memory."""
    began = time.perf_counter()
    with open(out or os.devnull, "wb") as file:
        process = subprocess.Popen(argv, stdout=file)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {process.returncode}")
    return Measured(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


@contextmanager
def reference_stack(settings: Sequence[str], prefix: str) -> Iterator[tuple[RunningServer, Placement, Path]]:
    """Run the reference stack with NAME=VALUE `settings`, and this process as its load, each on the cores of a sweep.

    Gives the server, the placement and the stack's scratch folder. Raises ToolError.
    """
    knobs = {name: values[0] for name, values in factors(list(settings)).items()}
    stack = ReferenceStack()
    for name, value in knobs.items():
        stack.check_knob(name, value)
    placement, _ = place(available_cpus(), one_process=stack.one_process(knobs), over_http=False)
    with Guard() as guard, tempfile.TemporaryDirectory(prefix=prefix) as name:
        server = stack.launch(guard, knobs, placement, Path(name), Path(name) / "server.log")
        try:
            if placement.load:
                os.sched_setaffinity(0, placement.load)
            yield server, placement, Path(name)
        finally:
            server.stop(8.0)
