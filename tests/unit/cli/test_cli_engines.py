"""The support matrix is the methods' rows, and the page that shows it is up to date."""

from typer.testing import CliRunner

from specreg.cli import app
from tests.unit import builders

PRINTED = CliRunner().invoke(app, ["engines"]).output
ROWS = {
    cells[0].strip("` "): [cell.strip() for cell in cells[1:]]
    for cells in (
        line.strip("| ").split("|")
        for line in CliRunner().invoke(app, ["engines"]).output.splitlines()[2:]
    )
}


def test_it_has_what_the_rows_say() -> None:
    heading = PRINTED.splitlines()[0]
    assert heading == "| method | reference | sglang | tensorrt_llm | triton | vllm |"
    assert ROWS["none"] == ["yes"] * 5
    assert ROWS["dflash"] == ["–", "yes", "yes", "yes", "yes"]


def test_the_page_shows_it_as_the_command_prints_it() -> None:
    assert (
        CliRunner().invoke(app, ["engines"]).output
        in (builders.ROOT / "docs" / "engines.md").read_text()
    )
