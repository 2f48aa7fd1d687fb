"""The report in a real Chromium: silent, offline, readable at both widths, sortable, dark when asked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic import Recipe, write_sweep

from analysis.report import write_report

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there")
    with playwright.sync_playwright() as session:
        chromium = session.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep")
    cells = [
        (value, concurrency, block, Recipe(users=concurrency, factor=factor, jitter=0.1, window_s=2))
        for block in range(3)
        for value, factor in (("1", 1.0), ("32", 0.8), ("a-long-value-" * 8, 0.9))
        for concurrency in (4, 16)
    ]
    return write_report(write_sweep(path, cells))


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    """The report, opened; `page.noise` collects console messages, errors and requests."""
    page = browser.new_page()
    page.noise = []
    page.on("console", lambda message: page.noise.append(f"console {message.text}"))
    page.on("pageerror", lambda error: page.noise.append(f"error {error}"))
    page.on("request", lambda request: page.noise.append(request.url))
    page.goto(report.as_uri())
    yield page
    page.close()


def test_it_asks_for_nothing_but_itself_and_says_nothing_on_the_console(page: Any, report: Path) -> None:
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    assert page.noise == [report.as_uri()]


@pytest.mark.parametrize("width", [1280, 390])
def test_only_tables_scroll_sideways(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 390])
def test_text_in_plots_stays_readable(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    smallest = page.evaluate(
        """Math.min(...Array.from(document.querySelectorAll("figure svg text")).map((text) =>
           parseFloat(getComputedStyle(text).fontSize) * Math.hypot(text.getCTM().a, text.getCTM().b)))"""
    )
    assert smallest >= 9


def test_a_click_sorts_by_number_and_a_second_turns_the_order_round(page: Any) -> None:
    column = page.evaluate(
        """Array.from(document.querySelectorAll(".sortable th")).findIndex((h) => h.innerText.startsWith("req_s"))"""
    )

    def values() -> list[float]:
        return page.evaluate(
            f"""Array.from(document.querySelectorAll(".sortable tbody tr"))
                .map((row) => Number(row.cells[{column}].dataset.sort))"""
        )

    page.click(f".sortable th:nth-child({column + 1}) button")
    assert values() == sorted(values())
    page.click(f".sortable th:nth-child({column + 1}) button")
    assert values() == sorted(values(), reverse=True)
    assert page.get_attribute(f".sortable th:nth-child({column + 1})", "aria-sort") == "descending"


def test_the_keyboard_reaches_and_sorts_a_column(page: Any) -> None:
    page.focus(".sortable th:nth-child(2) button")
    page.keyboard.press("Enter")
    assert page.get_attribute(".sortable th:nth-child(2)", "aria-sort") == "ascending"


def test_dark_mode_turns_page_and_plots_dark(page: Any) -> None:
    def lightness() -> list[int]:
        page_colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        text = page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
        return [sum(map(int, colour[4:-1].split(", "))) for colour in (page_colour, text)]

    page.emulate_media(color_scheme="light")
    background, text = lightness()
    assert background > text
    page.emulate_media(color_scheme="dark")
    background, text = lightness()
    assert background < text


def test_the_csv_downloads(page: Any) -> None:
    with page.expect_download() as download:
        page.click("a[download]")
    assert download.value.suggested_filename.endswith("-cells.csv")
