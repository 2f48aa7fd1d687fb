"""The settings' one table, as a user meets it: in the help and on the page."""

import argparse
import re
from pathlib import Path

import pytest

from harness.reference.serve import add_options
from harness.reference.settings import KNOBS, Knob

PAGE = (Path(__file__).parents[2] / "docs" / "reference-stack.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def help_text() -> str:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return re.sub(r"\s+", " ", parser.format_help())


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.field)
def test_the_page_lists_every_setting_with_values_default_effect_and_where_it_is_published(knob: Knob) -> None:
    cells = (f"`{knob.env}`", f"`{knob.option}`", knob.values.replace("|", r" \| "), f"`{knob.default}`", knob.help)
    assert f"\n| {' | '.join(cells)} | {knob.published or '-'} |\n" in PAGE


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.field)
def test_the_help_tells_every_setting_with_default_effect_and_where_it_is_published(knob: Knob, help_text: str) -> None:
    published = f"; published: {knob.published}" if knob.published else ""
    told = f"{knob.help} [{knob.env}, default {knob.default}{published}]"
    assert re.sub(r"[\s-]+", "", told) in re.sub(r"[\s-]+", "", help_text), "wrapped anywhere, also at a hyphen"
    assert f" {knob.option} " in help_text


def test_the_page_lists_no_setting_that_is_none() -> None:
    listed = re.findall(r"^\| `([A-Z0-9_]+)` \| `--", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(knob.env for knob in KNOBS)


def test_every_setting_of_the_original_says_where_it_is_published() -> None:
    assert all(knob.published for knob in KNOBS if not knob.env.startswith("REFSTACK_"))
