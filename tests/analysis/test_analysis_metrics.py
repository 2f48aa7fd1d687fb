"""Metrics of cells whose numbers can be worked out by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import Recipe, write_sweep

from analysis.metrics import CellMetrics, Spread, measure
from analysis.tables import load_sweep
from contracts.folder import Phases, SweepFolder


def metrics_of(path: Path, recipe: Recipe = Recipe()) -> CellMetrics:  # noqa: B008 - frozen
    return measure(load_sweep(write_sweep(path, [("1", 8, 0, recipe)])).per_cell[0])


def test_latencies_are_those_that_were_written(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path)
    assert (metrics.ttft_ms.p50, metrics.ttft_ms.p99) == (100, 100)
    assert metrics.itl_ms.mean == metrics.icl_ms.mean == metrics.tpot_ms.mean == 10
    assert metrics.e2e_ms.p90 == 200
    assert metrics.output_speed_tok_s_user.p50 == 100


def test_throughput_is_what_users_over_cycle_time_gives(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path)  # 8 users, 0.2 s a request, 11 tokens each
    assert metrics.req_s == pytest.approx(40)
    assert metrics.output_tok_s == pytest.approx(440)


def test_as_many_are_in_flight_as_there_are_users(tmp_path: Path) -> None:
    assert metrics_of(tmp_path).in_flight_mean == pytest.approx(8)


def test_failures_count_but_do_not_touch_latencies(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path, Recipe(fail_every=4))
    assert metrics.errors == {"http_500": metrics.failures}
    assert metrics.failures == metrics.requests // 4
    assert metrics.ttft_ms.p99 == 100
    assert metrics.ttft_ms.n < metrics.requests_in_window
    assert metrics.req_s < 40


def test_messages_a_request_are_sums_over_the_steps_of_the_window(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path, Recipe(messages_a_request=0.25))
    assert metrics.rpc_messages_per_request == pytest.approx(0.25, rel=0.02)
    assert metrics.rpc_requests == pytest.approx(160, abs=2)  # 40 a second over 4 s


def test_steps_are_those_whose_end_lies_in_the_window(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path)
    assert metrics.host_step_ms.n == 400
    assert metrics.host_step_ms.mean == pytest.approx(10)
    assert metrics.device_step_ms.mean == pytest.approx(3)
    assert metrics.steps_lost == 0


def test_gil_shares_are_by_thread_and_add_up(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path)
    assert metrics.gil_held_fraction == {"executor_loop": 0.6, "rpc_server_thread": 0.2}
    assert metrics.gil_held_total == pytest.approx(0.8)
    assert metrics.gil_held_executor == pytest.approx(0.6)


def test_the_client_is_audited(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path, Recipe(load_cpu=0.4, lag_ms=3))
    assert metrics.client_cpu_fraction == pytest.approx(0.4)
    assert metrics.client_lag_ms.p99 == pytest.approx(3)


def test_the_servers_own_ttft_is_joined_by_id(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path)
    assert metrics.server_ttft_ms.p50 == 97
    assert metrics.client_minus_server_ttft_ms == pytest.approx(3)


def test_a_cell_without_a_window_has_counts_and_nothing_else(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 0, Recipe())])
    folder = SweepFolder(tmp_path).cell_folders()[0]
    folder.write(replace(folder.read(), state="failed", phases=Phases()))
    metrics = measure(load_sweep(tmp_path).per_cell[0])
    assert metrics.requests > 0
    assert metrics.ttft_ms is metrics.req_s is metrics.in_flight_mean is metrics.host_step_ms is None


def test_a_spread_leaves_out_what_is_not_a_number() -> None:
    assert Spread.of([1.0, float("nan"), 3.0]) == Spread(2.0, 2.8, 2.98, 2.0, 2)
    assert Spread.of([float("nan")]) is None
