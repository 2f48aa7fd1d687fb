"""One concurrency's part of the report: its plots, its numbers by setting, who held the GIL in which function."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.gil.stacks import is_executor_loop
from analysis.metrics import CellMetrics, Spread
from analysis.plan import Setting
from analysis.report.anatomy import Anatomy, make_anatomy
from analysis.report.plots import Course, Sample, distribution, gil_bars, in_flight
from analysis.report.waits import WaitRow, wait_row
from analysis.study import CellStudy, Study
from analysis.svg import THREAD_COLOURS, Plot
from analysis.text import NOTHING, number, share
from analysis.verdict import gil_shares

TOP_FUNCTIONS = 12
OTHERS = "other threads"


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting's numbers over its finished cells: mean and, with several blocks, (min to max) beneath."""

    setting: str
    index: int
    blocks: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class LimitRow:
    """What limits a setting: the name most of its cells agree on, how many, and one cell's evidence."""

    setting: str
    index: int
    title: str
    agree: str
    sentence: str


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A function that held the GIL: share of wall time by setting, as text and as a bar's width in per cent.

    `colour` is its thread's in the plot beside.
    """

    thread: str
    function: str
    inside: str
    colour: int
    shares: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One concurrency."""

    concurrency: int
    plots: tuple[Plot, ...]
    gil_plot: Plot | None
    threads: tuple[str, ...]
    number_columns: tuple[str, ...]
    numbers: tuple[SettingRow, ...]
    limits: tuple[LimitRow, ...]
    held_columns: tuple[str, ...]
    held: tuple[HeldRow, ...]
    waits: tuple[WaitRow, ...]
    anatomy: Anatomy
    audit_columns: tuple[str, ...]
    audit: tuple[SettingRow, ...]


@dataclass(frozen=True, slots=True)
class _Number:
    label: str
    value: Callable[[CellMetrics], float | None]
    write: Callable[[float | None], str] = number


def _p(name: str, pick: Callable[[CellMetrics], Spread | None]) -> Callable[[CellMetrics], float | None]:
    def value(metrics: CellMetrics) -> float | None:
        spread = pick(metrics)
        return None if spread is None else float(getattr(spread, name))

    return value


_NUMBERS = (
    _Number("Output tok/s", lambda m: m.output_tok_s),
    _Number("Requests/s", lambda m: m.req_s),
    _Number("TTFT p50 ms", _p("p50", lambda m: m.ttft_ms)),
    _Number("TTFT p99 ms", _p("p99", lambda m: m.ttft_ms)),
    _Number("ITL p50 ms", _p("p50", lambda m: m.itl_ms)),
    _Number("ITL p99 ms", _p("p99", lambda m: m.itl_ms)),
    _Number("Host step mean ms", _p("mean", lambda m: m.host_step_ms)),
    _Number("Device step mean ms", _p("mean", lambda m: m.device_step_ms)),
    _Number("RPC messages a request", lambda m: m.rpc_messages_per_request),
    _Number("Failed", lambda m: m.failures),
)
_AUDIT = (
    _Number("In flight, mean", lambda m: m.in_flight_mean),
    _Number("Client CPU, cores", lambda m: m.client_cpu_fraction),
    _Number("Client lag p50 ms", _p("p50", lambda m: m.client_lag_ms)),
    _Number("Client lag p99 ms", _p("p99", lambda m: m.client_lag_ms)),
    _Number("TTFT p50 ms, client", _p("p50", lambda m: m.ttft_ms)),
    _Number("TTFT p50 ms, server", _p("p50", lambda m: m.server_ttft_ms)),
    _Number("Client minus server, median ms", lambda m: m.client_minus_server_ttft_ms),
)


def make_section(study: Study, concurrency: int) -> Section:
    """Work out one concurrency over all settings that have a cell there."""
    settings = [(index, setting) for index, setting in enumerate(study.settings)]
    groups = [(index, setting, study.select(concurrency, setting)) for index, setting in settings]
    groups = [(index, setting, cells) for index, setting, cells in groups if cells]
    sampled = [(setting, gil_shares(cells)) for _, setting, cells in groups]
    sampled = [(setting, shares) for setting, shares in sampled if shares]
    threads = _threads([shares for _, shares in sampled])
    folded = [(setting, _fold(shares, threads)) for setting, shares in sampled]
    return Section(
        concurrency=concurrency,
        plots=tuple(_plots(study, groups, concurrency)),
        gil_plot=gil_bars(
            [(study.brief(setting), shares) for setting, shares in folded], threads, key=f"gil{concurrency}"
        )
        if folded
        else None,
        threads=threads,
        number_columns=tuple(column.label for column in _NUMBERS),
        numbers=tuple(_row(study, index, setting, cells, _NUMBERS) for index, setting, cells in groups),
        limits=tuple(_limit(study, index, setting, cells) for index, setting, cells in groups),
        held_columns=tuple(study.name(setting) for setting, _ in sampled),
        held=tuple(_held([cells for _, setting, cells in groups if setting in dict(sampled)], threads)),
        waits=tuple(_waits(study, groups)),
        anatomy=make_anatomy(study, groups, threads, key=str(concurrency)),
        audit_columns=tuple(column.label for column in _AUDIT),
        audit=tuple(_row(study, index, setting, cells, _AUDIT) for index, setting, cells in groups),
    )


_Group = tuple[int, Setting, list[CellStudy]]


def _waits(study: Study, groups: Sequence[_Group]) -> Iterator[WaitRow]:
    for index, setting, cells in groups:
        seen = [cell.metrics.gil for cell in cells if cell.tables.done and cell.metrics.gil is not None]
        row = wait_row(study.name(setting), index, seen)
        if row is not None:
            yield row


