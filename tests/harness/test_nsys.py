"""Traces of Nsight Systems, built to the documented schema of its SQLite export, with waits that are known exactly.

Ten turns of 10 ms. In each the executor loop waits 2 ms for the GIL, while another thread holds it in
`RpcWorker.submit` for the first half of the wait and in `pickle.loads` for the second; then the loop holds it for 6 ms.
"""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from analysis.study import study_sweep
from contracts.errors import FormatError, UsageError
from harness.imports.nsys import innermost, read_trace
from loadgen.cli.main import main

MS = 1_000_000
PID, LOOP, OTHER = 4242, 4242, 4250
T0 = 5_000 * MS
DOMAIN, APP = 7, 0


def global_tid(tid: int, pid: int = PID) -> int:
    return (1 << 56) | (pid << 24) | tid


def trace(path: Path, *, string_ids: bool = True, steps: bool = True, gil: bool = True, pid: int = PID) -> Path:
    database = sqlite3.connect(path)
    database.execute(
        "CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, "
        "globalTid INTEGER, textId INTEGER, domainId INTEGER NOT NULL)"
    )
    strings: dict[str, int] = {}

    def event(start: int, end: int | None, kind: int, text: str, tid: int | None, domain: int) -> None:
        place = strings.setdefault(text, len(strings)) if string_ids else None
        row = (start, end, kind, None if string_ids else text, tid and global_tid(tid, pid), place, domain)
        database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    event(0, None, 75, "CCCL", None, 1)
    if gil:
        event(0, None, 75, "GIL Trace", None, DOMAIN)
    for n in range(11):
        t = T0 + n * 10 * MS
        if steps:
            event(t, t + 9 * MS, 59, f"[Executor] _forward_step {100 + n}: 0 ctx reqs, 64 gen reqs", LOOP, APP)
        event(t + MS, t + 3 * MS, 59, "RpcWorker.submit", OTHER, APP)
        event(t + 2 * MS, t + 3 * MS, 59, "pickle.loads", OTHER, APP)
        if gil:
            event(t + MS, t + 3 * MS, 59, "Waiting for GIL", LOOP, DOMAIN)
            event(t + MS, t + 3 * MS, 59, "Holding GIL", OTHER, DOMAIN)
            event(t + 3 * MS, t + 9 * MS, 59, "Holding GIL", LOOP, DOMAIN)
    if string_ids:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
        database.execute("CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER)")
        strings.setdefault("rpc_server_thread", len(strings))
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(n, text) for text, n in strings.items()])
        named = (strings["rpc_server_thread"], 1, global_tid(OTHER, pid))
        database.execute("INSERT INTO ThreadNames VALUES (?, ?, ?)", named)
    database.commit()
    database.close()
    return path


@pytest.mark.parametrize("string_ids", [True, False])
def test_waits_holds_and_turns_are_read_whichever_way_texts_are_stored(tmp_path: Path, string_ids: bool) -> None:
    found = read_trace(trace(tmp_path / "t.sqlite", string_ids=string_ids))
    assert (found.pid, found.executor, len(found.turns)) == (PID, LOOP, 10)
    assert [turn.iteration for turn in found.turns] == list(range(100, 110))
    starts, ends = (np.array([getattr(turn, side) for turn in found.turns]) for side in ("start_ns", "end_ns"))
    assert found.waits[LOOP].total_ns(starts, ends).tolist() == [2 * MS] * 10
    assert found.holds[LOOP].total_ns(starts, ends).tolist() == [6 * MS] * 10
    assert found.waits[OTHER].total_ns(starts, ends).tolist() == [0] * 10
    assert found.names[OTHER] == ("rpc_server_thread" if string_ids else f"thread {OTHER}")


def test_the_report_of_a_trace_holds_the_exact_wait_and_the_blame(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nsys", str(trace(tmp_path / "t.sqlite")), "--out", str(tmp_path / "out")]) == 0
    assert "10 steps" in capsys.readouterr().out
    assert "Who waited for it" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    (cell,) = study_sweep(tmp_path / "out").cells
    assert cell.metrics.gil_probe_ms is not None
    assert cell.metrics.host_step_ms is not None
    assert (cell.metrics.gil_probe_ms.mean, cell.metrics.host_step_ms.mean) == (2.0, 10.0)
    gil = cell.metrics.gil
    assert gil is not None
    assert gil.executor_steps is not None
    assert gil.executor_steps.mean_ms == pytest.approx(2.0, abs=0.2)
    shares = {(part.name, part.function): part.fraction for part in gil.blame["executor_loop"]}
    assert set(shares) == {("rpc_server_thread", "RpcWorker.submit"), ("rpc_server_thread", "pickle.loads")}
    assert shares["rpc_server_thread", "pickle.loads"] == pytest.approx(0.5, abs=0.1)


def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nsys export"):
        read_trace(tmp_path / "absent")
    (tmp_path / "text").write_text("no database at all, but a text that is long enough to be looked at" * 40)
    with pytest.raises(FormatError, match="no SQLite export"):
        read_trace(tmp_path / "text")
    sqlite3.connect(tmp_path / "empty").close()
    with pytest.raises(FormatError, match="NVTX_EVENTS"):
        read_trace(tmp_path / "empty")
    with pytest.raises(FormatError, match="python-gil"):
        read_trace(trace(tmp_path / "nogil", gil=False))
    with pytest.raises(UsageError, match="--step"):
        read_trace(trace(tmp_path / "nosteps", steps=False))
    with pytest.raises(UsageError, match="regular expression"):
        read_trace(trace(tmp_path / "regex"), step="(")
    with pytest.raises(UsageError, match="4242"):
        read_trace(tmp_path / "regex", pid=7)


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    assert main(["nsys", str(trace(tmp_path / "t.sqlite")), "--out", str(tmp_path / "out")]) == 2
    assert "not empty" in capsys.readouterr().err


def test_nested_ranges_flatten_to_the_innermost() -> None:
    spans = innermost([(0, 100, "a"), (10, 50, "b"), (20, 30, "c"), (60, 70, "d"), (200, 210, "e")])
    found = list(zip(spans.start_ns.tolist(), spans.end_ns.tolist(), spans.texts, strict=True))
    assert found == [
        (0, 10, "a"), (10, 20, "b"), (20, 30, "c"), (30, 50, "b"), (50, 60, "a"), (60, 70, "d"), (70, 100, "a"),
        (200, 210, "e"),
    ]  # fmt: skip
    assert spans.covering(np.array([5, 25, 99, 150, 205, 500])).tolist() == [0, 2, 6, -1, 7, -1]
