"""A sweep's folder (format 1): where things lie, and JSON written so that a kill leaves the old file or the new one.

DIR/sweep.json                   the plan, the order of cells, versions, machine, command line
DIR/cells/NNN-SLUG/cell.json     one cell's knobs, state, phases, observers, warnings
                   *.arrow       records (contracts.records)
                   stacks.raw    py-spy's stacks of GIL holders, `server.log`, `client.log`
DIR/report.html
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contracts.errors import FormatError, UsageError

FORMAT = 1


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically; the data is on disk before the name points to it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of the results folder, checking its format number."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist: is {path.parent} the folder of a sweep?") from error
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise FormatError(f"{path} has format {found!r}; this release reads format {FORMAT}")
    return document


@dataclass(frozen=True, slots=True)
class Phases:
    """When a cell's load passed from one phase to the next, CLOCK_MONOTONIC ns; None: it did not get there."""

    start_ns: int | None = None
    ramped_ns: int | None = None
    steady_start_ns: int | None = None
    steady_end_ns: int | None = None
    drained_ns: int | None = None


@dataclass(frozen=True, slots=True)
class GilStacks:
    """How py-spy's stacks of GIL holders came about: enough to turn counts into shares of wall time.

    `attempts` counts looks at the process; `samples` those that found a holder and read its stack; `errors` those
    whose stack could not be read. `complete` is False when the recorder was cut short and `attempts` is an estimate.
    """

    pid: int
    rate_hz: int
    start_ns: int
    end_ns: int
    attempts: int
    samples: int
    errors: int
    complete: bool


@dataclass(frozen=True, slots=True)
class CellInfo:
    """cell.json. `state` is planned | running | done | partial | failed.

    A stage of a staged load has `stage` (its place from 1, users, seconds, where it ramps from), and `records` names
    the cell whose folder holds the requests of all stages of that load; those in flight from `phases.start_ns` until
    the window's end (of the last stage: the drain's) are this stage's. `load_machines` names those of load processes
    that did not run here.
    """

    id: str
    slug: str
    index: int
    block: int
    knobs: Mapping[str, str]
    concurrency: int
    state: str
    phases: Phases = field(default_factory=Phases)
    stacks: GilStacks | None = None
    processes: Mapping[str, int] = field(default_factory=dict)
    placement: Mapping[str, str] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    started_at: str | None = None
    ended_at: str | None = None
    error: str | None = None
    warnings: tuple[Mapping[str, str], ...] = ()
    stage: Mapping[str, Any] | None = None
    records: str | None = None
    load_machines: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "CellInfo":
        """Rebuild; unknown keys are left aside so that later releases may add some."""
        known = {name: document[name] for name in cls.__dataclass_fields__ if name in document}
        known["phases"] = Phases(**known.get("phases", {}))
        if known.get("stacks") is not None:
            known["stacks"] = GilStacks(**known["stacks"])
        known["warnings"] = tuple(known.get("warnings", ()))
        return cls(**known)


@dataclass(frozen=True, slots=True)
class CellFolder:
    """The paths inside one cell's folder."""

    path: Path

    @property
    def json(self) -> Path:
        return self.path / "cell.json"

    def requests(self, worker: int = 0) -> Path:
        """Give the file of one load process; the first has the plain name."""
        return self.path / ("requests.arrow" if worker == 0 else f"requests-{worker}.arrow")

    def client(self, worker: int = 0) -> Path:
        return self.path / ("client.arrow" if worker == 0 else f"client-{worker}.arrow")

    def all_requests(self) -> list[Path]:
        return sorted(self.path.glob("requests*.arrow"))

    def all_client(self) -> list[Path]:
        return sorted(self.path.glob("client*.arrow"))

    @property
    def clocks(self) -> Path:
        return self.path / "clocks.arrow"

    @property
    def steps(self) -> Path:
        return self.path / "steps.arrow"

    @property
    def gil(self) -> Path:
        return self.path / "gil.arrow"

    @property
    def gc(self) -> Path:
        return self.path / "gc.arrow"

    @property
    def host(self) -> Path:
        return self.path / "host.arrow"

    @property
    def server(self) -> Path:
        return self.path / "server.arrow"

    @property
    def stacks(self) -> Path:
        return self.path / "stacks.raw"

    @property
    def server_log(self) -> Path:
        return self.path / "server.log"

    @property
    def client_log(self) -> Path:
        return self.path / "client.log"

    def read(self) -> CellInfo:
        return CellInfo.from_json(read_json(self.json))

    def write(self, info: CellInfo) -> None:
        write_json(self.json, info.to_json())


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """The paths inside a sweep's folder."""

    path: Path

    @property
    def json(self) -> Path:
        return self.path / "sweep.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def cells(self) -> Path:
        return self.path / "cells"

    def cell(self, slug: str) -> CellFolder:
        return CellFolder(self.cells / slug)

    def cell_folders(self) -> list[CellFolder]:
        """All cells that have begun, in the order in which they ran."""
        return [CellFolder(path.parent) for path in sorted(self.cells.glob("*/cell.json"))]

    def read(self) -> dict[str, Any]:
        return read_json(self.json)
