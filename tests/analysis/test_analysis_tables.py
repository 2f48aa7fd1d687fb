"""What load_sweep makes of record files, whole, cut off and missing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic import KNOB, MS, T0, Recipe, S, write_sweep

from analysis.tables import CellTables, load_sweep
from analysis.window import Window, counter_rate, in_flight_means
from contracts.arrow import write_rows
from contracts.errors import FormatError, UsageError
from contracts.folder import SweepFolder, write_json
from contracts.records import CLIENT, REQUESTS, RequestRow


def one_cell(path: Path, recipe: Recipe) -> CellTables:
    return load_sweep(write_sweep(path, [("1", 8, 0, recipe)])).per_cell[0]


def row(**changes: Any) -> RequestRow:
    """A request that succeeded: sent at 0, tokens at 10, 20 and 40 ms."""
    plain = RequestRow(
        worker=0, seq=0, user=0, server_id=None, prompt_tokens=4, max_tokens=3, scheduled_ns=None, sent_ns=T0,
        first_byte_ns=T0 + MS, chunk_ns=[T0 + 10 * MS, T0 + 20 * MS, T0 + 40 * MS], chunk_tokens=[1, 1, 1],
        end_ns=T0 + 41 * MS, status=200, finish_reason="length", output_tokens=3, output_tokens_source="usage",
        error_kind=None, error=None,
    )  # fmt: skip
    return replace(plain, **changes)


def load_rows(path: Path, rows: list[RequestRow]) -> CellTables:
    """Load a cell whose window is its first second and whose requests are the given ones."""
    write_sweep(path, [("1", 8, 0, Recipe(warmup_s=0, window_s=1))])
    write_rows(SweepFolder(path).cell_folders()[0].requests(), REQUESTS, rows)
    return load_sweep(path).per_cell[0]


def test_ttft_runs_from_the_first_byte_sent_to_the_first_token(tmp_path: Path) -> None:
    requests = load_rows(tmp_path, [row()]).requests
    assert requests.loc[0, "ttft_ms"] == 10


def test_tpot_spreads_first_to_last_token_over_the_tokens_after_the_first(tmp_path: Path) -> None:
    requests = load_rows(tmp_path, [row()]).requests
    assert requests.loc[0, "tpot_ms"] == 15
    assert requests.loc[0, "output_speed_tok_s_user"] == pytest.approx(1000 / 15)


def test_e2e_ends_with_the_response(tmp_path: Path) -> None:
    assert load_rows(tmp_path, [row()]).requests.loc[0, "e2e_ms"] == 41


def test_itl_divides_a_gap_by_the_tokens_of_the_later_chunk(tmp_path: Path) -> None:
    gaps = load_rows(tmp_path, [row(chunk_tokens=[1, 2, 4], output_tokens=7)]).gaps
    assert gaps.icl_ms.tolist() == [10, 20]
    assert gaps.itl_ms.tolist() == [5, 5]


def test_itl_is_known_when_the_usage_equals_the_number_of_chunks(tmp_path: Path) -> None:
    gaps = load_rows(tmp_path, [row(chunk_tokens=None)]).gaps
    assert gaps.itl_ms.tolist() == [10, 20]


def test_itl_is_absent_with_a_reason_when_the_tokens_of_chunks_are_not_known(tmp_path: Path) -> None:
    gaps = load_rows(tmp_path, [row(chunk_tokens=None, output_tokens=9)]).gaps
    assert gaps.itl_ms is None
    assert "known for 0%" in gaps.itl_absent


def test_counting_chunks_as_tokens_does_not_make_itl_known(tmp_path: Path) -> None:
    gaps = load_rows(tmp_path, [row(chunk_tokens=None, output_tokens_source="chunks")]).gaps
    assert gaps.itl_ms is None


def test_gaps_never_reach_from_one_request_into_the_next(tmp_path: Path) -> None:
    second = row(seq=1, sent_ns=T0 + 500 * MS, chunk_ns=[T0 + 600 * MS, T0 + 607 * MS], chunk_tokens=[1, 1])
    gaps = load_rows(tmp_path, [row(), row(seq=2, chunk_ns=[], chunk_tokens=None, error_kind="timeout"), second]).gaps
    assert gaps.icl_ms.tolist() == [10, 20, 7]


def test_a_failure_is_counted_but_has_no_latency(tmp_path: Path) -> None:
    requests = load_rows(tmp_path, [row(error_kind="stream_error", error="boom")]).requests
    assert not requests.loc[0, "success"]
    assert requests.loc[0, ["ttft_ms", "tpot_ms", "e2e_ms", "output_speed_tok_s_user"]].isna().all()


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"status": 503}, "http_503"),
        ({"chunk_ns": [], "chunk_tokens": None, "output_tokens": 0}, "no_token"),
    ],
)
def test_what_the_client_let_pass_but_the_definition_does_not_is_a_failure(
    tmp_path: Path, changes: dict[str, Any], kind: str
) -> None:
    assert load_rows(tmp_path, [row(**changes)]).requests.loc[0, "error_kind"] == kind


def test_a_request_that_asked_for_no_token_succeeds_without_one(tmp_path: Path) -> None:
    empty = row(chunk_ns=[], chunk_tokens=None, output_tokens=0, max_tokens=0)
    requests = load_rows(tmp_path, [empty]).requests
    assert requests.loc[0, "success"]
    assert np.isnan(requests.loc[0, "ttft_ms"])


def test_one_chunk_with_many_tokens_has_no_tpot(tmp_path: Path) -> None:
    requests = load_rows(tmp_path, [row(chunk_ns=[T0 + 10 * MS], chunk_tokens=[3])]).requests
    assert np.isnan(requests.loc[0, "tpot_ms"])


def test_the_window_takes_requests_that_start_inside_and_tokens_that_arrive_inside(tmp_path: Path) -> None:
    early = row(sent_ns=T0 - 5 * MS)
    late = row(seq=1, sent_ns=T0 + 999 * MS, chunk_ns=[T0 + 999 * MS + 1, T0 + S, T0 + S + 1], end_ns=T0 + 2 * S)
    requests = load_rows(tmp_path, [early, late, row(seq=2, sent_ns=T0 + S)]).requests
    assert requests["in_window"].tolist() == [False, True, False]
    assert requests["tokens_in_window"].tolist() == [3, 1, 3]


def test_tokens_of_uncounted_chunks_arrive_in_equal_parts(tmp_path: Path) -> None:
    late = row(chunk_ns=[T0 + 1, T0 + 2, T0 + S], chunk_tokens=None, output_tokens=9)
    assert load_rows(tmp_path, [late]).requests.loc[0, "tokens_in_window"] == pytest.approx(6)


def test_all_load_processes_of_a_cell_are_read(tmp_path: Path) -> None:
    cell = one_cell(tmp_path, Recipe(workers=3))
    assert sorted(cell.requests["worker"].unique()) == [0, 1, 2]
    assert cell.client["worker"].nunique() == 3
    assert cell.requests["seq"].is_unique


def test_a_cut_off_file_gives_the_batches_before_the_cut(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 0, Recipe())])
    file = SweepFolder(tmp_path).cell_folders()[0].requests()
    rows = load_sweep(tmp_path).per_cell[0].requests
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert len(load_sweep(tmp_path).per_cell[0].requests) < len(rows)


@pytest.mark.parametrize("left", [1, 7, 8, 100])
def test_a_file_killed_within_its_schema_holds_no_rows(tmp_path: Path, left: int) -> None:
    write_sweep(tmp_path, [("1", 8, 0, Recipe())])
    file = SweepFolder(tmp_path).cell_folders()[0].requests()
    file.write_bytes(file.read_bytes()[:left])
    assert load_sweep(tmp_path).per_cell[0].requests.empty


def test_a_file_that_is_no_arrow_stream_is_refused_by_name(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 0, Recipe())])
    SweepFolder(tmp_path).cell_folders()[0].steps.write_text("not a record file")
    with pytest.raises(FormatError, match=r"steps\.arrow is not an Arrow stream"):
        load_sweep(tmp_path)


def test_missing_and_empty_files_give_empty_frames(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 0, Recipe())])
    folder = SweepFolder(tmp_path).cell_folders()[0]
    for file in folder.path.glob("*.arrow"):
        file.unlink()
    folder.stacks.unlink()
    folder.client().touch()
    sweep = load_sweep(tmp_path)
    assert sweep.per_cell[0].holders is None
    for frame in (sweep.requests, sweep.steps, sweep.host, sweep.client, sweep.server):
        assert frame.empty
        assert "cell" in frame.columns


def test_an_unknown_version_is_refused_by_name(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 0, Recipe())])
    file = SweepFolder(tmp_path).cell_folders()[0].client()
    with open(file, "wb") as out:
        import pyarrow as pa

        pa.ipc.new_stream(out, replace(CLIENT, version=99).schema()).close()
    with pytest.raises(FormatError, match="version 99"):
        load_sweep(tmp_path)


def test_a_folder_without_sweep_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sweep\.json does not exist"):
        load_sweep(tmp_path)


def test_a_sweep_json_that_says_almost_nothing_is_enough(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 0, Recipe())])
    write_json(tmp_path / "sweep.json", {"format": 1, "plan": {"factors": {KNOB: ["1"]}}})
    sweep = load_sweep(tmp_path)
    assert sweep.info.baseline.label == f"{KNOB}=1"
    assert sweep.info.command == ()


def test_the_cells_frame_has_a_row_a_cell_and_a_column_a_knob(tmp_path: Path) -> None:
    cells = load_sweep(write_sweep(tmp_path, [("1", 8, 0, Recipe()), ("32", 8, 0, Recipe())])).cells
    assert cells[f"knob.{KNOB}"].tolist() == ["1", "32"]
    assert cells["state"].tolist() == ["done", "done"]


def test_frames_across_cells_name_the_cell(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, [("1", 8, 0, Recipe()), ("32", 8, 0, Recipe())]))
    assert set(sweep.requests["cell"]) == set(sweep.cells["id"])


def test_server_ttft_prefers_the_front_ends_times(tmp_path: Path) -> None:
    server = one_cell(tmp_path, Recipe()).server
    assert server["server_ttft_ms"].iloc[0] == 97  # arrival +1 ms, first token -2 ms of 100


def test_in_flight_is_weighted_by_time() -> None:
    # one request over the first half, two over the second
    means = in_flight_means([0, 5 * S], [10 * S, 20 * S], [0, 10 * S])
    assert means.tolist() == pytest.approx([1.5])


def test_a_counters_rate_is_interpolated_at_the_windows_edges() -> None:
    t = pd.Series([0, 10, 20], dtype="Int64") * S
    assert counter_rate(t, pd.Series([0, 10, 10]) * S, Window(5 * S, 15 * S)) == pytest.approx(0.5)


def test_a_counter_that_misses_most_of_the_window_has_no_rate() -> None:
    assert counter_rate([0, S], [0, S], Window(0, 10 * S)) is None
