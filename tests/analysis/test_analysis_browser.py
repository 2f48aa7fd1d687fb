"""The report in a real Chromium: silent, offline, readable at both widths, sortable, dark when asked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic import Recipe, write_sweep

from analysis.report.page import write_report

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
        (
            value,
            concurrency,
            block,
            Recipe(users=concurrency, factor=factor, jitter=0.1, window_s=2, looks=True, pause_ms=5.0),
        )
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


def test_a_large_page_is_laid_out_as_far_as_it_is_seen_and_whole_in_print(page: Any) -> None:
    def skipped() -> int:
        return page.evaluate(
            """Array.from(document.querySelectorAll("main > section > h2"))
               .filter((head) => !head.checkVisibility({ contentVisibilityAuto: true })).length"""
        )

    assert skipped() == 0
    page.evaluate("document.body.className = 'large'")
    page.wait_for_timeout(300)
    assert skipped() > 0
    page.locator("#repeat h2").scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    assert page.locator("#repeat h2").inner_text() == "Repeat it"
    page.emulate_media(media="print")
    page.wait_for_timeout(300)
    assert page.evaluate("getComputedStyle(document.querySelector('#repeat')).contentVisibility") == "visible"
    assert skipped() == 1  # the table of all cells, which is not printed


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
        """Array.from(document.querySelectorAll(".sortable th")).findIndex((h) => h.textContent.startsWith("req_s"))"""
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_on_a_frame_of_the_flame_graph_has_contrast(page: Any, scheme: str) -> None:
    """WCAG asks for 4.5; the page's own colours are mixed in the browser, so they are read from a canvas there."""
    page.emulate_media(color_scheme=scheme)
    lowest = page.evaluate(
        """() => {
          const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
          const light = (colour) => {
            pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
            const [r, g, b] = Array.from(pen.getImageData(0, 0, 1, 1).data).map((v) => {
              v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          return Math.min(...Array.from(document.querySelectorAll(".flame span")).map((frame) => {
            const style = getComputedStyle(frame);
            const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);
          }));
        }"""
    )
    assert lowest >= 4.5


def test_the_keyboard_walks_and_widens_a_flame_graph(page: Any) -> None:
    graph = page.locator(".flame").first
    frames = graph.locator("[role=treeitem]")
    frames.first.focus()
    page.keyboard.press("ArrowDown")
    told = graph.locator("output").inner_text()
    assert told == page.evaluate("document.activeElement.firstElementChild.textContent")
    assert "%" in told
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    second = page.evaluate("document.activeElement.getBoundingClientRect().width")
    page.keyboard.press("Enter")
    whole = graph.locator("[role=tree]").bounding_box()["width"]
    assert page.evaluate("document.activeElement.getBoundingClientRect().width") == pytest.approx(whole, abs=1)
    assert not frames.first.is_visible()
    page.keyboard.press("Escape")
    assert frames.first.is_visible()
    assert page.evaluate("document.activeElement.getBoundingClientRect().width") == pytest.approx(second, abs=1)


def test_a_click_widens_a_frame_and_another_shows_all_again(page: Any) -> None:
    second = page.locator(".flame").first.locator("[role=tree] > [role=treeitem]").nth(1)
    before = second.bounding_box()["width"]
    second.click(position={"x": 2, "y": 4})
    assert second.bounding_box()["width"] > before
    second.click(position={"x": 2, "y": 4})
    assert second.bounding_box()["width"] == pytest.approx(before, abs=1)


def test_graphs_of_other_settings_are_a_key_press_away(page: Any) -> None:
    closed = page.locator("details.pick:not([open])").first
    page.evaluate("document.querySelectorAll('details.pick').forEach((d, i) => d.dataset.place = i)")
    place = closed.get_attribute("data-place")
    closed.locator("summary").focus()
    page.keyboard.press("Enter")
    assert page.locator(f"details[data-place='{place}'] ul, details[data-place='{place}'] figure").first.is_visible()


def test_printed_it_has_no_dead_controls_and_no_dark_page(page: Any) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for control in ("nav", ".download", ".flame output"):
        assert not page.locator(control).first.is_visible()
    assert len(page.pdf()) > 10_000


def test_the_csv_downloads(page: Any) -> None:
    with page.expect_download() as download:
        page.click("a[download]")
    assert download.value.suggested_filename.endswith("-cells.csv")
