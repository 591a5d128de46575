"""The page of a run in a real browser: it opens from a disk, by day and night, on a phone.

`SPECREG_CHROMIUM` names a Chromium; else one on the PATH, or the one that Playwright installed.
"""

import dataclasses
import datetime as dt
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from specreg.correctness.checks import CHECKS
from specreg.measurement.metrics import METRICS
from specreg.report.document import Report, RunReport
from specreg.report.page import render_page
from specreg.report.side_by_side import side_by_side
from specreg.report.trend import MachineHistory, load_histories, render_trend
from specreg.verdicts.verdict import NOTHING_COMPARED
from tests.unit import builders
from tests.unit.builders import reports
from tests.unit.builders.histories import LATER, write_nights
from tests.unit.builders.pages import many
from tests.unit.builders.reports import another

Scheme = Literal["light", "dark"]
EXAMPLES = builders.ROOT / "docs/examples"
NAMES = ("cpu_perf", "planted_faults", "gate")
"""What docs/examples/make.py makes."""
SIZES: tuple[ViewportSize, ...] = (
    {"width": 360, "height": 740},
    {"width": 400, "height": 860},
    {"width": 1280, "height": 900},
    {"width": 1920, "height": 1080},
)
PHONE, DESK = SIZES[0], SIZES[2]
CUT_OFF = """() => {
  const box = one => one.getBoundingClientRect();
  const is_shown = cell => box(cell).width && box(cell.closest("thead, tbody")).width > 1;
  return [...document.querySelectorAll("td, th")].filter(is_shown).filter(cell => {
    const room = box(cell.closest(".rows, .heat"));
    return box(cell).left < room.left - 1 || box(cell).right > Math.min(room.right, innerWidth) + 1;
  }).map(cell => cell.innerText);
}"""
"""The cells that reach out of their table; where its headings are hidden cells have labels."""
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")


def chromium() -> str | None:
    """The browser to use, None for Playwright's own."""
    return os.environ.get("SPECREG_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all."""
    with sync_playwright() as playwright:
        # A container has no sandbox of the kernel's, and the pages are ours.
        chromium_browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox"]
        )
        yield chromium_browser
        chromium_browser.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages to open: of a small run, of many cases, of none, of two runs side by side."""
    folder = tmp_path_factory.mktemp("pages")
    pages: dict[str, Report] = {
        "small": reports.REPORT,
        "many": many(12),
        "wide": wide(),
        "empty": reports.EMPTY,
    }
    pages["beside"] = side_by_side(reports.REPORT, another())
    write_nights(folder / "machine.jsonl", cases=12, nights=30, bad_from=20)
    texts = {}
    for name, report in pages.items():
        texts[name] = folder / f"{name}.html"
        texts[name].write_text(render_page(report))
    histories = [
        MachineHistory(machine=machine, history=history)
        for machine, history in load_histories([folder / "machine.jsonl"], LATER)
    ]
    texts["trend"] = folder / "trend.html"
    texts["trend"].write_text(render_trend(histories, dt.datetime.now(tz=dt.UTC)))
    return texts


def wide() -> RunReport:
    """A case with a long name has a verdict on each metric that there is; a remark a long path."""
    name = "tensorrt_llm-draft_model-llama-3.1-8b-instruct-speed-bench-throughput-1k-c16"
    verdicts = [
        dataclasses.replace(reports.LOST, metric=metric, case_id=name)
        for metric in (*METRICS, *CHECKS)
    ]
    bare = [
        dataclasses.replace(verdict, comparison=NOTHING_COMPARED, value=12345.678)
        for verdict in verdicts
    ]
    return msgspec.structs.replace(
        reports.with_case(case_id=name),
        run=reports.run_of(
            *verdicts, *(dataclasses.replace(verdict, case_id="b") for verdict in bare)
        ),
        remarks=(f"history '/{'folder_' * 12}/a.jsonl': not written",),
    )


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


def check_shown(page: Page, path: Path, viewport: ViewportSize) -> None:
    """Opens a file and all that is folded in it: nothing is wider than the window, or cut off."""
    page.set_viewport_size(viewport)
    visit(page, path)
    for details in page.locator("details").all():
        details.evaluate("one => one.open = true")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.evaluate(CUT_OFF) == []


def check_accessible(page: Page) -> None:
    """What axe looks at is in order."""
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


@pytest.mark.parametrize("viewport", SIZES, ids=lambda size: str(size["width"]))
@pytest.mark.parametrize("name", ["small", "wide", "beside", "trend"])
def test_no_column_is_cut_off(
    page: Page, files: dict[str, Path], name: str, viewport: ViewportSize
) -> None:
    check_shown(page, files[name], viewport)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("name", ["small", "many", "empty", "beside", "trend"])
def test_axe_finds_nothing_by_day_or_night(
    page: Page, files: dict[str, Path], name: str, viewport: ViewportSize, scheme: Scheme
) -> None:
    page.emulate_media(color_scheme=scheme)
    check_shown(page, files[name], viewport)
    check_accessible(page)


def test_a_click_leads_from_the_failure_to_its_case(page: Page, files: dict[str, Path]) -> None:
    visit(page, files["many"])
    page.locator(".card a").first.click()
    assert page.url.endswith("#case-11")
    expect(page.locator("#case-11")).to_have_attribute("open", "")
    expect(page.locator("#case-11 svg").first).to_be_in_viewport(ratio=0.1)


def test_only_what_needs_a_look_is_shown_where_that_is_asked_for(
    page: Page, files: dict[str, Path]
) -> None:
    visit(page, files["many"])
    rows = page.locator("#overview ~ .rows tbody tr:visible")
    assert rows.count() == 12
    page.get_by_label("those that need a look").check()
    assert rows.count() == 1
    expect(page.locator("#case-3")).to_be_hidden()
    page.get_by_label("all cases").check()
    assert rows.count() == 12


def test_the_table_is_filtered_by_words_and_sorted_by_a_column(
    page: Page, files: dict[str, Path]
) -> None:
    visit(page, files["many"])
    rows = page.locator("#overview ~ .rows tbody tr:visible")
    page.get_by_label("Filter by words").fill("REGRESSED case-1")
    assert rows.count() == 1
    assert page.locator("details.case:visible").count() == 1
    page.get_by_label("Filter by words").fill("")
    assert rows.count() == 12
    head = page.locator("#overview ~ .rows button.sort").first
    for first in ("case-0", "case-11"):
        head.click()
        expect(rows.first.locator("th")).to_have_text(first)


def test_an_address_opens_the_case_that_it_names(page: Page, files: dict[str, Path]) -> None:
    page.goto(f"{files['many'].as_uri()}#case-3")
    expect(page.locator("#case-3")).to_have_attribute("open", "")
    expect(page.locator("#case-3 > summary")).to_be_in_viewport(ratio=0.1)


@pytest.mark.parametrize("name", ["small", "trend"])
def test_no_label_of_a_drawing_is_cut_off(page: Page, files: dict[str, Path], name: str) -> None:
    """What lies outside its drawing isn't seen, but for rows, whose drawings overflow."""
    for viewport in SIZES:
        check_shown(page, files[name], viewport)
        outside = page.evaluate("""() => [...document.querySelectorAll(
          "figure svg text, figure svg use")].filter(label => {
            const box = label.getBoundingClientRect();
            const room = (
              label.closest(".intervals") || label.closest("svg")).getBoundingClientRect();
            return box.left < room.left - 1 || box.right > room.right + 1
              || box.top < room.top - 1 || box.bottom > room.bottom + 1;
        }).map(label => label.outerHTML)""")
        assert outside == []


