"""A cell's metrics, by the definitions in docs/design.md, computed from raw records only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.gil.holds import LongHolds, study_holds, told_interval_ms
from analysis.gil.looks import GilStudy, study_gil
from analysis.gil.stacks import group_of, is_executor_loop
from analysis.gil.step_parts import StepParts, step_parts
from analysis.tables import CellTables
from analysis.window import NS_PER_MS, Window, counter_rate, in_flight_means

_PERCENTILES = (50, 90, 99)
_ABORTED = "aborted"  # what a request is that the load cut as it was told to


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles (linear interpolation between raw values), mean and number of values."""

    p50: float
    p90: float
    p99: float
    mean: float
    n: int

    @classmethod
    def of(cls, values: Any) -> "Spread | None":
        """Summarise what is finite; None when nothing is. Single precision stays: gaps come by the hundred million."""
        if values is None:
            return None
        array = np.asarray(values)
        if array.dtype != np.float32:
            array = array.astype(np.float64)
        finite = np.isfinite(array)
        if not finite.all():
            array = array[finite]
        if not len(array):
            return None
        p50, p90, p99 = np.percentile(array, _PERCENTILES)
        return cls(float(p50), float(p90), float(p99), float(array.mean(dtype=np.float64)), len(array))


@dataclass(frozen=True, slots=True)
class CellMetrics:
    """One cell in numbers; None where the records do not tell.

    Latencies are of successful requests that started inside the steady window. `requests`, `failures` and
    `errors` (kind -> count) count the whole cell, warm-up and drain included. `req_s` and `output_tok_s` are
    completions (successful) and tokens (of every request) that arrived inside the window, over its length.
    `in_flight_mean` is weighted by time over the window. `rpc_messages` and `rpc_requests` are sums over the steps
    in the window, `steps_lost` iterations that the log skipped there. `gil_held_fraction` is by thread group,
    `client_cpu_fraction` the busiest load process in cores, `client_lag_ms` how late its event loop woke.
    `server_ttft_ms` is the server's own arrival -> first token; `client_minus_server_ttft_ms` the median of the
    differences a request, joined by server_id. `gil` is what the wait sampler saw in the window.
    `gil_probe_ms` is the loop's GIL wait a step by its own account, where the server gives one.
    `arrival_lag_ms` is each request's longest time from an arrival in the kernel to its being seen; `bounded_fraction`
    of the chunks shared a read with a later one, so that their times are upper bounds. A request that the load cut as
    it was told to is among `errors`, but no failure. `long_holds` and `step_parts` are by the wait sampler's looks.
    `gc_pause_ms` is of the collector's pauses that began inside the window, as far as the server logs them; None where
    there were none or no record says.
    """

    window_s: float | None
    requests: int
    requests_in_window: int
    failures: int
    errors: Mapping[str, int]
    ttft_ms: Spread | None
    itl_ms: Spread | None
    itl_absent: str | None
    icl_ms: Spread | None
    tpot_ms: Spread | None
    e2e_ms: Spread | None
    output_speed_tok_s_user: Spread | None
    schedule_lag_ms: Spread | None
    req_s: float | None
    output_tok_s: float | None
    in_flight_mean: float | None
    host_step_ms: Spread | None
    device_step_ms: Spread | None
    steps_lost: int
    rpc_messages: int | None
    rpc_requests: int | None
    gil_held_fraction: Mapping[str, float] | None
    client_cpu_fraction: float | None
    client_lag_ms: Spread | None
    server_ttft_ms: Spread | None
    client_minus_server_ttft_ms: float | None
    gil: GilStudy | None = None
    arrival_lag_ms: Spread | None = None
    bounded_fraction: float | None = None
    gil_probe_ms: Spread | None = None
    long_holds: LongHolds | None = None
    step_parts: StepParts | None = None
    gc_pause_ms: Spread | None = None

    @property
    def rpc_messages_per_request(self) -> float | None:
        """Submit messages over the requests they carried: 1 without batching."""
        if not self.rpc_requests or self.rpc_messages is None:
            return None
        return self.rpc_messages / self.rpc_requests

    @property
    def gil_wait_ms_per_step(self) -> float | None:
        """Mean GIL wait of the executor loop in a step, by the wait sampler."""
        return self.gil.executor_steps.mean_ms if self.gil and self.gil.executor_steps else None

    @property
    def gil_held_total(self) -> float | None:
        """Share of wall time in which anybody held the GIL."""
        return None if self.gil_held_fraction is None else sum(self.gil_held_fraction.values())

    @property
    def gil_held_executor(self) -> float | None:
        """Share of wall time in which the executor loop held the GIL; None when no thread bears its name."""
        if self.gil_held_fraction is None:
            return None
        shares = [share for name, share in self.gil_held_fraction.items() if is_executor_loop(name)]
        return sum(shares) if shares else None


