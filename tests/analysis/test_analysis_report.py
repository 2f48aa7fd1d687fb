"""The report as text: what it says, that it is one offline file, that hostile names stay text."""

import html.parser
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import Recipe, write_sweep

from analysis.environment import facts_of, made_with
from analysis.gil.stacks import count_holders
from analysis.report.flame import flame, merged
from analysis.report.page import write_report
from analysis.report.timeline import typical
from analysis.study import study_sweep
from analysis.svg import draw
from analysis.text import change, number, share
from contracts.folder import GilStacks, Phases, SweepFolder

EVIL = '"><img src=x onerror=alert(1)><script>alert(2)</script>$x_{^'


class Tags(html.parser.HTMLParser):
    """Collects all tags with their attributes, and all ids."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def parse(path: Path) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser.tags


def small(path: Path, **changes: Any) -> Path:
    recipe = Recipe(**changes)
    return write_sweep(
        path, [(v, 8, b, replace(recipe, factor=f)) for b in range(3) for v, f in (("1", 1), ("32", 0.8))]
    )


def test_the_report_lies_in_the_folder_and_says_the_verdict(tmp_path: Path) -> None:
    path = write_report(small(tmp_path))
    assert path == tmp_path / "report.html"
    text = path.read_text(encoding="utf-8")
    assert "output throughput is 25% higher" in text
    assert "loadgen sweep --set TLLM_RPC_SUBMIT_BATCH_MAX=1,32" in text


def test_another_place_can_be_named(tmp_path: Path) -> None:
    out = tmp_path / "elsewhere.html"
    assert write_report(small(tmp_path / "sweep"), out) == out
    assert not (tmp_path / "sweep" / "report.html").exists()


def test_nothing_in_it_points_outside(tmp_path: Path) -> None:
    for tag, attributes in parse(write_report(small(tmp_path))):
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)


def test_ids_are_unique_and_every_plot_has_a_text_alternative(tmp_path: Path) -> None:
    tags = parse(write_report(small(tmp_path)))
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in tags:
        if tag == "svg" and attributes.get("role") == "img":
            assert set(attributes["aria-labelledby"].split()) <= set(ids)


def test_hostile_names_and_errors_end_escaped(tmp_path: Path) -> None:
    recipe = Recipe(
        gil={EVIL: 300, "executor_loop": 400}, fail_every=5, error=EVIL, looks=True, pause_ms=12.0, waiter=EVIL,
        further_cpu={EVIL: 0.4},
    )  # fmt: skip
    cells = [(value, 8, 0, recipe) for value in ("1", EVIL)]
    write_sweep(tmp_path, cells, knob=f"A{EVIL}", document={"machine": {EVIL: EVIL}, "command": ["loadgen", EVIL]})
    folder = SweepFolder(tmp_path).cell_folders()[0]
    folder.write(replace(folder.read(), state="failed", error=EVIL, phases=Phases()))
    hostile = EVIL.replace(";", ",")
    for one in SweepFolder(tmp_path).cell_folders():
        one.stacks.write_text(f"thread (1): {hostile};{hostile} (a/{hostile}/b.py:3);{hostile} 300\n")
    path = write_report(tmp_path)
    tags = parse(path)
    assert not [tag for tag, _ in tags if tag == "img"]
    assert len([tag for tag, _ in tags if tag == "script"]) == 1
    assert [tag for tag, attributes in tags if attributes.get("role") == "tree"], "the stacks were not drawn"
    assert "&lt;script&gt;alert(2)&lt;/script&gt;$x_{^ (a/" in path.read_text(encoding="utf-8")
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]


def test_the_csv_is_the_table_and_no_formula(tmp_path: Path) -> None:
    import base64

    write_sweep(tmp_path, [("=1+1", 8, 0, Recipe())])
    (url,) = [a["href"] for tag, a in parse(write_report(tmp_path)) if tag == "a" and "download" in a]
    head, first = base64.b64decode(url.split(",", 1)[1]).decode().splitlines()
    assert head.startswith("cell,state,block,concurrency,TLLM_RPC_SUBMIT_BATCH_MAX,requests")
    assert ",'=1+1,200,0,40.0," in first


def test_a_partial_sweep_gives_a_report_that_says_so(tmp_path: Path) -> None:
    small(tmp_path)
    folders = SweepFolder(tmp_path).cell_folders()
    folders[0].write(replace(folders[0].read(), state="failed", error="port 8000 in use", phases=Phases()))
    folders[1].write(replace(folders[1].read(), state="partial"))
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "4 of 6 cells finished: 1 failed, 1 partial" in text
    assert "port 8000 in use" in text


def test_an_empty_sweep_and_a_single_cell_give_a_report(tmp_path: Path) -> None:
    assert "nothing to compare" in write_report(write_sweep(tmp_path / "a", [])).read_text(encoding="utf-8")
    one = write_sweep(tmp_path / "b", [("1", 8, 0, Recipe())])
    assert "nothing to compare it with" in write_report(one).read_text(encoding="utf-8")


def test_a_cell_without_records_of_the_gil_is_reported_without(tmp_path: Path) -> None:
    small(tmp_path)
    for folder in SweepFolder(tmp_path).cell_folders():
        folder.stacks.unlink()
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "There are no samples of the GIL here" in text
    assert "no_gil_samples" in text


def looked_into(path: Path, **changes: Any) -> str:
    return write_report(small(path, looks=True, **changes)).read_text(encoding="utf-8")


def test_it_says_where_a_step_goes_and_which_holds_were_long(tmp_path: Path) -> None:
    """A step of 10 ms: 6 held, 2 waiting, 2 blocked, which the device's 3 ms fill; a hold of 10 ms in every 20."""
    text = looked_into(tmp_path)
    told = re.search(r"1: host work (.*) ms, GIL wait (.*) ms, wait for the device (.*) ms, other 0.00 ms; 32", text)
    assert told is not None
    assert [float(part) for part in told.groups()] == pytest.approx([6, 2, 2], abs=0.02)
    holds = text[text.index("<h3>Long holds</h3>") :]
    assert "encode" in holds[: holds.index("</table>")]
    assert "600, longest 10.0 to 14.0 ms" in holds
    assert "5 ms (the process)" in holds


