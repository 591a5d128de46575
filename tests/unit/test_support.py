"""The support matrix is the methods' rows, and the page that shows it is up to date."""

from typer.testing import CliRunner

from specreg.cli import app
from specreg.report.engines import render_support
from tests.unit import builders

ROWS = {
    cells[0].strip("` "): [cell.strip() for cell in cells[1:]]
    for cells in (line.strip("| ").split("|") for line in render_support().splitlines()[2:])
}


def test_it_has_what_the_rows_say() -> None:
    heading = render_support().splitlines()[0]
    assert heading == "| method | reference | sglang | tensorrt_llm | triton | vllm |"
    assert ROWS["none"] == ["yes"] * 5
    assert ROWS["lookahead"] == ["–", "–", "yes", "–", "–"]
    assert ROWS["dflash"] == ["–", "yes", "–", "yes", "yes"]


def test_the_page_shows_it_as_the_command_prints_it() -> None:
    printed = CliRunner().invoke(app, ["engines"]).output
    assert printed == f"{render_support()}\n"
    assert printed in (builders.ROOT / "docs" / "engines.md").read_text()