def measure(cell: CellTables) -> CellMetrics:
    """Compute a cell's metrics. Without a steady window only the counts and the GIL shares are known."""
    requests, window = cell.requests, cell.window
    measured = requests[requests["success"] & requests["in_window"]]
    steps = rank_zero(cell.steps)
    steps = steps[steps["in_window"]]
    kinds = requests.loc[~requests["success"], "error_kind"].value_counts()
    joined = _with_server(measured, cell.server)
    ends_ns = steps["t_ns"].to_numpy(dtype=np.int64)
    host_ms = steps["host_step_ms"].to_numpy(dtype=np.float64)
    device_ms, own_wait_ms = (
        steps[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in ("prev_device_step_ms", "gil_wait_ms")
    )
    arrivals = steps["new_requests"].to_numpy(dtype=np.float64, na_value=np.nan)
    icl_ms = Spread.of(cell.gaps.icl_ms)
    gil = study_gil(cell.gil, window, ends_ns, host_ms, arrivals)
    return CellMetrics(
        window_s=window.length_s if window else None,
        requests=len(requests),
        requests_in_window=int(requests["in_window"].sum()),
        failures=int((~requests["success"] & (requests["error_kind"] != _ABORTED)).sum()),
        errors={str(kind): int(count) for kind, count in kinds.items()},
        ttft_ms=Spread.of(measured["ttft_ms"]),
        itl_ms=icl_ms if cell.gaps.itl_ms is cell.gaps.icl_ms else Spread.of(cell.gaps.itl_ms),
        itl_absent=cell.gaps.itl_absent,
        icl_ms=icl_ms,
        tpot_ms=Spread.of(measured["tpot_ms"]),
        e2e_ms=Spread.of(measured["e2e_ms"]),
        output_speed_tok_s_user=Spread.of(measured["output_speed_tok_s_user"]),
        schedule_lag_ms=Spread.of(measured["schedule_lag_ms"]),
        req_s=_completions(requests, window) / window.length_s if window else None,
        output_tok_s=float(requests["tokens_in_window"].sum()) / window.length_s if window else None,
        in_flight_mean=_in_flight(requests, window),
        host_step_ms=Spread.of(steps["host_step_ms"]),
        device_step_ms=Spread.of(steps["prev_device_step_ms"].astype("float64")),
        steps_lost=_lost(steps["iteration"]),
        rpc_messages=_total(steps["rpc_messages"]),
        rpc_requests=_total(steps["rpc_requests"]),
        gil_held_fraction=cell.holders.by_thread if cell.holders else None,
        client_cpu_fraction=_busiest_client(cell.client, window),
        client_lag_ms=Spread.of(
            cell.client.loc[cell.client["in_window"], "lag_ns"].to_numpy(dtype=np.float64) / NS_PER_MS
        ),
        server_ttft_ms=Spread.of(joined["server_ttft_ms"]),
        client_minus_server_ttft_ms=_median(joined["ttft_ms"] - joined["server_ttft_ms"]),
        arrival_lag_ms=Spread.of(measured["client_lag_ns"].to_numpy(dtype=np.float64, na_value=np.nan) / NS_PER_MS),
        bounded_fraction=_bounded(measured),
        gil_probe_ms=Spread.of(steps["gil_wait_ms"].astype("float64")),
        gil=gil,
        long_holds=study_holds(cell.gil, window, group_of, told_interval_ms(cell.info.server)),
        step_parts=step_parts(gil.loop if gil else None, ends_ns, host_ms, device_ms, own_wait_ms),
        gc_pause_ms=Spread.of(cell.pauses.loc[cell.pauses["in_window"], "pause_ms"]),
    )


def _completions(requests: pd.DataFrame, window: Window) -> int:
    return int((requests["success"] & window.holds(requests["end_ns"])).sum())


def _in_flight(requests: pd.DataFrame, window: Window | None) -> float | None:
    if window is None or requests.empty:
        return None
    means = in_flight_means(requests["sent_ns"], requests["end_ns"], [window.start_ns, window.end_ns])
    return float(means[0])


def rank_zero(steps: pd.DataFrame) -> pd.DataFrame:
    """Keep one rank's turns: every rank logs the same iterations, the lowest drives the others."""
    return steps[steps["rank"] == steps["rank"].min()] if len(steps) else steps


def _lost(iterations: "pd.Series[int]") -> int:
    if iterations.empty:
        return 0
    return max(int(iterations.max() - iterations.min()) + 1 - int(iterations.nunique()), 0)


def _total(column: "pd.Series[Any]") -> int | None:
    return int(column.sum()) if column.notna().any() else None


def _busiest_client(client: pd.DataFrame, window: Window | None) -> float | None:
    if window is None:
        return None
    rates = [counter_rate(rows["t_ns"], rows["cpu_ns"], window) for _, rows in client.groupby("worker")]
    known = [rate for rate in rates if rate is not None]
    return max(known) if known else None


def _with_server(measured: pd.DataFrame, server: pd.DataFrame) -> pd.DataFrame:
    """Join by server_id; an id that the server wrote twice counts once."""
    truth = server[["server_id", "server_ttft_ms"]].dropna().drop_duplicates("server_id")
    told = measured.loc[measured["server_id"].notna(), ["server_id", "ttft_ms"]]
    return told.astype({"server_id": "object"}).merge(truth.astype({"server_id": "object"}), on="server_id")


def _bounded(measured: pd.DataFrame) -> float | None:
    """Give the share of chunks whose time is an upper bound, where the client counted them."""
    told = measured[measured["merged_chunks"].notna()]
    chunks = int(told["chunks"].sum())
    return float(told["merged_chunks"].sum()) / chunks if chunks else None


def _median(values: "pd.Series[float]") -> float | None:
    known = values.dropna()
    return float(known.median()) if len(known) else None
