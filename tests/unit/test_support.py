"""The support matrix is the methods' rows, and the page that shows it is up to date."""

import dataclasses

from typer.testing import CliRunner

from specreg.acceptance.record import Gauges
from specreg.cli import app
from specreg.report.engines import render_gauges, render_support
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
    assert ROWS["dflash"] == ["–", "yes", "yes", "yes", "yes"]


def test_the_page_shows_it_as_the_command_prints_it() -> None:
    printed = CliRunner().invoke(app, ["engines"]).output
    assert printed == f"{render_support()}\n"
    assert printed in (builders.ROOT / "docs" / "engines.md").read_text()


def test_what_a_server_says_of_itself_is_said_to_be_its_own() -> None:
    silent = builders.measurement({"acceptance_length_tokens": 2.5})
    assert silent.replay is not None
    gauges = Gauges(acceptance_length_tokens=1.525, acceptance_rate_frac=0.175)
    told = dataclasses.replace(silent, replay=dataclasses.replace(silent.replay, gauges=gauges))
    broken = dataclasses.replace(silent, replay=None, invalid="SPEC_DISABLED: x")
    assert render_gauges([silent, broken]) == ""
    assert render_gauges([told]) == (
        "vllm-draft_model-toy-toy-c2: the server's own gauges, of its last 40 decode iterations and"
        " never judged: length 1.525, rate 0.175"
    )