def _plots(study: Study, groups: Sequence[_Group], concurrency: int) -> list[Plot]:
    def samples(values: Callable[[CellStudy], object]) -> list[Sample]:
        return [
            Sample(study.brief(setting), index, [_finite(values(cell)) for cell in cells if cell.tables.done])
            for index, setting, cells in groups
        ]

    def ttft(cell: CellStudy) -> object:
        requests = cell.tables.requests
        return requests.loc[requests["success"] & requests["in_window"], "ttft_ms"]

    def step(cell: CellStudy) -> object:
        steps = cell.tables.steps
        return steps.loc[steps["in_window"], "host_step_ms"]

    key = str(concurrency)
    plots = []
    for name, values, title, label, log in (
        ("ttft", ttft, "Time to first token", "TTFT, log axis", True),
        ("icl", lambda cell: cell.tables.gaps.icl_ms, "Gap between chunks", "gap between chunks, log axis", True),
        ("step", step, "Executor-loop step", "wall time of one turn of the loop, ms", False),
    ):
        drawn = samples(values)
        if any(len(block) for sample in drawn for block in sample.blocks):
            plots.append(distribution(drawn, key=f"{name}{key}", title=title, label=label, log=log))
    courses = [
        course
        for index, setting, cells in groups
        for cell in cells
        if (course := _course(study.brief(setting), index, cell))
    ]
    if courses:
        plots.append(in_flight(courses, concurrency, key=f"flight{key}"))
    return plots


def _finite(values: object) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    array = np.asarray(values)
    finite = np.isfinite(array)
    kept: np.ndarray[tuple[int], np.dtype[np.float64]] = array if finite.all() else array[finite]
    return kept


def _course(name: str, index: int, cell: CellStudy) -> Course | None:
    requests, window = cell.tables.requests, cell.tables.window
    if window is None or requests.empty:
        return None
    return Course(
        name=name,
        index=index,
        sent_ns=requests["sent_ns"].to_numpy(dtype=np.int64),
        end_ns=requests["end_ns"].to_numpy(dtype=np.int64),
        start_ns=int(requests["sent_ns"].min()),
        steady_start_ns=window.start_ns,
        steady_end_ns=window.end_ns,
        last_ns=int(requests["end_ns"].max()),
    )


def _row(
    study: Study, index: int, setting: Setting, cells: Sequence[CellStudy], columns: Sequence[_Number]
) -> SettingRow:
    done = [cell.metrics for cell in cells if cell.tables.done]
    values = []
    for column in columns:
        known = [value for metrics in done if (value := column.value(metrics)) is not None]
        if not known:
            values.append((NOTHING, ""))
            continue
        whole = all(isinstance(value, int) for value in known)
        mean = f"{sum(known):,}" if whole else column.write(sum(known) / len(known))  # counts add up over blocks
        low, high = column.write(min(known)), column.write(max(known))
        values.append((mean, "" if whole or low == high else f"{low} to {high}"))
    return SettingRow(study.name(setting), index, f"{len(done)} of {len(cells)} cells", tuple(values))


def _limit(study: Study, index: int, setting: Setting, cells: Sequence[CellStudy]) -> LimitRow:
    found = [cell.limit for cell in cells if cell.limit is not None]
    if not found:
        reason = next((cell.tables.info.error for cell in cells if cell.tables.info.error), None)
        return LimitRow(study.name(setting), index, "not known", "", reason or "No cell got through its steady window.")
    (name, count), *_ = Counter(limit.name for limit in found).most_common(1)
    example = next(limit for limit in found if limit.name == name)
    agree = "" if len(found) == 1 else f"{count} of {len(found)} blocks"
    return LimitRow(study.name(setting), index, example.title, agree, example.sentence)


def _threads(shares: Sequence[dict[str, float]]) -> tuple[str, ...]:
    """Choose the thread groups that get a colour: the executor loop, then the largest; the others fold into one."""
    largest: dict[str, float] = {}
    for by_thread in shares:
        for name, value in by_thread.items():
            largest[name] = max(largest.get(name, 0.0), value)
    ranked = sorted(largest, key=lambda name: (not is_executor_loop(name), -largest[name], name))
    if len(ranked) <= THREAD_COLOURS:
        return tuple(ranked)
    return (*ranked[: THREAD_COLOURS - 1], OTHERS)


def _fold(shares: dict[str, float], threads: Sequence[str]) -> dict[str, float]:
    folded = {name: value for name, value in shares.items() if name in threads}
    rest = sum(value for name, value in shares.items() if name not in threads)
    return folded | {OTHERS: rest} if OTHERS in threads else folded


def _held(groups: Sequence[Sequence[CellStudy]], threads: Sequence[str]) -> list[HeldRow]:
    """Rank functions by their largest mean share under any setting; a setting's share is over its finished cells."""
    means = []
    for cells in groups:
        holders = [cell.tables.holders for cell in cells if cell.tables.done and cell.tables.holders]
        total: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        for one in holders:
            for (thread, function), value in one.by_function.items():
                total[thread, function.own, function.leaf] += value / len(holders)
        means.append(total)
    largest = {key: max(mean[key] for mean in means) for mean in means for key in mean}
    top = sorted(largest, key=lambda key: (-largest[key], key))[:TOP_FUNCTIONS]
    scale = max(largest.values(), default=1.0)
    return [
        HeldRow(
            thread=thread,
            function=own,
            inside="" if leaf == own else leaf,
            colour=threads.index(thread) if thread in threads else THREAD_COLOURS - 1,
            shares=tuple((share(mean[thread, own, leaf]), 100 * mean[thread, own, leaf] / scale) for mean in means),
        )
        for thread, own, leaf in top
    ]
