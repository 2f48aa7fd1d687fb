"""A sweep's folder as tidy pandas frames, one call; times stay CLOCK_MONOTONIC ns, durations are ms.

Chunk arrivals are reduced batch by batch (analysis.requests), so a cell of a million requests never lies in memory
with all its chunks. Missing and cut-off record files are what a kill leaves: they give short or empty frames.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.clocks import Clocks, load_clocks
from analysis.gil.looks import load_gil
from analysis.gil.stacks import Holders, load_holders
from analysis.plan import Setting, SweepInfo
from analysis.requests import Gaps, load_requests
from analysis.window import NS_PER_MS, Window
from contracts.arrow import read_table
from contracts.errors import FormatError
from contracts.folder import CellFolder, CellInfo, SweepFolder
from contracts.records import CLIENT, GC, HOST, SERVER, STEPS, GilRow, RecordType


@dataclass(frozen=True, slots=True)
class CellTables:
    """One cell: what cell.json says and its records. `window` is None when the cell did not get through it.

    requests  one row a request: the record's columns less the chunk lists, and those of analysis.requests
    steps     one row a turn of the executor loop, with `in_window`
    host      CPU and run-queue counters a process (`tid` is NA) or thread
    client    the load processes about themselves, with `in_window`
    server    the server's own times a request, with `server_ttft_ms`
    gaps      inter-chunk gaps of the successful requests that started in the window
    pauses    the garbage collector's pauses that the server logged, with `pause_ms` and `in_window`; `logs_pauses` says
              whether a record of them is there at all
    holders   who held the GIL, None without samples
    gil       the wait sampler's looks, empty without
    clocks    the clocks of other load machines; times in requests and client are on this machine's already
    """

    info: CellInfo
    setting: Setting
    window: Window | None
    requests: pd.DataFrame
    gaps: Gaps
    steps: pd.DataFrame
    host: pd.DataFrame
    client: pd.DataFrame
    server: pd.DataFrame
    holders: Holders | None
    gil: Sequence[GilRow] = ()
    clocks: Clocks = field(default_factory=Clocks)
    pauses: pd.DataFrame = field(default_factory=lambda: _pauses(None, None))
    logs_pauses: bool = False

    @property
    def done(self) -> bool:
        return self.info.state == "done"


@dataclass(frozen=True, slots=True)
class SweepTables:
    """A whole sweep. The frames that span cells carry a column `cell` with the cell's id."""

    path: Path
    info: SweepInfo
    per_cell: tuple[CellTables, ...]

    @property
    def cells(self) -> pd.DataFrame:
        """One row a cell: id, slug, index, block, concurrency, state, setting, `knob.NAME` columns, phases, error."""
        rows = []
        for cell in self.per_cell:
            info = cell.info
            row: dict[str, Any] = {
                "id": info.id,
                "slug": info.slug,
                "index": info.index,
                "block": info.block,
                "concurrency": info.concurrency,
                "state": info.state,
                "setting": cell.setting.label,
            }
            row |= {f"knob.{name}": value for name, value in cell.setting.pairs}
            row |= {name: getattr(info.phases, name) for name in info.phases.__dataclass_fields__}
            rows.append(row | {"started_at": info.started_at, "ended_at": info.ended_at, "error": info.error})
        return pd.DataFrame(rows)

    @property
    def requests(self) -> pd.DataFrame:
        return self._stack(lambda cell: cell.requests)

    @property
    def steps(self) -> pd.DataFrame:
        return self._stack(lambda cell: cell.steps)

    @property
    def host(self) -> pd.DataFrame:
        return self._stack(lambda cell: cell.host)

    @property
    def client(self) -> pd.DataFrame:
        return self._stack(lambda cell: cell.client)

    @property
    def server(self) -> pd.DataFrame:
        return self._stack(lambda cell: cell.server)

    def _stack(self, pick: Callable[[CellTables], pd.DataFrame]) -> pd.DataFrame:
        frames = {cell.info.id: pick(cell) for cell in self.per_cell}
        full = {name: frame for name, frame in frames.items() if len(frame)}
        if not full:
            empty = next(iter(frames.values()), pd.DataFrame())
            return empty.assign(cell=pd.Series(dtype="object"))
        return pd.concat(full, names=["cell"]).reset_index(level="cell").reset_index(drop=True)


