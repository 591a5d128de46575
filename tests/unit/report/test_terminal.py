"""What is said below the tables: why something isn't judged, and what to type next."""

import dataclasses
import html
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
import pytest

from specreg.acceptance.record import Source, StepCounts
from specreg.baselines.record import RecordedBaseline
from specreg.core.reasons import Reason
from specreg.report.document import Report, RunReport, SideReport
from specreg.report.next_steps import next_steps
from specreg.report.page import render_markdown, render_page
from specreg.report.parts import Commands
from specreg.report.screen import Screen
from specreg.report.terminal import (
    render_notes,
    render_recorded,
    render_report,
    render_unjudged,
    render_verdicts,
)
from specreg.verdicts.verdict import Lack, Outcome, Verdict
from tests.unit import builders
from tests.unit.builders import reports
from tests.unit.builders.reports import verdict

HERE = builders.ENVIRONMENT.name
ELSEWHERE = builders.OTHER_ENVIRONMENT.name


def test_a_case_stands_above_its_metrics_and_what_is_unknown_is_a_dash() -> None:
    held = verdict(
        Outcome.PASS,
        metric="tpot_p50_ms",
        value=9.876543,
        expected=10.0,
        change_frac=0.0123,
        low_frac=-0.0251,
        high_frac=0.0494,
        tolerance_frac=0.05,
    )
    verdicts = [held, verdict(Outcome.INVALID), verdict(Outcome.PASS, case_id="other")]
    rows = [line.split() for line in render_verdicts(verdicts).split("\n")]
    assert rows[1:-1] == [
        ["case"],
        ["tpot_p50_ms", "10", "9.877", "+1.2%", "-2.5..+4.9%", "5", "%", "PASS"],
        ["m", "–", "–", "–", "–", "–", "INVALID"],
        ["other"],
        ["m", "–", "–", "–", "–", "–", "PASS"],
    ]


def test_the_reason_of_a_case_is_said_once_and_so_is_another_machine() -> None:
    broken = verdict(Outcome.INVALID, reason="SPEC_DISABLED: x")
    second = dataclasses.replace(broken, case_id="other")
    torn = verdict(Outcome.NO_BASELINE, reason="not JSON at line 1", lacks=Lack.FILE)
    never = verdict(
        Outcome.NO_BASELINE, case_id="new", reason="nothing recorded", lacks=Lack.BASELINE
    )
    speed = verdict(Outcome.NOT_COMPARABLE, reason="nothing recorded", lacks=Lack.BASELINE)
    unlike = dataclasses.replace(speed, reason=Reason(text="counted otherwise"), lacks=Lack.SOURCE)
    here = verdict(Outcome.REGRESSED, against=HERE)
    repeated = dataclasses.replace(broken, metric="b")
    verdicts = [broken, repeated, second, torn, never, speed, unlike, here]
    assert render_notes(verdicts, HERE).splitlines() == [
        "case: SPEC_DISABLED: x",
        "other: SPEC_DISABLED: x",
        "case: not JSON at line 1",
        "case: counted otherwise",
    ]
    foreign = [verdict(Outcome.PASS, metric=metric, against=ELSEWHERE) for metric in ("a", "b")]
    notes = render_notes(foreign, HERE)
    assert notes.count(ELSEWHERE) == 1
    assert notes == (
        "nothing was recorded on this kind of machine for 'case': its acceptance is judged against"
        f" {ELSEWHERE}, where more is tolerated; its speed is not comparable"
    )


def test_the_reason_of_a_compared_figure_names_it() -> None:
    lost = verdict(
        Outcome.REGRESSED,
        metric="acceptance_length_tokens",
        value=2.5,
        expected=3.0,
        reason="a first launch had 1.5",
    )
    assert render_notes([lost], HERE) == "case, acceptance_length-1: a first launch had 1.5"


def test_no_interval_reaches_below_a_loss_of_all() -> None:
    ends = {"change_frac": -0.99, "low_frac": -1.007, "high_frac": -0.974}
    share = verdict(Outcome.REGRESSED, metric="acceptance_pos3_frac", **ends)
    assert "-100.0..-97.4%" in render_verdicts([share])
    # A time can become more than twice as long.
    time = verdict(Outcome.REGRESSED, metric="ttft_p50_ms", **ends)
    assert "-100.7..-97.4%" in render_verdicts([time])


