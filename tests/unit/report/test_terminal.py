"""What is said below the tables: why something isn't judged, and what to type next."""

import dataclasses
import shlex
from pathlib import Path

import msgspec
import pytest

from specreg.baselines.record import RecordedBaseline
from specreg.report.document import Answer, ArmReport, Kind, Tone
from specreg.report.markdown import render_markdown
from specreg.report.page import render_page
from specreg.report.terminal import (
    render_next,
    render_notes,
    render_recorded,
    render_report,
    render_verdicts,
)
from specreg.verdicts.judge import Outcome, Verdict
from tests.unit import builders, reports

TIER = ("--specreg-tier=cpu",)
HERE = builders.ENVIRONMENT.name
ELSEWHERE = builders.OTHER_ENVIRONMENT.name


def verdict(
    outcome: Outcome,
    *,
    case_id: str = "case",
    metric: str = "m",
    reason: str = "",
    against: str = "",
) -> Verdict:
    """A verdict without figures."""
    return Verdict(case_id=case_id, metric=metric, outcome=outcome, reason=reason, against=against)


def test_a_case_stands_above_its_metrics_and_what_is_unknown_is_a_dash() -> None:
    held = dataclasses.replace(
        verdict(Outcome.PASS, metric="tpot_p50_ms"),
        value=9.876543,
        expected=10.0,
        change_frac=0.0123,
        low_frac=-0.0251,
        high_frac=0.0494,
        tolerance_frac=0.05,
    )
    verdicts = [held, verdict(Outcome.INVALID), verdict(Outcome.PASS, case_id="other")]
    rows = [line.split() for line in render_verdicts(verdicts, width=100, color=False).split("\n")]
    assert rows[1:] == [
        ["case"],
        ["tpot_p50_ms", "9.877", "10", "+1.2%", "-2.5..+4.9%", "5.0%", "PASS"],
        ["m", "–", "–", "–", "–", "–", "INVALID"],
        ["other"],
        ["m", "–", "–", "–", "–", "–", "PASS"],
    ]


def test_the_reason_of_a_case_is_said_once() -> None:
    verdicts = [
        verdict(Outcome.INVALID, metric=metric, reason="SPEC_DISABLED: x") for metric in ("a", "b")
    ]
    other = verdict(Outcome.INVALID, case_id="other", reason="SPEC_DISABLED: x")
    assert render_notes([*verdicts, other], HERE) == (
        "case: SPEC_DISABLED: x\nother: SPEC_DISABLED: x"
    )


def test_what_was_judged_against_another_machine_names_it_once() -> None:
    verdicts = [verdict(Outcome.PASS, metric=metric, against=ELSEWHERE) for metric in ("a", "b")]
    notes = render_notes(verdicts, HERE)
    assert notes.count(ELSEWHERE) == 1
    assert notes.startswith("nothing was recorded on this kind of machine: acceptance is judged")


def test_there_is_nothing_to_note_of_what_was_judged_here() -> None:
    never = verdict(Outcome.NO_BASELINE, reason="nothing recorded; record one with x")
    assert render_notes([verdict(Outcome.REGRESSED, against=HERE), never], HERE) == ""


def test_a_baseline_that_cannot_be_read_is_said_and_so_is_what_nobody_can_tell() -> None:
    verdicts = [
        verdict(Outcome.NO_BASELINE, reason="baseline 'x.json': not JSON at line 1"),
        verdict(Outcome.INCONCLUSIVE, reason="this case sees 9 %"),
    ]
    assert render_notes(verdicts, HERE) == (
        "case: baseline 'x.json': not JSON at line 1\ncase: this case sees 9 %"
    )


def test_what_nobody_can_tell_takes_more_launches() -> None:
    undecided = verdict(Outcome.INCONCLUSIVE)
    shown = render_next(
        [undecided, dataclasses.replace(undecided, needed_launches=7)], {"case"}, TIER
    )
    assert shown.endswith("pytest tests/perf -k case- --specreg-tier=cpu --specreg-launches=7")


def test_what_no_launch_can_tell_is_not_measured_again() -> None:
    undecided = dataclasses.replace(verdict(Outcome.INCONCLUSIVE), needed_launches=0)
    assert render_next([undecided], {"case"}, TIER) == ""


def test_what_no_recording_makes_comparable_is_not_recorded() -> None:
    fewer = verdict(Outcome.NOT_COMPARABLE, reason="--num-prompts 6: a speed is of all prompts")
    assert render_next([fewer], {"case"}, TIER) == ""


def test_what_to_type_runs_the_cases_as_they_ran() -> None:
    options = (*TIER, "--specreg-matrix=my matrix", "--num-prompts=6")
    shown = render_next([verdict(Outcome.REGRESSED)], {"case"}, options)
    typed = shlex.split(shown.splitlines()[-1])
    assert typed == ["pytest", "tests/perf", "-k", "case-", *options]
    recorded = render_next([verdict(Outcome.NO_BASELINE)], {"case"}, options)
    assert shlex.split(recorded.splitlines()[-1])[2:] == [
        *options[:2],
        "--update-baselines",
    ]


