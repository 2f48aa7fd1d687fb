"""Each knob setting against the baseline at each concurrency, paired within blocks.

Blocks are the unit: a block runs every cell once, close in time, so a ratio within a block is free of the machine's
drift between blocks. Effects are ratios, estimated on logs, which is symmetric for "twice" and "half". With one other
setting the interval is the paired t interval; with several they are Dunnett's over the randomised blocks
(analysis.blocks), so that all of a measure's intervals at a concurrency hold at once, at 95 %. With fewer than three
blocks there is no interval and no verdict. Measures and concurrencies are not corrected for one another.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.blocks import Estimate, against_baseline, odd_cell
from analysis.metrics import CellMetrics, Spread
from analysis.plan import Setting
from analysis.tables import CellTables

BLOCKS_FOR_A_VERDICT = 3
THROUGHPUT = "output_tok_s"
OUT_OF_LINE = math.log(1.1)  # less is not worth a warning, however unlikely


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a cell that is compared. `better` is 1 (more is better), -1 (less is) or 0 (a cause, not a goal)."""

    name: str
    label: str
    unit: str
    better: int
    value: Callable[[CellMetrics], float | None]


def _p50(spread: Spread | None) -> float | None:
    return spread.p50 if spread else None


def _p99(spread: Spread | None) -> float | None:
    return spread.p99 if spread else None


def _mean(spread: Spread | None) -> float | None:
    return spread.mean if spread else None


MEASURES = (
    Measure(THROUGHPUT, "Output tokens", "tok/s", 1, lambda cell: cell.output_tok_s),
    Measure("req_s", "Requests", "req/s", 1, lambda cell: cell.req_s),
    Measure("ttft_ms.p50", "TTFT p50", "ms", -1, lambda cell: _p50(cell.ttft_ms)),
    Measure("ttft_ms.p99", "TTFT p99", "ms", -1, lambda cell: _p99(cell.ttft_ms)),
    Measure("itl_ms.p50", "ITL p50", "ms", -1, lambda cell: _p50(cell.itl_ms)),
    Measure("icl_ms.p50", "Chunk gap p50", "ms", -1, lambda cell: _p50(cell.icl_ms)),
    Measure("tpot_ms.p50", "TPOT p50", "ms", -1, lambda cell: _p50(cell.tpot_ms)),
    Measure("e2e_ms.p50", "End to end p50", "ms", -1, lambda cell: _p50(cell.e2e_ms)),
    Measure("host_step_ms.mean", "Host step mean", "ms", -1, lambda cell: _mean(cell.host_step_ms)),
    Measure("host_step_ms.p99", "Host step p99", "ms", -1, lambda cell: _p99(cell.host_step_ms)),
    Measure("rpc_messages_per_request", "RPC messages a request", "", 0, lambda cell: cell.rpc_messages_per_request),
    Measure("gil_wait_ms_per_step.mean", "GIL wait a step", "ms", 0, lambda cell: cell.gil_wait_ms_per_step),
    Measure("gil_probe_ms.mean", "GIL wait a step, by the loop", "ms", 0, lambda cell: _mean(cell.gil_probe_ms)),
    Measure("gil_held_executor", "GIL held by executor loop", "of time", 0, lambda cell: cell.gil_held_executor),
)


@dataclass(frozen=True, slots=True)
class Effect:
    """Another setting's measure over the baseline's. `ratios` has one value a complete block, by `blocks`.

    `ratio` is their geometric mean (where cells are missing, what the other settings tell of a block counts too);
    `base` and `other` are the arithmetic means of the values compared. `low` and `high` bound the ratio's interval,
    None with fewer than three blocks. `verdict` is better, worse, higher, lower (where neither is a goal), no clear
    difference, too few blocks, or no data.
    """

    measure: Measure
    setting: Setting
    concurrency: int
    blocks: tuple[int, ...]
    ratios: tuple[float, ...]
    base: float | None
    other: float | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str

    @property
    def decided(self) -> bool:
        return self.verdict in {"better", "worse", "higher", "lower"}


@dataclass(frozen=True, slots=True)
class OutOfLine:
    """A cell whose throughput is not what its block and its setting have elsewhere; `ratio` to what they have.

    Of two in `cells` (block, setting) either may be the one; see analysis.blocks.odd_cell.
    """

    concurrency: int
    cells: tuple[tuple[int, Setting], ...]
    ratio: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """All effects of a sweep against its baseline. `incomplete` says which pairs lack a cell, in words."""

    baseline: Setting
    settings: tuple[Setting, ...]
    concurrencies: tuple[int, ...]
    blocks: tuple[int, ...]
    effects: tuple[Effect, ...]
    incomplete: tuple[str, ...]
    out_of_line: tuple[OutOfLine, ...] = ()

    def effect(self, measure: str, setting: Setting, concurrency: int) -> Effect | None:
        return next(
            (
                effect
                for effect in self.effects
                if (effect.measure.name, effect.setting, effect.concurrency) == (measure, setting, concurrency)
            ),
            None,
        )


