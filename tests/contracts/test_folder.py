import json
from pathlib import Path

import pytest

from contracts.errors import FormatError, UsageError
from contracts.folder import CellFolder, CellInfo, GilStacks, Phases, SweepFolder, read_json, write_json

INFO = CellInfo(
    id="001", slug="001-b1-c8", index=1, block=1, knobs={"A": "1"}, concurrency=8, state="done",
    phases=Phases(start_ns=1, steady_start_ns=2), stacks=GilStacks(1, 100, 2, 3, 4, 5, 6, complete=True),
    warnings=({"code": "few_repeats", "detail": "x"},),
)  # fmt: skip


def test_a_cell_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path)
    folder.write(INFO)
    assert folder.read() == INFO


def test_keys_of_later_releases_are_left_aside() -> None:
    assert CellInfo.from_json({**INFO.to_json(), "added_later": 1}) == INFO


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"format": 1, "a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"format": 1, "a": object()})
    assert json.loads(path.read_text()) == {"format": 1, "a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("text", ["", "[]", "not json", '{"format": 99}', "{}"])
def test_a_file_of_another_format_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(FormatError):
        read_json(tmp_path / "x.json")


def test_a_folder_that_is_no_sweep_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder of a sweep"):
        SweepFolder(tmp_path).read()
