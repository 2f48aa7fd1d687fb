"""Service-level objectives: which share of requests kept to them, the goodput, the highest concurrency that meets them.

An objective is a list of terms such as `ttft_ms:p99<2000,tpot_ms:p95<60`: at least 99 % of the requests that started in
the steady window have a TTFT below 2 s, and so on. A failed request keeps to nothing; one that the load itself cut does
not count. Goodput is requests a second that completed in the window and kept to the bound of every term, whatever the
percentile.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.plan import Setting
from analysis.tables import CellTables
from contracts.errors import UsageError

METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
DEFAULT_PERCENT = 99.0
_TERM = re.compile(r"(?P<metric>\w+)(?::p(?P<percent>\d+(?:\.\d+)?))?<(?P<bound>\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Term:
    """At least `percent` % of the requests have `metric` below `bound` (ms)."""

    metric: str
    percent: float
    bound: float

    @property
    def text(self) -> str:
        return f"{self.metric}:p{self.percent:g}<{self.bound:g}"


@dataclass(frozen=True, slots=True)
class Kept:
    """One cell held against the objective: by term the share of requests that kept to it; `met` if enough of all did.

    `goodput_req_s` None without a window.
    """

    shares: tuple[float, ...]
    met: bool
    goodput_req_s: float | None


@dataclass(frozen=True, slots=True)
class SloRow:
    """A setting at a concurrency, over its finished cells: means, and how many cells met the objective."""

    setting: Setting
    concurrency: int
    cells: int
    met: int
    shares: tuple[float, ...]
    goodput_req_s: float | None


@dataclass(frozen=True, slots=True)
class SloStudy:
    """`highest` is by setting the greatest concurrency that every cell met, as did all below it; None if none did."""

    terms: tuple[Term, ...]
    rows: tuple[SloRow, ...]
    highest: tuple[tuple[Setting, int | None], ...]


def parse_slo(text: str) -> tuple[Term, ...]:
    """Read an objective. Raises UsageError."""
    terms = []
    for part in text.replace(" ", "").split(","):
        match = _TERM.fullmatch(part)
        if match is None or match["metric"] not in METRICS:
            raise UsageError(f"--slo {part}: expected METRIC:pNN<MS, as in ttft_ms:p99<2000; METRIC of {METRICS}")
        percent = float(match["percent"] or DEFAULT_PERCENT)
        if not 0 < percent < 100:
            raise UsageError(f"--slo {part}: a percentile lies between 0 and 100")
        terms.append(Term(match["metric"], percent, float(match["bound"])))
    if len({term.metric for term in terms}) != len(terms):
        raise UsageError(f"--slo {text}: each metric once, please")
    return tuple(terms)


def hold(cell: CellTables, terms: Sequence[Term]) -> Kept | None:
    """Hold a cell against the objective; None when it has no request that counts."""
    counted = cell.requests[cell.requests["in_window"] & (cell.requests["error_kind"] != "aborted")]
    if counted.empty or cell.window is None:
        return None
    shares = tuple(float(_keeps(counted, term).mean()) for term in terms)
    met = all(share >= term.percent / 100 for share, term in zip(shares, terms, strict=True))
    ended = cell.requests[cell.requests["success"] & cell.window.holds(cell.requests["end_ns"])]
    good = pd.Series(data=True, index=ended.index)
    for term in terms:
        good &= _keeps(ended, term)
    return Kept(shares, met, float(good.sum()) / cell.window.length_s)


def _keeps(requests: pd.DataFrame, term: Term) -> "pd.Series[bool]":
    """Say for each request whether it keeps to a bound; a single token has no TPOT, and so none that is too long."""
    below = requests[term.metric] < term.bound
    return below | (requests["success"] & requests[term.metric].isna()) if term.metric == "tpot_ms" else below


def study_slo(cells: Sequence[CellTables], settings: Sequence[Setting], terms: Sequence[Term]) -> SloStudy:
    """Hold all finished cells against the objective."""
    rows = []
    concurrencies = sorted({cell.info.concurrency for cell in cells})
    for setting in settings:
        for concurrency in concurrencies:
            kept = [
                one
                for cell in cells
                if cell.done and cell.setting == setting and cell.info.concurrency == concurrency
                if (one := hold(cell, terms)) is not None
            ]
            if not kept:
                continue
            goodput = [one.goodput_req_s for one in kept if one.goodput_req_s is not None]
            rows.append(
                SloRow(
                    setting=setting,
                    concurrency=concurrency,
                    cells=len(kept),
                    met=sum(one.met for one in kept),
                    shares=tuple(sum(values) / len(kept) for values in zip(*(one.shares for one in kept), strict=True)),
                    goodput_req_s=sum(goodput) / len(goodput) if goodput else None,
                )
            )
    highest = tuple((setting, _highest([row for row in rows if row.setting == setting])) for setting in settings)
    return SloStudy(tuple(terms), tuple(rows), highest)


def _highest(rows: Sequence[SloRow]) -> int | None:
    highest = None
    for row in rows:
        if row.met < row.cells:
            break
        highest = row.concurrency
    return highest