WORDS_IN_SIGHT = """() => {
  const is_folded = element => {
    const fold = element.parentElement.closest("details:not([open])");
    if (!fold) return false;
    const summary = element.closest("summary");
    return summary && summary.parentElement === fold ? is_folded(fold) : true;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let words = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (element.closest("script, style, svg") || is_folded(element)) continue;
    words += walker.currentNode.data.split(/\\s+/).filter(Boolean).length;
  }
  return words;
}"""


def test_a_red_page_of_three_cases_is_read_in_three_minutes(page: Page) -> None:
    """What is folded isn't counted: the figures, the logs, the nights, the cases and remarks."""
    visit(page, EXAMPLES / "planted_faults/report.html")
    assert 100 < page.evaluate(WORDS_IN_SIGHT) <= 600


def test_the_fall_of_a_speed_is_drawn_on_a_phone_too(page: Page) -> None:
    page.set_viewport_size(PHONE)
    visit(page, EXAMPLES / "planted_faults/report.html")
    drawing = page.locator(".card .intervals svg").first
    assert drawing.evaluate("one => one.getBoundingClientRect().width") > 150


def test_day_and_night_have_their_colours_in_the_drawings_too(
    page: Page, files: dict[str, Path]
) -> None:
    seen = set()
    schemes: tuple[Scheme, ...] = ("light", "dark")
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        visit(page, files["small"])
        bar = page.locator(".bars path.now").first
        seen.add(bar.evaluate("one => getComputedStyle(one).fill"))
        seen.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(seen) == 4


def test_what_is_folded_is_on_paper_too(page: Page, files: dict[str, Path]) -> None:
    visit(page, files["many"])
    drawing = page.locator("#case-3 svg").first
    expect(drawing).to_be_hidden()
    page.emulate_media(media="print")
    expect(drawing).to_be_visible()
    expect(page.get_by_label("all cases")).to_be_hidden()


def test_on_a_phone_each_figure_of_a_case_says_what_it_is(page: Page) -> None:
    page.set_viewport_size(PHONE)
    visit(page, EXAMPLES / "cpu_perf/report.html")
    row = page.locator("#overview ~ .rows tbody tr").last
    row.scroll_into_view_if_needed()
    expect(row.locator("th")).to_be_in_viewport(ratio=1)
    expect(row.locator("td").last).to_be_in_viewport(ratio=1)
    label = "one => getComputedStyle(one, '::before').content"
    assert row.locator("td").first.evaluate(label) == '"acceptance length, tokens"'


@pytest.mark.parametrize("example", NAMES)
def test_the_examples_open_like_any_page(page: Page, example: str) -> None:
    path = EXAMPLES / example / "report.html"
    assert path.stat().st_size <= 2_000_000
    for viewport in SIZES:
        check_shown(page, path, viewport)
    check_accessible(page)