def test_of_somebody_elses_server_nothing_is_launched_or_recorded() -> None:
    options = (*TIER, "--specreg-attach=http://h:1")
    assert render_next([verdict(Outcome.NO_BASELINE)], {"case"}, options) == ""
    again = render_next([verdict(Outcome.INCONCLUSIVE)], {"case"}, options)
    assert "--specreg-attach=http://h:1" in again
    assert "--specreg-launches" not in again


@pytest.mark.parametrize("outcome", [Outcome.PASS, Outcome.IMPROVED, Outcome.MEASURED])
def test_there_is_nothing_to_do_about_what_holds(outcome: Outcome) -> None:
    assert render_next([verdict(outcome)], {"case"}, TIER) == ""


def test_the_whole_tier_is_recorded_only_when_all_of_it_is_new() -> None:
    new = [verdict(Outcome.NO_BASELINE)]
    whole = "pytest tests/perf --specreg-tier=cpu --update-baselines"
    assert whole in render_next(new, {"case"}, TIER)
    part = render_next(new, {"case", "other"}, TIER)
    assert "pytest tests/perf -k case- --specreg-tier=cpu" in part
    assert "--update-baselines" in part


def test_a_recorded_change_is_positive_when_better() -> None:
    record = RecordedBaseline(
        path=Path("cpu-x/case.json"),
        old=builders.baseline({"tpot_p50_ms": 10.0, "speedup_ratio": 1.0}),
        new=builders.baseline({"tpot_p50_ms": 9.0}, {"tpot_p50_ms": 9.0}),
    )
    lines = render_recorded([record], width=100, color=False).splitlines()
    (row,) = (line.split() for line in lines if "tpot_p50_ms" in line)
    assert row == ["tpot_p50_ms", "10", "9", "+10.0%", "+10.0..+10.0%", "0.0%", "2"]
    assert not [line for line in lines if "speedup_ratio" in line]


def test_an_interval_beyond_a_factor_of_ten_takes_no_room() -> None:
    wide = dataclasses.replace(verdict(Outcome.INCONCLUSIVE), low_frac=-2.6e15, high_frac=38.0)
    assert "<-999..>999%" in render_verdicts([wide], width=100, color=False)


def test_a_case_of_several_launches_is_shown_once() -> None:
    measured = [verdict(Outcome.MEASURED), verdict(Outcome.MEASURED, case_id="b")]
    shown = render_verdicts([*measured, *measured, verdict(Outcome.PASS)], width=100, color=False)
    rows = [line.split() for line in shown.splitlines()[1:]]
    assert [row[0] for row in rows] == ["case", "m", "b", "m"]
    assert [row[-1] for row in rows if row[0] == "m"] == ["PASS", "MEASURED"]


GATE = msgspec.structs.replace(
    reports.REPORT,
    kind=Kind.GATE,
    title="DON'T: vllm==0.31.0 → vllm==0.32.0",
    answers=(Answer(subject="don't", tone=Tone.BAD, text="throughput is worse"),),
    arms=(
        ArmReport(name="A", text="vllm==0.31.0", engine_versions=("0.31.0",)),
        ArmReport(name="B", text="vllm==0.32.0", overrides=("draft_tokens=5",)),
    ),
    control=(reports.HELD,),
    hints=("go on: type the same with --resume",),
)


def test_a_gate_is_shown_by_its_own_words_and_arms() -> None:
    shown = render_report(GATE, width=110, color=False)
    assert shown.startswith("DON'T: vllm==0.31.0 → vllm==0.32.0\n\ndon't: throughput is worse\n\n")
    assert "A is vllm==0.31.0; its servers said 0.31.0\nB is vllm==0.32.0 with draft" in shown
    heads = [line.split() for line in shown.splitlines() if line.startswith("case and metric")]
    assert [head[3:5] for head in heads] == [["B", "A"], ["A2", "A"]]
    assert "the control, A against itself:" in shown
    assert shown.endswith("\na remark\n\ngo on: type the same with --resume")
    markdown, page = render_markdown(GATE), render_page(GATE)
    assert "| outcome | A | B | change | why |" in markdown
    assert "The control: A against itself" in page
    for words in ("throughput is worse", "--resume", "draft_tokens=5"):
        assert words in page
        assert words in markdown.replace("\\", "")


def test_a_run_is_shown_with_its_answers_first_and_what_to_type_last() -> None:
    shown = render_report(reports.REPORT, width=110, color=False)
    assert shown.startswith("tier cpu on ")
    assert shown.index("speed: 1 of 1 figures worse") < shown.index("case and metric")
    assert shown.endswith(f"pytest tests/perf -k {reports.CASE.id}- --specreg-tier=cpu")
