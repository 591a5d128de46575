"""The support matrix is the methods' rows, and the page that shows it is up to date."""

import dataclasses

import pytest
from typer.testing import CliRunner

from specreg.acceptance.record import Gauges, Source, StepCounts
from specreg.cli import app
from specreg.load.rounds import Round
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Replay
from specreg.measurement.validity import all_invalid
from specreg.report.tables import render_gauges, render_side_by_side
from specreg.stats.alpha_spending import Look
from tests.unit import builders

PRINTED = CliRunner().invoke(app, ["engines"]).output
ROWS = {
    cells[0].strip("` "): [cell.strip() for cell in cells[1:]]
    for cells in (
        line.strip("| ").split("|")
        for line in CliRunner().invoke(app, ["engines"]).output.splitlines()[2:]
    )
}


def on(engine: str, counts: StepCounts, *, source: Source, requests: int) -> Measurement:
    """A case on an engine, measured with so many requests."""
    server = dataclasses.replace(builders.SPEC, engine=engine)
    case = dataclasses.replace(builders.CASE, server=server)
    found = builders.acceptance(counts, source, prompts=2)
    if source is Source.TRTLLM_COUNTERS:
        found = dataclasses.replace(found, prompts=())
    traces = (builders.trace(builders.chunk(1)),) * requests
    done = Round(traces=traces, started_ns=0, ended_ns=1)
    replay = Replay(rounds=(done,), control_rounds=(), acceptance=found)
    return dataclasses.replace(builders.measurement({}, case=case), replay=replay)


def shown(*measurements: Measurement) -> list[list[str]]:
    """The cells of the table's rows, without its heading and the case's name."""
    lines = render_side_by_side(measurements, width=120, color=False).splitlines()
    return [line.split() for line in lines[2:]]


LISTS = (("documents", ["one", "two"]),)
LESS, MORE = builders.counts(10, 0, 5, 5), builders.counts(8, 0, 6, 6)
"""AL - 1 of 1.25 and 1.5: a change of a fifth."""
BY_REQUEST, BY_COUNTERS = Source.VLLM_REQUEST, Source.TRTLLM_COUNTERS


def test_a_case_on_two_engines_stands_side_by_side_with_its_sources() -> None:
    vllm = on("vllm", LESS, source=BY_REQUEST, requests=2)
    sglang = on("sglang", MORE, source=Source.SGLANG_REQUEST, requests=2)
    table = render_side_by_side([vllm, sglang], width=120, color=False).splitlines()
    assert table[0].split()[:3] == ["on", "several", "engines"]
    assert table[1].strip() == "draft_model-toy-toy-c2"
    assert shown(vllm, sglang) == [
        ["vllm", "0.32.0", "vllm_request", "verifier", "40", "2.25", "0.4167", "–"],
        ["sglang", "0.32.0", "sglang_request", "verifier", "40", "2.5", "0.5", "+20.0%"],
    ]
    assert render_side_by_side([vllm], width=120, color=False) == ""


def test_arguments_of_a_template_may_be_lists() -> None:
    """A case with such an argument is no key of a mapping."""
    both = [
        dataclasses.replace(one, case=dataclasses.replace(one.case, chat_template_args=LISTS))
        for one in (
            on("vllm", LESS, source=BY_REQUEST, requests=2),
            on("sglang", MORE, source=Source.SGLANG_REQUEST, requests=2),
        )
    ]
    assert len(shown(*both)) == 2


@pytest.mark.parametrize(
    ("first", "second", "change"),
    [
        pytest.param((BY_REQUEST, 2), (BY_COUNTERS, 2), "+20.0%", id="as-many-requests"),
        pytest.param((BY_COUNTERS, 2), (BY_COUNTERS, 1), "–", id="fewer"),
        pytest.param((BY_REQUEST, 2), (BY_REQUEST, 1), "–", id="stopped-early"),
    ],
)
def test_the_change_is_that_of_as_many_requests(
    first: tuple[Source, int], second: tuple[Source, int], change: str
) -> None:
    """Of single requests counters tell nothing: none on both sides says nothing of how many."""
    one = on("vllm", LESS, source=first[0], requests=first[1])
    other = on("tensorrt_llm", MORE, source=second[0], requests=second[1])
    assert shown(one, other)[1][-1] == change


def test_more_prompts_for_the_acceptance_alone_are_more_requests() -> None:
    one = on("vllm", LESS, source=BY_COUNTERS, requests=2)
    other = on("tensorrt_llm", MORE, source=BY_COUNTERS, requests=2)
    assert shown(one, other)[1][-1] == "+20.0%"
    extended = dataclasses.replace(other, look=Look.EXTENDED)
    assert shown(one, extended)[1][-1] == "–"


def test_it_has_what_the_rows_say() -> None:
    heading = PRINTED.splitlines()[0]
    assert heading == "| method | reference | sglang | tensorrt_llm | triton | vllm |"
    assert ROWS["none"] == ["yes"] * 5
    assert ROWS["lookahead"] == ["–", "–", "yes", "–", "–"]
    assert ROWS["dflash"] == ["–", "yes", "yes", "yes", "yes"]


def test_the_page_shows_it_as_the_command_prints_it() -> None:
    assert (
        CliRunner().invoke(app, ["engines"]).output
        in (builders.ROOT / "docs" / "engines.md").read_text()
    )


def test_what_a_server_says_of_itself_is_said_to_be_its_own() -> None:
    silent = builders.measurement({"acceptance_length_tokens": 2.5})
    assert silent.replay is not None
    gauges = Gauges(acceptance_length_tokens=1.525, acceptance_rate_frac=0.175)
    told = dataclasses.replace(silent, replay=dataclasses.replace(silent.replay, gauges=gauges))
    broken = dataclasses.replace(silent, replay=None, invalid=all_invalid("SPEC_DISABLED: x"))
    assert render_gauges([silent, broken]) == ""
    assert render_gauges([told]) == (
        "vllm-draft_model-toy-toy-c2: the server's own gauges, of its last 40 decode iterations and"
        " never judged: length 1.525, rate 0.175"
    )