def test_it_shows_a_cell_of_each_setting_over_time(tmp_path: Path) -> None:
    text = looked_into(tmp_path / "a", pause_ms=12.0)
    assert "1 collector pauses, longest 12.0 ms" in text
    assert "the loop waits 20% of the time" in text
    assert "cores used: rank0 0.90, proxy 0.30, load 0.20" in text
    assert "Not recorded" not in text
    assert "no collector pause of 1 ms or more" in looked_into(tmp_path / "b", pause_ms=0.0)
    assert "Not recorded: garbage collector." in looked_into(tmp_path / "c")


def test_the_cell_shown_over_time_is_the_middle_one_that_finished(tmp_path: Path) -> None:
    cells = [("1", 8, block, Recipe(factor=factor)) for block, factor in enumerate((1.0, 0.5, 0.8, 0.6))]
    study = study_sweep(write_sweep(tmp_path, cells))
    chosen = typical(study.cells)
    assert chosen is not None
    assert chosen.tables.info.block == 2
    assert typical([]) is None


def test_a_flame_graph_adds_up_over_cells_and_drops_what_is_too_small() -> None:
    """Two cells of 100 looks that told something, 100 that failed: shares are over the former."""
    start = "Thread._bootstrap (threading.py:1);Thread.run (threading.py:2)"
    lines = [
        f"thread (1): loop;{start};run (x/loop.py:5);a (x/a.py:1) 40\n",
        f"thread (1): loop;{start};run (x/loop.py:9);b (x/b.py:1) 20\n",
        "thread (2): pool_1;c (x/c.py:1) 10\n",
        "thread (3): pool_2;c (x/c.py:7) 10\n",
    ]
    stacks = GilStacks(1, 100, 0, 1, attempts=200, samples=80, errors=100, complete=True)
    cells = [count_holders(lines, stacks), count_holders(lines[:2], stacks)]
    root = merged([cell.by_stack for cell in cells])
    assert root.share == pytest.approx(0.7)
    assert list(root.callees) == ["loop", "pool_*"]
    run = root.callees["loop"].callees["run (x/loop.py)"]
    assert {name: round(one.share, 3) for name, one in run.callees.items()} == {"a (x/a.py)": 0.4, "b (x/b.py)": 0.2}
    many = count_holders(
        [f"thread (1): loop;f{place} (x.py:1) 1\n" for place in range(5000)], replace(stacks, attempts=5100)
    )
    drawn = flame("1", 0, cells, ("loop",))
    assert drawn is not None
    assert drawn.html.count("<li") == 6
    assert flame("1", 0, [many], ("loop",)).html.count("<li") == 1  # type: ignore[union-attr]
    assert flame("1", 0, [], ()) is None


def test_what_differs_between_cells_and_what_made_them_is_said(tmp_path: Path) -> None:
    small(tmp_path)
    folders = SweepFolder(tmp_path).cell_folders()
    for place, folder in enumerate(folders):
        settings = {"gc": "off" if place < 2 else "frozen", "same": 1}
        folder.write(replace(folder.read(), server={"settings": settings, "submit": {"messages": place}}))
    study = study_sweep(tmp_path)
    facts = {one.title: dict(one.rows) for one in facts_of(study)}
    assert facts["Differs between cells"] == {"gc": "off (2 cells), frozen (4 cells)"}
    assert made_with(study) == "commit 0123abc, Python 3.11.2"


def test_a_plot_follows_the_pages_colours(tmp_path: Path) -> None:
    plot = draw(lambda axes: axes.plot([0, 1], [0, 1], color="#0a0c01"), key="k", title="<t>", description="d")
    assert "var(--s1)" in plot.svg
    assert '<title id="k-title">&lt;t&gt;</title>' in plot.svg  # fmt: skip
    assert not re.search(r"#0a0[bcd]|<\?xml|<!DOCTYPE|<!--", plot.svg)


def test_numbers_are_written_for_people() -> None:
    assert [number(value) for value in (None, 0.123, 12.34, 1234.5)] == ["–", "0.12", "12.3", "1,234"]  # noqa: RUF001
    assert [change(value) for value in (0.8, 1.012, 1.0, 4.0)] == ["−20%", "+1.2%", "±0%", "×4.0"]  # noqa: RUF001
    assert [share(value) for value in (0.5, 0.034, 0.0)] == ["50%", "3.4%", "0%"]
