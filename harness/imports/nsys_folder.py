"""A results folder from nsys' trace: looks at random moments and the loop's steps, so that the report is the same.

The wait of each step is exact (`gil_wait_ms`: the executor loop's "Waiting for GIL" ranges within it). Who held the GIL
meanwhile, and in which NVTX range, is told by looks at the trace, which analysis reads as it reads those of a live
process; they are many, so the error of sampling is small beside that of the trace.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from contracts.arrow import write_rows
from contracts.clock import NS_PER_MS, NS_PER_S
from contracts.errors import UsageError
from contracts.folder import FORMAT, CellInfo, Phases, SweepFolder, write_json
from contracts.masking import mask_argv
from contracts.records import GIL, STEPS, GilRow, StepRow
from harness.imports.nsys import GilTrace, Ints, Spans

RATE_HZ = 5000.0
_MOST_LOOKS = 500_000
_SLUG = "001-nsys"


def write_folder(trace: GilTrace, source: Path, out: Path, argv: Sequence[str], *, seed: int = 1) -> SweepFolder:
    """Write a folder of one cell. Raises UsageError when it is not empty."""
    folder = SweepFolder(out)
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty: give another --out")
    cell = folder.cell(_SLUG)
    cell.path.mkdir(parents=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    start_ns, end_ns = trace.turns[0].start_ns, trace.turns[-1].end_ns
    write_rows(cell.steps, STEPS, list(_steps(trace)))
    write_rows(cell.gil, GIL, list(_looks(trace, start_ns, end_ns, seed)))
    cell.write(
        CellInfo(
            id="001", slug=_SLUG, index=1, block=1, knobs={}, concurrency=0, state="done", started_at=now, ended_at=now,
            phases=Phases(start_ns, start_ns, start_ns, end_ns, end_ns), processes={"rank0": trace.pid},
        )
    )  # fmt: skip
    write_json(
        folder.json,
        {
            "format": FORMAT,
            "created_at": now,
            "command": mask_argv(argv),
            "plan": {"stack": "nsys", "drive": "none", "factors": {}, "repeats": 1, "source": source.name},
            "baseline": {},
            "order": [_SLUG],
            "state": "done",
        },
    )
    return folder


def _steps(trace: GilTrace) -> Iterator[StepRow]:
    starts = np.array([turn.start_ns for turn in trace.turns], np.int64)
    ends = np.array([turn.end_ns for turn in trace.turns], np.int64)
    waits = trace.waits.get(trace.executor, Spans.of([])).total_ns(starts, ends)
    for turn, wait_ns in zip(trace.turns, waits.tolist(), strict=True):
        known = {
            "t_ns": turn.end_ns,
            "iteration": turn.iteration,
            "rank": 0,
            "host_step_ms": (turn.end_ns - turn.start_ns) / NS_PER_MS,
            "gil_wait_ms": wait_ns / NS_PER_MS,
        }
        yield StepRow(**{name: known.get(name) for name in StepRow.__dataclass_fields__})  # type: ignore[arg-type]


def _looks(trace: GilTrace, start_ns: int, end_ns: int, seed: int) -> Iterator[GilRow]:
    """Look at a random moment of each slot of 1/rate."""
    count = min(max(2, int((end_ns - start_ns) / NS_PER_S * RATE_HZ)), _MOST_LOOKS)
    slot = (end_ns - start_ns) / count
    random = np.random.default_rng(seed)
    t_ns: Ints = (start_ns + (np.arange(count) + random.random(count)) * slot).astype(np.int64)
    holder, function = _holders(trace, t_ns)
    waits = {tid: spans.covering(t_ns) >= 0 for tid, spans in trace.waits.items()}
    taken = np.sort(np.concatenate([spans.start_ns for spans in trace.holds.values()]))
    switches = np.searchsorted(taken, t_ns, side="right")
    names = {tid: trace.names.get(tid, f"thread {tid}") for tid in trace.holds}
    for n in range(count):
        held = int(holder[n])
        yield GilRow(
            t_ns=int(t_ns[n]), locked=held >= 0, holder=held if held >= 0 else None, holder_sleeps=False,
            function=function[n], waiting=[tid for tid, flags in waits.items() if flags[n] and tid != held],
            runnable=[], running=[], cold=[], cold_weight=1, clocked=[], cpu_clock_ns=[], queue_clock_ns=[],
            switches=int(switches[n]), missed=0, cpu_ns=0,
            appeared=list(names) if n == 0 else [], names=list(names.values()) if n == 0 else [], gone=[],
        )  # fmt: skip


def _holders(trace: GilTrace, t_ns: Ints) -> tuple[Ints, list[str | None]]:
    holder = np.full(len(t_ns), -1, np.int64)
    for tid, spans in trace.holds.items():
        holder[spans.covering(t_ns) >= 0] = tid
    function: list[str | None] = [None] * len(t_ns)
    for tid, doing in trace.doing.items():
        mine = np.flatnonzero(holder == tid)
        for n, place in zip(mine.tolist(), doing.covering(t_ns[mine]).tolist(), strict=True):
            if place >= 0:
                function[n] = doing.texts[place]
    return holder, function
