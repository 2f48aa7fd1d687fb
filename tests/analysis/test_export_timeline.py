"""Timelines and stacks: what they draw is what analysis says, and they keep to their formats."""

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from synthetic import MS, T0, Recipe, S, write_sweep

from analysis.export.gil_tracks import HOLDS, RUNS, WAITS, holder_states, names_of, thread_states
from analysis.export.perfetto import Limits, perfetto
from analysis.export.speedscope import speedscope
from analysis.metrics import measure
from analysis.tables import CellTables, load_cell
from contracts.arrow import write_rows
from contracts.errors import UsageError
from contracts.folder import CellFolder, SweepFolder
from contracts.records import GIL, GilRow

ROOT = Path(__file__).parents[2]
SAMPLE = SweepFolder(ROOT / "results" / "sample").cell_folders()
LOOP, OTHER, HOSTILE = 11, 12, '</script>"\\\n\x00\u202e'


def look(
    t_ns: int, holder: int | None, waiting: Sequence[int] = (), running: Sequence[int] = (), **more: Any
) -> GilRow:
    values: dict[str, Any] = {
        "t_ns": t_ns, "locked": holder is not None, "holder": holder, "holder_sleeps": False,
        "function": None if holder is None else f"f{holder}", "waiting": waiting, "runnable": [], "running": running,
        "cold": [], "cold_weight": 16, "clocked": [], "cpu_clock_ns": [], "queue_clock_ns": [], "switches": 0,
        "missed": 0, "cpu_ns": 0, "appeared": [], "names": [], "gone": [],
    }  # fmt: skip
    return GilRow(**(values | more))


def looks() -> list[GilRow]:
    """Every 5 ms of the window: three times in four the loop holds, else the other thread does and the loop waits."""
    first = {"appeared": [LOOP, OTHER], "names": ["executor_loop", HOSTILE]}
    rows = [
        look(T0 + S + place * 5 * MS, LOOP, running=[OTHER])
        if place % 4
        else look(T0 + S + place * 5 * MS, OTHER, [LOOP])
        for place in range(800)
    ]
    return [replace(rows[0], **first), *rows[1:]]


@pytest.fixture
def cell(tmp_path: Path) -> CellTables:
    write_sweep(tmp_path, [("1", 8, 1, Recipe())])
    (folder,) = SweepFolder(tmp_path).cell_folders()
    write_rows(folder.gil, GIL, looks())
    return load_cell(folder)


def document(cell: CellTables, limits: Limits | None = None) -> dict[str, Any]:
    """Export by way of JSON."""
    return dict(json.loads(json.dumps(perfetto(cell, limits)[0], allow_nan=False)))


@contextmanager
def database(events: Sequence[dict[str, Any]]) -> Iterator[sqlite3.Connection]:
    """Fill the trace processor's tables of slices and counters from trace events, in the way in which it does.

    (google/perfetto at 0ba84ac33c245c00dee49c08b929dcea1808dcd7, importers/json/json_trace_parser_impl.cc: microseconds
    become ns, an argument's key begins with `args.`, a counter's track is its name and its argument's.)
    """
    base = sqlite3.connect(":memory:")
    base.executescript(
        """
        CREATE TABLE slice (ts INT, dur INT, name TEXT, track_id INT, arg_set_id INT);
        CREATE TABLE counter (ts INT, value REAL, track_id INT);
        CREATE TABLE counter_track (id INT, name TEXT);
        CREATE TABLE thread_track (id INT, name TEXT);
        """
    )
    tracks: dict[Any, int] = {}
    arguments: dict[int, dict[str, Any]] = {}
    for place, event in enumerate(events):
        if event["ph"] == "X":
            arguments[place] = event["args"]
            track = event["pid"] * 1000 + event["tid"]
            base.execute(
                "INSERT INTO slice VALUES (?, ?, ?, ?, ?)",
                (event["ts"] * 1000, event["dur"] * 1000, event["name"], track, place),
            )
        elif event["ph"] == "C":
            ((unit, value),) = event["args"].items()
            key = (event["pid"], f"{event['name']} {unit}")
            if key not in tracks:
                tracks[key] = len(tracks)
                base.execute("INSERT INTO counter_track VALUES (?, ?)", (tracks[key], key[1]))
            base.execute("INSERT INTO counter VALUES (?, ?, ?)", (event["ts"] * 1000, value, tracks[key]))
        elif event["name"] == "thread_name":
            track = event["pid"] * 1000 + event["tid"]
            base.execute("INSERT INTO thread_track VALUES (?, ?)", (track, event["args"]["name"]))
    base.create_function("extract_arg", 2, lambda place, name: arguments[place].get(name.removeprefix("args.")))
    with closing(base):
        yield base


