"""The committed examples are what this code draws of their committed reports."""

from pathlib import Path

import pytest

from specreg.core.commands import LAUNCHER, LAUNCHER_OPTIONS
from specreg.report.files import FILE_NAME, load_report
from specreg.report.page import render_markdown, render_page
from specreg.report.pictures import render_pictures
from tests.unit import builders

EXAMPLES = sorted((builders.ROOT / "docs/examples").glob(f"*/{FILE_NAME}"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_an_example_is_what_is_drawn_of_its_report_today(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nox -s examples -- --render` draws them again."""
    for variable in (LAUNCHER, LAUNCHER_OPTIONS):
        monkeypatch.delenv(variable, raising=False)
    report = load_report(path)
    assert (path.parent / "report.html").read_text() == render_page(report)
    assert (path.parent / "report.md").read_text() == render_markdown(report)
    card = render_pictures(report)["pictures/verdict.svg"]
    assert (path.parent / "verdict.svg").read_text() == card