def compare(
    cells: Sequence[tuple[CellTables, CellMetrics]],
    baseline: Setting,
    settings: Sequence[Setting],
    planned_blocks: int | None = None,
) -> Comparison:
    """Compare every setting with the baseline at every concurrency. Only cells that are done take part.

    `settings` fixes the order; the baseline may be among them. Effects without a single complete block are kept,
    with the verdict `no data`, so that a table of them has no holes.
    """
    done = {(cell.setting, cell.info.concurrency, cell.info.block): metrics for cell, metrics in cells if cell.done}
    concurrencies = tuple(sorted({cell.info.concurrency for cell, _ in cells}))
    blocks = tuple(sorted({cell.info.block for cell, _ in cells}))
    if planned_blocks and len(blocks) < planned_blocks:
        blocks += tuple(range(max(blocks, default=-1) + 1, max(blocks, default=-1) + 1 + planned_blocks - len(blocks)))
    present = {(cell.setting, cell.info.concurrency) for cell, _ in cells}
    others = tuple(setting for setting in settings if setting != baseline)
    effects: list[Effect] = []
    incomplete = []
    odd: list[OutOfLine] = []
    for concurrency in concurrencies:
        for setting in others:
            pairs = sum((baseline, concurrency, b) in done and (setting, concurrency, b) in done for b in blocks)
            if pairs < len(blocks) and {(baseline, concurrency), (setting, concurrency)} <= present:
                incomplete.append(f"{setting.label} at {concurrency}: {pairs} of {len(blocks)} blocks complete")
        for measure in MEASURES:
            values = {
                (block, place): measure.value(done[setting, concurrency, block])
                for place, setting in enumerate((baseline, *others))
                for block in blocks
                if (setting, concurrency, block) in done
            }
            effects += _family(measure, others, concurrency, values)
            if measure.name == THROUGHPUT:
                odd += _out_of_line((baseline, *others), concurrency, values)
    ranked = {(concurrency, setting): n for n, (concurrency, setting) in enumerate(_all(concurrencies, others))}
    effects.sort(key=lambda effect: ranked[effect.concurrency, effect.setting])
    return Comparison(baseline, others, concurrencies, blocks, tuple(effects), tuple(incomplete), tuple(odd))


def _all(concurrencies: Sequence[int], settings: Sequence[Setting]) -> list[tuple[int, Setting]]:
    return [(concurrency, setting) for concurrency in concurrencies for setting in settings]


def _family(
    measure: Measure, others: Sequence[Setting], concurrency: int, values: Mapping[tuple[int, int], float | None]
) -> list[Effect]:
    """Compare all settings in one measure. `values` are by (block, setting), the baseline being setting 0."""
    known = {cell: value for cell, value in values.items() if value}  # neither None nor 0
    logs = _logs(known)
    estimates = against_baseline(logs, range(1, len(others) + 1))
    return [
        _effect(measure, setting, concurrency, known, place, estimates.get(place))
        for place, setting in enumerate(others, start=1)
    ]


def _logs(values: Mapping[tuple[int, int], float | None]) -> dict[tuple[int, int], float]:
    return {cell: math.log(value) for cell, value in values.items() if value and value > 0}


def _out_of_line(
    settings: Sequence[Setting], concurrency: int, values: Mapping[tuple[int, int], float | None]
) -> list[OutOfLine]:
    odd = odd_cell(_logs(values), range(1, len(settings)))
    if odd is None or abs(odd.off) < OUT_OF_LINE:
        return []
    return [OutOfLine(concurrency, tuple((block, settings[n]) for block, n in odd.cells), math.exp(odd.off))]


def _effect(
    measure: Measure,
    setting: Setting,
    concurrency: int,
    known: Mapping[tuple[int, int], float],
    place: int,
    estimate: Estimate | None,
) -> Effect:
    blocks = sorted(block for block, setting_ in known if setting_ == place and (block, 0) in known)
    ratio = low = high = None
    if estimate is not None:
        ratio = math.exp(estimate.difference)
        if estimate.reach is not None and len(blocks) >= BLOCKS_FOR_A_VERDICT:
            low, high = (math.exp(estimate.difference + sign * estimate.reach) for sign in (-1, 1))
    return Effect(
        measure=measure,
        setting=setting,
        concurrency=concurrency,
        blocks=tuple(blocks),
        ratios=tuple(float(known[block, place] / known[block, 0]) for block in blocks),
        base=_average([known[block, 0] for block in blocks]),
        other=_average([known[block, place] for block in blocks]),
        ratio=ratio,
        low=low,
        high=high,
        verdict=verdict_of(measure.better, ratio, low, high),
    )


def ratio_interval(ratios: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Geometric mean of paired ratios and the bounds of its 95 % interval (paired t on logs; None below 3 ratios)."""
    if not ratios:
        return None, None, None
    logs = {
        (block, place): math.log(value) for block, ratio in enumerate(ratios) for place, value in ((0, 1.0), (1, ratio))
    }
    estimate = against_baseline(logs, [1])[1]
    middle = math.exp(estimate.difference)
    if estimate.reach is None or len(ratios) < BLOCKS_FOR_A_VERDICT:
        return middle, None, None
    return middle, middle * math.exp(-estimate.reach), middle * math.exp(estimate.reach)


def verdict_of(better: int, ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None:
        return "no data"
    if low is None or high is None:
        return "too few blocks"
    if low <= 1 <= high:
        return "no clear difference"
    if better == 0:
        return "higher" if ratio > 1 else "lower"
    return "better" if (ratio > 1) == (better > 0) else "worse"


def _average(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