def test_only_the_cases_that_nothing_was_recorded_for_are_judged_against_other_machines() -> None:
    verdicts = [
        verdict(Outcome.PASS, against=HERE),
        verdict(Outcome.PASS, case_id="a", against=ELSEWHERE),
        verdict(Outcome.PASS, case_id="b", against="published"),
    ]
    assert render_notes(verdicts, HERE) == (
        "nothing was recorded on this kind of machine for 2 cases: their acceptance is judged"
        f" against {ELSEWHERE} and published figures, where more is tolerated; their speed is not"
        " comparable"
    )


ATTACHED = "--specreg-attach=http://h:1"
MINE = ("--specreg-matrix=my matrix", "--num-prompts=6")
K = "pytest -k case- --specreg-tier=cpu"


@pytest.mark.parametrize(
    ("judged", "options", "typed"),
    [
        (verdict(Outcome.REGRESSED), MINE, f"{K} '--specreg-matrix=my matrix' --num-prompts=6"),
        (verdict(Outcome.INVALID), (), K),
        (verdict(Outcome.INCONCLUSIVE), (ATTACHED,), f"{K} {ATTACHED}"),
        (verdict(Outcome.INCONCLUSIVE, needed_launches=7), (), f"{K} --specreg-launches=7"),
        (verdict(Outcome.INCONCLUSIVE, needed_launches=7), (ATTACHED,), f"{K} {ATTACHED}"),
        (verdict(Outcome.NOT_COMPARABLE, lacks=Lack.SOURCE), (), f"{K} --update-baselines"),
        (verdict(Outcome.NO_BASELINE), (), f"{K} --update-baselines"),
    ],
)
def test_what_to_type_next_runs_the_cases_as_they_ran(
    judged: Verdict, options: tuple[str, ...], typed: str
) -> None:
    assert commands([judged], {"case", "other"}, ("--specreg-tier=cpu", *options))[-1] == typed


@pytest.mark.parametrize(
    ("judged", "options"),
    [
        (verdict(Outcome.INCONCLUSIVE, needed_launches=0), ()),
        (verdict(Outcome.NOT_COMPARABLE, reason="record one"), ()),
        (verdict(Outcome.NO_BASELINE), (ATTACHED,)),
        (verdict(Outcome.PASS), ()),
        (verdict(Outcome.MEASURED), ()),
    ],
)
def test_where_nothing_is_wrong_the_same_command_is_named_for_another_night(
    judged: Verdict, options: tuple[str, ...]
) -> None:
    command = " ".join(("pytest -k case-", *options))
    assert commands([judged], {"case", "other"}, options) == [command]
    assert commands([judged], {"case"}, options) == [" ".join(("pytest tests/perf", *options))]


def commands(
    verdicts: Sequence[Verdict], whole_ids: Collection[str], options: tuple[str, ...] = ()
) -> list[str]:
    """What to type after a part of a tier."""
    return commands_of(after(verdicts, whole_ids, options))


def after(
    verdicts: Sequence[Verdict], whole_ids: Collection[str], options: tuple[str, ...] = ()
) -> RunReport:
    """A run of a part of a tier."""
    origin = msgspec.structs.replace(reports.REPORT.origin, options=options, command="typed")
    run = msgspec.structs.replace(reports.run_of(*verdicts), complete=False)
    return msgspec.structs.replace(
        reports.REPORT, run=run, origin=origin, cases=(), tier_cases=tuple(whole_ids)
    )


def commands_of(report: Report) -> list[str]:
    parts = [part for part in next_steps(report) if isinstance(part, Commands)]
    return [command for part in parts for command in part.commands]


def test_the_whole_tier_is_recorded_only_when_all_of_it_is_new() -> None:
    shown = commands([verdict(Outcome.NO_BASELINE)], {"case"}, ("--specreg-tier=cpu",))
    assert shown == ["pytest tests/perf --specreg-tier=cpu --update-baselines"]


def test_a_command_that_runs_all_names_no_case() -> None:
    verdicts = [verdict(Outcome.REGRESSED), verdict(Outcome.INVALID, case_id="other")]
    shown = commands(verdicts, {"case", "other"})
    assert shown == ["pytest -k case-", "pytest -k other-"]
    worse = [dataclasses.replace(judged, outcome=Outcome.REGRESSED) for judged in verdicts]
    assert commands(worse, {"case", "other"}) == ["pytest tests/perf"]