def documented(name: str) -> str:
    """Take a query from the page for users."""
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    match = re.search(rf"```sql {name}\n(.*?)```", text, re.DOTALL)
    assert match is not None
    return match[1]


def answer(base: sqlite3.Connection, query: str) -> float:
    ((value,),) = base.execute(query).fetchall()
    return float(value)


@pytest.mark.parametrize("folder", SAMPLE[:3], ids=lambda folder: folder.path.name)
def test_the_documented_queries_give_the_waits_that_analysis_gives(folder: CellFolder) -> None:
    cell = load_cell(folder)
    metrics = measure(cell)
    with database(document(cell)["traceEvents"]) as base:
        assert metrics.gil_probe_ms is not None
        assert answer(base, documented("own")) == pytest.approx(metrics.gil_probe_ms.mean)
        assert answer(base, documented("sampled")) == pytest.approx(metrics.gil_wait_ms_per_step, rel=0.02)


def test_a_loop_that_waits_in_one_look_of_four_waits_a_quarter_of_its_step(cell: CellTables) -> None:
    with database(document(cell)["traceEvents"]) as base:
        assert answer(base, documented("sampled")) == pytest.approx(2.5, rel=0.02)  # of 10 ms
        drawn = "SELECT sum(dur) / 4e9 FROM slice JOIN thread_track ON id = track_id WHERE slice.name = '{}' AND {}"
        loop = "thread_track.name = 'executor_loop (11)'"
        assert answer(base, drawn.format(WAITS, loop)) == pytest.approx(0.25, abs=0.01)
        assert answer(base, drawn.format(HOLDS, loop)) == pytest.approx(0.75, abs=0.01)
        assert answer(base, drawn.format(RUNS, f"NOT {loop}")) == pytest.approx(0.75, abs=0.01)
        assert answer(base, drawn.format("executor_loop", "thread_track.name = 'GIL holder'")) == pytest.approx(
            0.75, abs=0.01
        )


@pytest.mark.parametrize("folder", SAMPLE[:2], ids=lambda folder: folder.path.name)
def test_slices_of_a_track_do_not_overlap(folder: CellFolder) -> None:
    tracks: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in document(load_cell(folder))["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) > 5
    for spans in tracks.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_every_event_has_its_place_and_threads_have_numbers_of_their_own(cell: CellTables) -> None:
    events = document(cell)["traceEvents"]
    pids = {event["pid"] for event in events}
    threads = {event["tid"]: event["pid"] for event in events if event["ph"] == "X"}
    assert not pids & set(threads)
    assert {event["tid"] for event in events if event["name"] == "thread_name"} == set(threads)
    assert {event["pid"] for event in events if event["name"] == "process_name"} == pids
    assert all(threads[event["tid"]] == event["pid"] for event in events if event["ph"] == "X")
    assert all(event["tid"] == event["pid"] for event in events if event["ph"] in "beC")
    assert all(isinstance(event["ts"], int) and event["ts"] >= 0 for event in events if event["ph"] != "M")
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_async_slices_open_and_close_inside_each_other(cell: CellTables) -> None:
    events = [event for event in document(cell)["traceEvents"] if event["ph"] in "be"]
    last = max(event["ts"] for event in events)
    open_: defaultdict[str, list[str]] = defaultdict(list)
    names: defaultdict[str, list[str]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event["ts"]):  # stable, as readers sort
        if event["ph"] == "b":
            open_[event["id"]].append(event["name"])
            names[event["id"]].append(event["name"])
        else:
            assert open_[event["id"]].pop() == event["name"]
    assert not any(open_.values())
    assert len(names) == len(cell.requests)
    assert set(map(tuple, names.values())) == {("request", "queued", "first token", "decode")}
    assert last == pytest.approx((int(cell.requests["end_ns"].max()) - T0) / 1000, abs=1)


def test_a_request_is_queued_until_the_server_schedules_it(cell: CellTables) -> None:
    events = [event for event in document(cell)["traceEvents"] if event.get("id") == "0x1"]
    at = {(event["ph"], event["name"]): event["ts"] for event in events}
    assert at["e", "queued"] - at["b", "queued"] == 2_000  # us
    assert at["e", "first token"] - at["b", "request"] == 100_000
    assert at["e", "decode"] - at["b", "decode"] == 100_000


def test_a_failure_says_so(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 1, Recipe(fail_every=1))])
    found = document(load_cell(SweepFolder(tmp_path).cell_folders()[0]))["traceEvents"]
    assert {event["name"] for event in found if event["ph"] == "b"} == {"failed: http_500", "queued"}


