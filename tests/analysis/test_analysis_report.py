"""The report as text: what it says, that it is one offline file, that hostile names stay text."""

import html.parser
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from synthetic import Recipe, write_sweep

from analysis.report import write_report
from analysis.svg import draw
from analysis.text import change, number, share
from contracts.folder import Phases, SweepFolder

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
    cells = [(value, 8, 0, Recipe(gil={EVIL: 300, "executor_loop": 400}, fail_every=5, error=EVIL))
             for value in ("1", EVIL)]  # fmt: skip
    write_sweep(tmp_path, cells, knob=f"A{EVIL}", document={"machine": {EVIL: EVIL}, "command": ["loadgen", EVIL]})
    folder = SweepFolder(tmp_path).cell_folders()[0]
    folder.write(replace(folder.read(), state="failed", error=EVIL, phases=Phases()))
    path = write_report(tmp_path)
    tags = parse(path)
    assert not [tag for tag, _ in tags if tag == "img"]
    assert len([tag for tag, _ in tags if tag == "script"]) == 1
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


def test_a_plot_follows_the_pages_colours(tmp_path: Path) -> None:
    plot = draw(lambda axes: axes.plot([0, 1], [0, 1], color="#0a0c01"), key="k", title="<t>", description="d")
    assert "var(--s1)" in plot.svg
    assert '<title id="k-title">&lt;t&gt;</title>' in plot.svg  # fmt: skip
    assert not re.search(r"#0a0[bcd]|<\?xml|<!DOCTYPE|<!--", plot.svg)


def test_numbers_are_written_for_people() -> None:
    assert [number(value) for value in (None, 0.123, 12.34, 1234.5)] == ["–", "0.12", "12.3", "1,234"]  # noqa: RUF001
    assert [change(value) for value in (0.8, 1.012, 1.0, 4.0)] == ["−20%", "+1.2%", "±0%", "×4.0"]  # noqa: RUF001
    assert [share(value) for value in (0.5, 0.034, 0.0)] == ["50%", "3.4%", "0%"]