def test_a_report_of_a_whole_run_names_no_case_where_all_lack_a_baseline() -> None:
    """A tier has cases without speculation, of which nothing is judged."""
    lacking = dataclasses.replace(reports.HELD, outcome=Outcome.NO_BASELINE)
    report = msgspec.structs.replace(
        reports.with_verdicts(lacking), tier_cases=(reports.CASE.id, "vllm-none-toy-toy-c2")
    )
    assert commands_of(report) == ["pytest tests/perf --specreg-tier=cpu --update-baselines"]


def test_a_loss_with_a_new_version_of_the_engine_is_asked_of_a_gate_first() -> None:
    asked, again = commands_of(reports.with_verdicts(reports.LOST))
    assert asked == f"specreg gate vllm==0.31.0 vllm==0.32.0 --case {reports.CASE.id}"
    assert again == "pytest tests/perf --specreg-tier=cpu"
    same = msgspec.structs.replace(reports.EXPECTED, engine_version=reports.FIGURES.engine_version)
    assert commands_of(reports.with_case(expected=same)) == [again]


@pytest.mark.parametrize("version", ["0.31.0; rm -rf x", "--help", ""])
def test_a_version_that_no_index_has_is_typed_nowhere(version: str) -> None:
    expected = msgspec.structs.replace(reports.EXPECTED, engine_version=version)
    assert len(commands_of(reports.with_case(expected=expected))) == 1


def test_a_gate_that_says_no_names_the_search_for_the_release() -> None:
    sides = [msgspec.structs.replace(side, overrides=()) for side in GATE.sides]
    assert commands_of(msgspec.structs.replace(GATE, sides=tuple(sides))) == [
        f"specreg bisect --good vllm==0.31.0 --bad vllm==0.32.0 {reports.CASE.id}"
    ]
    # The releases alone don't differ in a setting.
    assert commands_of(GATE) == []


def test_a_recorded_change_is_positive_when_better() -> None:
    record = RecordedBaseline(
        path=Path("cpu-x/case.json"),
        old=builders.baseline({"tpot_p50_ms": 10.0, "speedup_ratio": 1.0}),
        new=builders.baseline({"tpot_p50_ms": 9.0}, {"tpot_p50_ms": 9.0}),
    )
    lines = render_recorded([record]).splitlines()
    (row,) = (line.split() for line in lines if "tpot_p50_ms" in line)
    assert row == ["tpot_p50_ms", "10", "9", "+10.0%", "+10.0..+10.0%", "0.0%", "2"]
    assert not [line for line in lines if "speedup_ratio" in line]


def test_a_recorded_acceptance_without_speeds_has_no_number_of_launches() -> None:
    new = builders.baseline(of=StepCounts.from_histogram([10, 10, 10, 30], 180))
    recorded = RecordedBaseline(path=Path("cpu-x/case.json"), old=None, new=new)
    lines = render_recorded([recorded]).splitlines()
    (row,) = (line.split() for line in lines if "acceptance_length_tokens" in line)
    assert row == ["acceptance_length_tokens", "–", "3", "–", "–", "–", "–"]


def test_a_recording_says_what_no_run_can_judge_by_it() -> None:
    """On an H100 vLLM 0.26.0 was recorded green, and each run after that was red."""
    counts = StepCounts.from_histogram([10, 10, 10, 30], 180)
    speeds = {"tpot_p50_ms": 10.0}
    of_all = builders.stored(counts, Source.VLLM_COUNTERS, prompts=0)
    baseline = builders.baseline(speeds, speeds, of=counts)
    baselines = {
        "of-all": msgspec.structs.replace(baseline, acceptance=of_all),
        "one-launch": builders.baseline(of=counts),
        "whole": baseline,
        "untimed": builders.baseline(of=counts),
    }
    launches = {"of-all": 3, "one-launch": 1, "whole": 3}
    recorded = [
        RecordedBaseline(path=Path(f"gpu-x/{name}.json"), old=None, new=new)
        for name, new in baselines.items()
    ]
    head, of_all_line, one_launch_line = render_unjudged(recorded, launches).splitlines()
    assert head == "no run can judge these by what was recorded:"
    assert of_all_line.startswith(
        "  of-all: acceptance, as the engine counts for all requests together"
    )
    assert one_launch_line.startswith(
        "  one-launch: speed and power, as one launch doesn't show how"
    )
    assert not render_unjudged(recorded[2:], launches)


