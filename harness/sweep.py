"""The sweep: a plan laid out in a folder, and its cells run one after the other, resumably."""

import resource
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contracts.errors import UsageError
from contracts.folder import FORMAT, SweepFolder, write_json
from contracts.masking import mask_argv, mask_mapping
from harness.cell import CellRunner
from harness.events import Listener, WorkerJoined, WorkersAwaited
from harness.metadata import git_state, machine, versions
from harness.observers.gil_stacks import find_py_spy
from harness.plan import Cell, Plan, cells_of, groups_of
from harness.process import Guard
from harness.remote import RemoteWorkers, WorkersFrom
from harness.stacks.base import Stack
from harness.stages import STAGE_KNOB

FILES_PER_PROCESS = 256
DONE, FAILED, INTERRUPTED = "done", "failed", "interrupted"


def check_plan(plan: Plan, stack: Stack) -> None:
    """Refuse, before anything is started, what cannot work. Raises UsageError."""
    for name, values in plan.factors.items():
        for value in values if name != STAGE_KNOB else ():
            stack.check_knob(name, value)
    if plan.load.drive not in stack.drives:
        raise UsageError(f"the stack {stack.name!r} has no drive {plan.load.drive!r}; it has {', '.join(stack.drives)}")
    if plan.observe:
        find_py_spy()
    if plan.load.drive == "http":
        _check_file_limit(max(plan.concurrency))


def _check_file_limit(concurrency: int) -> None:
    """See that the server may hold a file for each user; children inherit the soft limit, raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = concurrency + FILES_PER_PROCESS
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UsageError(
            f"--concurrency {concurrency} over HTTP needs {needed} open files in the server, and the hard limit is "
            f"{hard}: raise it (ulimit -Hn {needed}, as root) or take at most {hard - FILES_PER_PROCESS}"
        )
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))


def begin(
    folder: SweepFolder, plan: Plan, argv: Sequence[str], *, client_trust: Mapping[str, Any] | None = None
) -> list[Cell]:
    """Lay out a new sweep. `client_trust` is what the client's self-test said of this machine.

    Raises UsageError when the folder already holds something.
    """
    if folder.json.exists():
        raise UsageError(
            f"{folder.path} already holds a sweep: go on with it by --resume {folder.path}, or give another --out"
        )
    if folder.path.exists() and any(folder.path.iterdir()):
        raise UsageError(f"{folder.path} is not empty: give another --out")
    cells = cells_of(plan)
    try:
        folder.cells.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {folder.path}: {error.strerror}. Give another --out") from error
    write_json(folder.json, {**_document(plan, cells, argv), "client_trust": client_trust})
    return cells


def reopen(folder: SweepFolder) -> tuple[Plan, list[Cell]]:
    """Read the plan of a sweep that was begun. Raises UsageError, FormatError."""
    document = folder.read()
    try:
        plan = Plan.from_json(document["plan"])
    except (KeyError, TypeError) as error:
        raise UsageError(f"{folder.json} has no plan that can be resumed: {error!r}") from error
    return plan, cells_of(plan)


def _document(plan: Plan, cells: Sequence[Cell], argv: Sequence[str]) -> dict[str, Any]:
    knobs = {name: ",".join(values) for name, values in plan.factors.items()}
    return {
        "format": FORMAT,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": mask_argv(argv),
        "plan": plan.to_json(),
        "baseline": plan.baseline,
        "seed": plan.seed,
        "order": [cell.slug for cell in cells],
        "knobs": mask_mapping(knobs),
        "versions": versions(),
        "machine": machine(),
        "git": git_state(Path(__file__).parent),
    }


def run(
    folder: SweepFolder,
    plan: Plan,
    cells: Sequence[Cell],
    stack: Stack,
    notify: Listener,
    workers_from: WorkersFrom | None = None,
) -> str:
    """Run the cells that are not done yet; return `done`, `failed` (a cell did not finish) or `interrupted`.

    SIGTERM ends a sweep as Ctrl-C does. A cell that was killed half-way is run again from its start.
    """
    todo = _groups_left(folder, cells)
    previous = _terminate_as_interrupt()
    ended_well = True
    try:
        with Guard() as guard, ExitStack() as held:
            remote = None
            if workers_from is not None:
                remote = held.enter_context(RemoteWorkers(guard, workers_from, folder.path / "gateway.log"))
                count = workers_from.count
                remote.gather(
                    lambda address: notify(WorkersAwaited(address, count)),
                    lambda host, present: notify(WorkerJoined(host, present, count)),
                )
            runner = CellRunner(stack, plan.load, guard, observe=plan.observe, notify=notify, remote=remote)
            for group in todo:
                ended_well = runner.run(group, folder, len(cells)) and ended_well
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
    return DONE if ended_well else FAILED


def unfinished(folder: SweepFolder, cells: Sequence[Cell]) -> list[Cell]:
    """List the cells that `run` will run: a staged load is run again as a whole."""
    return [cell for group in _groups_left(folder, cells) for cell in group]


def _groups_left(folder: SweepFolder, cells: Sequence[Cell]) -> list[Sequence[Cell]]:
    return [group for group in groups_of(cells) if not all(_is_done(folder, cell) for cell in group)]


def _is_done(folder: SweepFolder, cell: Cell) -> bool:
    where = folder.cell(cell.slug)
    return where.json.exists() and where.read().state == "done"


def _terminate_as_interrupt() -> Any:
    if threading.current_thread() is not threading.main_thread():
        return None

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    return signal.signal(signal.SIGTERM, interrupt)
