from pathlib import Path

from harness.reference.settings import KNOBS

PAGE = (Path(__file__).parents[2] / "docs" / "reference-stack.md").read_text(encoding="utf-8")


def test_the_page_lists_every_setting_with_its_default() -> None:
    for knob in KNOBS:
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{knob.env}` ")]
        assert f"| `{knob.default}` |" in row
        assert f"`{knob.option}`" in row
