"""The page of a run in a real browser: it opens from a disk, by day and night, on a phone.

`SPECREG_CHROMIUM` names a Chromium; else one on the PATH, or the one that Playwright installed.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from specreg.report.page import render_page
from tests.unit import builders, reports
from tests.unit.test_page import many

Scheme = Literal["light", "dark"]
EXAMPLES = builders.ROOT / "docs/examples"
NAMES = ("cpu_perf", "planted_faults")
"""What docs/examples/make.py makes."""
PHONE: ViewportSize = {"width": 360, "height": 740}
DESK: ViewportSize = {"width": 1280, "height": 900}
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")


def chromium() -> str | None:
    """The browser to use, None for Playwright's own."""
    return os.environ.get("SPECREG_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all."""
    with sync_playwright() as playwright:
        # A container has no sandbox of the kernel's, and the pages are ours.
        found = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages to open: of a small run, of many cases, of none."""
    folder = tmp_path_factory.mktemp("pages")
    pages = {"small": reports.REPORT, "many": many(12), "empty": reports.EMPTY}
    found = {}
    for name, report in pages.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(render_page(report))
    return found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab of a desk's size; what it loads or complains of is an error."""
    context = browser.new_context(viewport=DESK)
    tab = context.new_page()
    trouble: list[str] = []
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on(
        "request",
        lambda request: None if request.url.startswith("file:") else trouble.append(request.url),
    )
    yield tab
    context.close()
    assert trouble == []


def visit(page: Page, path: Path) -> None:
    """Opens a file, as a reader does who has it on a disk and no network."""
    page.context.set_offline(True)
    page.goto(path.as_uri())


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("name", ["small", "many", "empty"])
def test_nothing_is_cut_off_and_nobody_is_left_out(
    page: Page,
    files: dict[str, Path],
    name: str,
    viewport: ViewportSize,
    scheme: Literal["light", "dark"],
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(viewport)
    visit(page, files[name])
    for details in page.locator("details").all():
        details.evaluate("one => one.open = true")
    assert overflow(page) <= 0
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_a_click_leads_from_the_failure_to_its_case(page: Page, files: dict[str, Path]) -> None:
    visit(page, files["many"])
    page.locator(".card a").first.click()
    assert page.url.endswith("#case-11")
    expect(page.locator("#case-11")).to_have_attribute("open", "")
    expect(page.locator("#case-11 svg").first).to_be_in_viewport(ratio=0.1)


def test_a_case_that_holds_is_folded_and_opens(page: Page, files: dict[str, Path]) -> None:
    visit(page, files["many"])
    case = page.locator("#case-3")
    expect(case.locator("svg").first).to_be_hidden()
    case.locator("summary").first.click()
    expect(case.locator("svg").first).to_be_visible()
    expect(case.get_by_text("pytest tests/perf -k")).to_be_visible()


def test_only_what_needs_a_look_is_shown_where_that_is_asked_for(
    page: Page, files: dict[str, Path]
) -> None:
    visit(page, files["many"])
    rows = page.locator("#overview ~ .scroll tbody tr:visible")
    assert rows.count() == 12
    page.get_by_label("those that need a look").check()
    assert rows.count() == 1
    expect(page.locator("#case-3")).to_be_hidden()
    page.get_by_label("all cases").check()
    assert rows.count() == 12


def test_the_keyboard_reaches_everything(page: Page, files: dict[str, Path]) -> None:
    visit(page, files["many"])
    page.locator("#case-3 summary").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#case-3")).to_have_attribute("open", "")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == (
        "Verdicts on case-3"
    )


def test_day_and_night_have_their_colours_in_the_drawings_too(
    page: Page, files: dict[str, Path]
) -> None:
    seen = set()
    schemes: tuple[Scheme, ...] = ("light", "dark")
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        visit(page, files["small"])
        bar = page.locator('svg path[fill="var(--now)"]').first
        seen.add(bar.evaluate("one => getComputedStyle(one).fill"))
        seen.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(seen) == 4


def test_what_a_server_said_runs_nowhere(page: Page, tmp_path: Path) -> None:
    hostile = (
        "<img src=x onerror=\"document.title='obeyed'\"><script>document.title='obeyed'</script>"
    )
    path = tmp_path / "page.html"
    path.write_text(render_page(reports.with_case(target=hostile), wrong=hostile))
    visit(page, path)
    assert "obeyed" not in page.title()


def test_it_prints(page: Page, files: dict[str, Path], tmp_path: Path) -> None:
    visit(page, files["small"])
    page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_what_is_folded_is_on_paper_too(page: Page, files: dict[str, Path]) -> None:
    visit(page, files["many"])
    drawing = page.locator("#case-3 svg").first
    expect(drawing).to_be_hidden()
    page.emulate_media(media="print")
    expect(drawing).to_be_visible()
    expect(page.get_by_label("all cases")).to_be_hidden()


def test_on_a_phone_the_case_stays_in_sight_beside_its_last_metric(
    page: Page,
) -> None:
    page.set_viewport_size(PHONE)
    visit(page, EXAMPLES / "cpu_perf/report.html")
    table = page.locator("#overview ~ .scroll")
    table.evaluate("one => { one.scrollIntoView(); one.scrollLeft = one.scrollWidth; }")
    assert table.evaluate("one => one.scrollLeft") > PHONE["width"]
    expect(table.locator("tbody th").first).to_be_in_viewport(ratio=1)
    expect(table.locator("tbody td:last-child").first).to_be_in_viewport(ratio=1)


def test_on_a_phone_the_numbers_of_a_chart_can_be_read(page: Page, files: dict[str, Path]) -> None:
    page.set_viewport_size(PHONE)
    visit(page, files["small"])
    for label in page.locator("figure svg text").all():
        assert label.evaluate("one => one.getBoundingClientRect().height") >= 9


@pytest.mark.parametrize("example", NAMES)
def test_the_examples_open_like_any_page(page: Page, example: str) -> None:
    path = EXAMPLES / example / "report.html"
    assert path.stat().st_size <= 2_000_000
    for viewport in (PHONE, DESK):
        page.set_viewport_size(viewport)
        visit(page, path)
        for details in page.locator("details").all():
            details.evaluate("one => one.open = true")
        assert overflow(page) <= 0
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