def test_what_is_too_much_is_thinned_and_said(cell: CellTables) -> None:
    found, thinned = perfetto(cell, Limits(requests=50, steps=100, looks=200))
    kinds = [(event["ph"], event["name"]) for event in found["traceEvents"]]
    assert kinds.count(("b", "request")) <= 50
    assert kinds.count(("X", "step")) == 100
    assert len(thinned) == 3
    assert thinned[0].startswith("steps: 100 of 499 drawn")
    assert all(one in found["otherData"]["thinned"] for one in thinned)
    steps = [event for event in found["traceEvents"] if event["name"] == "step"]
    assert steps[0]["args"]["in_window"] == 1
    assert document(cell)["otherData"]["thinned"] == "nothing"


def test_hostile_names_stay_names(cell: CellTables) -> None:
    found = document(cell)["traceEvents"]
    assert f"{HOSTILE} (12)" in {event["args"]["name"] for event in found if event["name"] == "thread_name"}


def test_looks_stand_for_the_time_half_way_to_their_neighbours_and_not_for_a_gap() -> None:
    rows = [look(t * MS, LOOP) for t in (0, 10, 20)] + [look(2_000 * MS, LOOP, [OTHER])]
    names = names_of(rows)
    assert [(state.start_ns // MS, state.end_ns // MS) for state in holder_states(rows, names)] == [
        (0, 25),
        (1995, 2000),
    ]
    (waits,) = thread_states(rows, names)[OTHER]
    assert (waits.name, waits.start_ns // MS, waits.function) == (WAITS, 1995, "f11")


def test_a_cell_without_records_has_no_timeline(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 1, Recipe())])
    (folder,) = SweepFolder(tmp_path).cell_folders()
    for file in folder.path.glob("*.arrow"):
        file.unlink()
    folder.write(replace(folder.read(), phases=type(folder.read().phases)()))
    with pytest.raises(UsageError, match="no records"):
        perfetto(load_cell(folder))


def test_speedscope_profiles_weigh_what_each_thread_held(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 1, Recipe(gil={"executor_loop": 600, HOSTILE.replace("\n", ""): 200}))])
    (folder,) = SweepFolder(tmp_path).cell_folders()
    found = json.loads(json.dumps(speedscope(folder, folder.read()), allow_nan=False))
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    loop, other = found["profiles"]
    assert (loop["type"], loop["unit"], loop["startValue"]) == ("sampled", "milliseconds", 0)
    assert loop["name"] == "executor_loop (11)"
    assert loop["endValue"] == pytest.approx(0.6 * 4000)  # 600 of 1000 looks, over 4 s
    assert other["endValue"] == pytest.approx(0.2 * 4000)
    assert sum(loop["weights"]) == loop["endValue"]
    frames = found["shared"]["frames"]
    innermost = frames[loop["samples"][0][-1]]
    assert innermost == {"name": "prepare_inputs", "file": "harness/reference/inputs.py", "line": 20}


def test_speedscope_leaves_out_a_line_that_a_kill_cut_off(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 1, Recipe(gil={"executor_loop": 400}))])
    (folder,) = SweepFolder(tmp_path).cell_folders()
    whole = speedscope(folder, folder.read())
    with open(folder.stacks, "a", encoding="utf-8") as file:
        file.write("thread (11): executor_loop;main (x.py:1);cut")
    assert speedscope(folder, folder.read()) == whole


def test_a_cell_without_stacks_has_no_profile(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("1", 8, 1, Recipe())])
    (folder,) = SweepFolder(tmp_path).cell_folders()
    folder.write(replace(folder.read(), stacks=None))
    with pytest.raises(UsageError, match="no stacks"):
        speedscope(folder, folder.read())


def test_thinned_looks_thin_the_loops_counter_as_well(cell: CellTables) -> None:
    found = document(cell, Limits(looks=200))["traceEvents"]
    assert sum(event["name"] == "executor loop waits" for event in found) == 200