def load_sweep(path: Path) -> SweepTables:
    """Load a sweep's folder. Raises contracts.errors.UsageError or FormatError when it is not one."""
    folder = SweepFolder(Path(path))
    info = SweepInfo.from_json(folder.read())
    cells = sorted((load_cell(cell) for cell in folder.cell_folders()), key=lambda cell: cell.info.index)
    return SweepTables(folder.path, info, tuple(cells))


def load_cell(folder: CellFolder) -> CellTables:
    """Load one cell's folder; every record file may be missing."""
    info = folder.read()
    window = Window.of(info.phases)
    held = records_of(folder, info)
    clocks = load_clocks(held.clocks)
    requests, gaps = load_requests(held.all_requests(), window, _span(info), clocks)
    steps = _records([folder.steps], STEPS)
    client = _records(held.all_client(), CLIENT)
    client["t_ns"] -= clocks.shift(client["worker"], client["t_ns"])
    server = _records([held.server], SERVER)
    first = server["server_first_token_ns"].fillna(server["first_token_ns"])
    arrival = server["server_arrival_ns"].fillna(server["arrival_ns"])
    server["server_ttft_ms"] = ((first - arrival) / NS_PER_MS).astype("float64")
    for frame in (steps, client):
        frame["in_window"] = window.holds(frame["t_ns"]) if window else False
    return CellTables(
        info=info,
        setting=Setting.of(info.knobs),
        window=window,
        requests=requests,
        gaps=gaps,
        steps=steps,
        host=_records([folder.host], HOST),
        client=client,
        server=server,
        holders=load_holders(folder.stacks, info.stacks),
        gil=load_gil(folder.gil),
        clocks=clocks,
        pauses=_pauses(folder.gc, window),
        logs_pauses=folder.gc.exists(),
    )


def _pauses(path: Path | None, window: Window | None) -> pd.DataFrame:
    pauses = _records([path] if path else [], GC)
    pauses["pause_ms"] = (pauses["pause_ns"] / NS_PER_MS).astype("float64")
    pauses["in_window"] = window.holds(pauses["t_ns"]) if window else False
    return pauses


def records_of(folder: CellFolder, info: CellInfo) -> CellFolder:
    """Give the folder of a cell's requests: its own, or that of its load's first stage."""
    if info.records is None:
        return folder
    if Path(info.records).name != info.records:
        raise FormatError(f"{folder.json} says that its records are in {info.records!r}, which is no cell's name")
    return CellFolder(folder.path.parent / info.records)


def _span(info: CellInfo) -> Window | None:
    """Give the time of one stage among those of its load; None when the records are this cell's alone."""
    phases = info.phases
    if info.records is None or phases.start_ns is None:
        return None
    return Window(phases.start_ns, phases.drained_ns or phases.steady_end_ns or sys.maxsize)


def _records(paths: Sequence[Path], record: RecordType[Any]) -> pd.DataFrame:
    """Read record files of one kind into a frame with nullable integers, so that a missing time stays missing."""
    frames = [read_table(path, record).to_pandas(types_mapper=_NULLABLE.get) for path in paths if path.exists()]
    if not frames:
        return pd.DataFrame(record.schema().empty_table().to_pandas(types_mapper=_NULLABLE.get))
    joined: pd.DataFrame = pd.concat(frames, ignore_index=True)
    return joined


def _nullable_types() -> dict[Any, Any]:
    import pyarrow as pa

    return {pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}


_NULLABLE = _nullable_types()