def test_a_recording_of_several_launches_without_a_valid_speed_is_not_one_launch() -> None:
    new = builders.baseline(of=StepCounts.from_histogram([10, 10, 10, 30], 180))
    recorded = [RecordedBaseline(path=Path("gpu-x/lagged.json"), old=None, new=new)]
    _, line = render_unjudged(recorded, {"lagged": 3}).splitlines()
    assert line == (
        "  lagged: speed and power, as a launch has no valid values of them; record the case again"
    )


def test_a_case_of_several_launches_is_shown_once() -> None:
    measured = [verdict(Outcome.MEASURED), verdict(Outcome.MEASURED, case_id="b")]
    shown = render_verdicts([*measured, *measured, verdict(Outcome.PASS)])
    rows = [line.split() for line in shown.splitlines()[1:]]
    assert [row[0] for row in rows] == ["case", "m", "b", "m", "change:"]
    assert [row[-1] for row in rows if row[0] == "m"] == ["PASS", "MEASURED"]


GATE = msgspec.structs.replace(
    reports.gate_of(
        reports.REPORT.run,
        sides=(
            SideReport(name="A", text="vllm==0.31.0", engine_versions=("0.31.0",)),
            SideReport(name="B", text="vllm==0.32.0", overrides=("draft_tokens=5",)),
        ),
    ),
    remarks=reports.REPORT.remarks,
    control=(reports.HELD,),
    hints=("to continue, type the same command with --resume",),
)


def test_a_gate_is_shown_by_its_own_words_and_arms() -> None:
    shown = render_report(GATE)
    assert shown.startswith("✗ Don't upgrade to vllm 0.32.0 with draft_tokens=5: ")
    assert "B, vllm 0.32.0 with draft_tokens=5, against A, vllm 0.31.0, on " in shown
    assert "A is vllm==0.31.0; its servers reported 0.31.0\nB is vllm==0.32.0\n" in shown
    heads = [line.split() for line in shown.splitlines() if line.startswith("case and metric")]
    assert [head[3:5] for head in heads] == [["0.31.0", "0.32.0"], ["A", "A2"]]
    assert "the control, A against itself:" in shown
    assert "\nto continue, type the same command with --resume\n" in shown
    markdown = render_markdown(GATE)
    page = render_page(GATE)
    assert "| outcome | A | B | change | why |" in markdown
    assert "The control: A against itself" in page
    for words in ("Don't upgrade", "--resume", "draft_tokens=5"):
        assert words in html.unescape(page)
        assert words in markdown.replace("\\", "")


def test_the_case_that_the_answer_names_is_the_first_of_the_table() -> None:
    shown = [
        verdict(Outcome.PASS, case_id="fine"),
        verdict(Outcome.REGRESSED, case_id="worse", metric="throughput_tokens_per_s"),
        verdict(
            Outcome.REGRESSED, case_id="worst", metric="speedup_ratio", value=1.0, change_frac=-0.5
        ),
    ]
    table = render_report(reports.with_verdicts(*shown)).partition("case and metric")[2]
    case_ids = [line for line in table.splitlines() if line in {"fine", "worse", "worst"}]
    assert case_ids == ["worst", "worse", "fine"]


def test_36_passing_cases_are_counted_and_shown_if_more_is_asked_for() -> None:
    verdicts = [
        verdict(Outcome.PASS, case_id=f"case-{number}", metric=metric)
        for number in range(36)
        for metric in ("tpot_p50_ms", "ttft_p50_ms")
    ]
    lost = verdict(Outcome.REGRESSED, case_id="lost")
    run = msgspec.structs.replace(reports.REPORT.run, verdicts=(*verdicts, lost))
    report = msgspec.structs.replace(reports.REPORT, run=run)
    shown = render_report(report)
    assert "72 hold" in shown
    assert "  tpot_p50_ms" not in shown
    assert "REGRESSED" in shown
    assert len(shown.splitlines()) <= 30
    assert render_report(report, Screen(verbose=True)).count("  tpot_p50_ms") == 36
