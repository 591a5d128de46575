"""What a report says first: the answer in one sentence, and what was compared with what."""

import dataclasses

import msgspec
import pytest

from specreg.report.document import Report, RunReport, SideReport, Tone
from specreg.report.page import render_markdown, render_page
from specreg.report.parts import Text, VerdictLine
from specreg.report.sentence import answer_of, comparison_of
from specreg.report.summary import notes_of
from specreg.report.terminal import render_report
from specreg.report.view import view_of
from specreg.telemetry.identity import ProcessorLoad
from specreg.verdicts.verdict import Cause, Comparison, Outcome, Verdict
from tests.unit.builders import reports
from tests.unit.builders.pages import Page

LENGTH_LOST = dataclasses.replace(
    reports.HELD,
    outcome=Outcome.REGRESSED,
    value=2.94,
    comparison=Comparison(expected=3.09, change_frac=-0.0718, tolerance_frac=0.02),
)


def judged(*verdicts: Verdict, **changes: object) -> RunReport:
    run = msgspec.structs.replace(reports.run_of(*verdicts), **changes)
    return msgspec.structs.replace(reports.REPORT, run=run, remarks=())


def speed(outcome: Outcome, **changes: object) -> Verdict:
    without_reason = dataclasses.replace(reports.LOST, outcome=outcome, reason=None)
    return reports.with_fields(without_reason, **changes)


def tone(report: Report) -> Tone:
    return answer_of(report)[0]


def sentence(report: Report) -> str:
    return answer_of(report)[1]


def test_each_form_begins_with_the_same_sentence() -> None:
    report = judged(reports.HELD, reports.LOST)
    line = view_of(report)[0]
    assert isinstance(line, VerdictLine)
    assert str(line).startswith("✗ draft_model ")
    assert render_report(report).startswith(str(line))
    assert Page(render_page(report)).text.partition("specreg ")[2].startswith(str(line))
    assert render_markdown(report).replace("\\", "").startswith(f"## {line}")


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.PASS, Tone.GOOD),
        (Outcome.IMPROVED, Tone.GOOD),
        (Outcome.REGRESSED, Tone.BAD),
        (Outcome.WRONG, Tone.BAD),
        (Outcome.INVALID, Tone.BAD),
        (Outcome.NO_BASELINE, Tone.DOUBT),
        (Outcome.NOT_COMPARABLE, Tone.GOOD),
        (Outcome.MEASURED, Tone.GOOD),
    ],
)
def test_the_worst_outcome_colours_the_sentence(outcome: Outcome, expected: Tone) -> None:
    assert tone(judged(reports.HELD, speed(outcome, change_frac=None))) is expected


def test_nothing_that_was_judged_is_not_green() -> None:
    assert tone(reports.EMPTY) is Tone.DOUBT
    assert tone(judged(speed(Outcome.MEASURED, change_frac=None))) is Tone.DOUBT
    reason = "'a' needs 4 GPUs, here are 2"
    skipped = judged(skipped={"a": reason}, complete=False)
    assert sentence(skipped) == f"Nothing was judged: {reason}"


def test_a_lost_acceptance_is_told_in_drafts_of_a_step() -> None:
    lost = sentence(judged(LENGTH_LOST))
    assert lost.endswith("accepts 7.2 % fewer drafts (2.09 → 1.94 a step)")


def test_a_speed_that_acceptance_alone_lost_is_told_as_acceptance() -> None:
    slower = speed(Outcome.REGRESSED, cause=Cause(parts=(("acceptance", -0.1), ("x", 0.001))))
    assert sentence(judged(slower, LENGTH_LOST)).endswith("a step), by acceptance alone")


def test_a_speed_lost_by_both_names_the_larger_part() -> None:
    cause = Cause(parts=(("acceptance", -0.2), ("the cost of a step", -0.7)))
    lost = speed(Outcome.REGRESSED, metric="speedup_ratio", value=0.5, expected=1.5, cause=cause)
    assert sentence(judged(lost, LENGTH_LOST)).endswith(
        "lost 10.0 % of its speedup (×1.50 → ×0.50, slower than without speculation),"
        " mostly by the cost of a step"
    )


def test_wrong_text_is_told_before_any_loss_of_speed() -> None:
    wrong = Verdict(case_id=reports.CASE.id, metric="lossless_frac", outcome=Outcome.WRONG)
    assert sentence(judged(reports.LOST, wrong)).endswith("changes the text of answers")


def test_of_several_lost_cases_the_worst_is_described() -> None:
    other = dataclasses.replace(reports.LOST, case_id="other", value=50.0)
    other = reports.with_fields(other, change_frac=-0.5)
    said = sentence(judged(reports.LOST, other, dataclasses.replace(reports.HELD, case_id="c")))
    assert said.startswith("2 of 3 cases are worse; other is worse in throughput by 50.0 %")


def test_figures_that_one_night_can_not_decide_stay_green_and_are_counted() -> None:
    undecided = speed(Outcome.INCONCLUSIVE, softened=True, change_frac=-0.01)
    assert answer_of(judged(reports.HELD, undecided)) == (
        Tone.GOOD,
        "1 figure holds, 1 needs more nights",
    )


def test_a_run_in_which_all_holds_says_what_speculation_gains() -> None:
    gains = [
        dataclasses.replace(
            speed(Outcome.PASS, metric="speedup_ratio", value=value), case_id=f"case-{value}"
        )
        for value in (1.79, 1.08, 1.5)
    ]
    assert sentence(judged(*gains)).endswith("figures of 3 cases hold, speedup ×1.08 to ×1.79")
    unjudged = speed(Outcome.NOT_COMPARABLE, metric="speedup_ratio", value=9.0)
    assert sentence(judged(gains[0], unjudged)).endswith("figure holds, speedup ×1.79")


def test_the_number_of_nights_that_decide_is_told_where_it_is_known() -> None:
    undecided = speed(
        Outcome.INCONCLUSIVE, softened=True, change_frac=-0.01, nights=3, needed_nights=9
    )
    assert sentence(judged(reports.HELD, undecided)) == (
        "1 figure holds, 1 needs about 5 more nights"
    )


def test_an_undecided_figure_that_looks_lost_is_named_and_not_green() -> None:
    """A speedup that was 10.4 % worse tonight isn't good news, even if nothing is proven."""
    undecided = speed(Outcome.INCONCLUSIVE, softened=True, change_frac=-0.104)
    report = judged(reports.HELD, undecided)
    assert tone(report) is Tone.DOUBT
    assert sentence(report).endswith("looks worse tonight, which isn't proven: throughput -10.4%")


def test_an_undecided_figure_whose_test_fails_is_red() -> None:
    report = judged(reports.HELD, speed(Outcome.INCONCLUSIVE))
    assert tone(report) is Tone.BAD
    assert sentence(report).startswith("1 of 2 figures can't be judged; ")


def test_what_could_not_be_judged_says_why() -> None:
    broken = speed(Outcome.INVALID, change_frac=None, reason="CLIENT_LATE: 3 ms; use less")
    assert sentence(judged(broken)).endswith(": CLIENT_LATE: 3 ms")


def test_a_recording_says_how_many_baselines_it_wrote() -> None:
    report = judged(speed(Outcome.MEASURED))
    record = msgspec.structs.replace(reports.past_run(1), run=report.run.run, recorded=True)
    case = msgspec.structs.replace(reports.CASE_REPORT, history=(record,))
    recorded = msgspec.structs.replace(report, cases=(case,))
    assert answer_of(recorded) == (Tone.GOOD, "1 baseline recorded")


def test_a_slowdown_by_speculation_is_said_though_it_equals_its_baseline() -> None:
    report = judged(reports.HELD, slowed={"a": 0.97, "vllm-ngram-c4": 0.534})
    assert tone(report) is Tone.DOUBT
    assert "speculation slows vllm-ngram-c4 down (throughput ×0.53)" in sentence(report)


def test_a_run_that_something_else_broke_is_red() -> None:
    report = judged(reports.HELD, exit_status=1)
    assert tone(report) is Tone.BAD
    assert "ended with status 1" in sentence(report)


@pytest.mark.parametrize(("cases", "is_said"), [(5, False), (6, True)])
def test_a_run_that_left_out_most_of_its_tier_says_so_first(cases: int, *, is_said: bool) -> None:
    skipped = {f"case-{number}": "no GPU" for number in range(cases)}
    report = judged(reports.HELD, skipped=skipped, complete=False)
    report = msgspec.structs.replace(report, tier_cases=tuple(map(str, range(10))))
    assert ("6 of 10 cases were left out" in sentence(report)) is is_said


def test_the_comparison_names_versions_dates_commit_and_machine() -> None:
    told = comparison_of(reports.REPORT)
    baseline = "vllm 0.32.0 against the baselines of 21 November 2026 (0.31.0)"
    assert told.startswith(f"{baseline}, on {reports.REPORT.run.environment}, commit 0123456789ab")
    assert told.endswith("21 November 2026, 02:00 UTC, tier cpu")


def test_power_that_this_machine_can_not_measure_is_a_note_and_no_doubt() -> None:
    report = judged(reports.HELD, no_power="RAPL: no readable device")
    assert tone(report) is Tone.GOOD
    assert "Power was not measured: RAPL: no readable device." in notes_of(report)


def important(report: Report) -> list[str]:
    return [part.text for part in view_of(report) if isinstance(part, Text) and part.is_important]


@pytest.mark.parametrize(
    ("speed_outcome", "said"),
    [(Outcome.PASS, "judged all the same"), (Outcome.MEASURED, "record those on a quiet machine")],
)
def test_a_load_that_others_make_says_what_it_means_for_the_verdicts(
    speed_outcome: Outcome, said: str
) -> None:
    verdicts = (reports.HELD, speed(speed_outcome))
    (note,) = important(judged(*verdicts, load=ProcessorLoad(waiting=4.0, cores=2)))
    assert "a load of 4.0 on 2 cores" in note
    assert said in note
    assert not important(judged(*verdicts, load=ProcessorLoad(waiting=0.9, cores=2)))


def too_few_launches(case_id: str, value: float, needed_launches: int) -> Verdict:
    return dataclasses.replace(
        speed(Outcome.INCONCLUSIVE, change_frac=None, low_frac=None, high_frac=None, value=value),
        case_id=case_id,
        needed_launches=needed_launches,
    )


def test_a_large_change_that_too_few_launches_show_is_said_with_what_decides_it() -> None:
    undecided = [too_few_launches(f"case-{number}", 40.0, number) for number in range(1, 6)]
    report = judged(*undecided)
    (sentence,) = important(report)
    assert "throughput 100 → 40 tokens/s in case-1, throughput" in sentence
    assert "in case-3, 2 more; with --specreg-launches=5 they" in sentence
    (sentence,) = important(reports.gate_of(report.run))
    assert "; with --launches 5 they" in sentence
    assert not important(judged(too_few_launches("case", 95.0, 4)))
    assert not important(judged(too_few_launches("case", 40.0, 0)))


def test_sides_of_equal_versions_are_described_once_and_need_no_upgrade() -> None:
    a = SideReport(name="A", text="vllm", installed="vllm 1", engine_versions=("vllm 1",))
    b = msgspec.structs.replace(a, name="B", overrides=("draft_tokens=5",))
    report = reports.gate_of(reports.run_of(reports.LOST), (a, b))
    assert sentence(report).startswith("Don't switch to vllm with draft_tokens=5: ")
    (described,) = notes_of(report)
    assert described.startswith("A and B are both vllm")


@pytest.mark.parametrize(
    ("environment", "machine"), [("unknown", ""), ("h100-80gb-x1", ", on h100-80gb-x1")]
)
def test_an_attached_server_is_on_the_machine_that_the_user_names(
    environment: str, machine: str
) -> None:
    report = judged(reports.HELD, attached="http://host:8000", environment=environment)
    assert f", at http://host:8000{machine}, " in comparison_of(report)
    assert "unknown" not in comparison_of(report)


def test_a_recording_is_compared_with_no_baseline() -> None:
    record = msgspec.structs.replace(reports.past_run(1), run=reports.REPORT.run.run, recorded=True)
    case = msgspec.structs.replace(reports.CASE_REPORT, history=(record,))
    recorded = msgspec.structs.replace(reports.REPORT, cases=(case,))
    assert "against" not in comparison_of(recorded)


def test_a_side_with_a_long_name_is_named_below_the_answer() -> None:
    settings = ("engine_env.A_VARIABLE=some_value", "draft_tokens=5")
    a = SideReport(name="A", text="vllm")
    b = SideReport(name="B", text="vllm", overrides=settings)
    report = reports.gate_of(reports.run_of(reports.LOST), (a, b))
    assert sentence(report).startswith("Don't switch to side B: ")
    named = "B, vllm with engine_env.A_VARIABLE=some_value, draft_tokens=5, against A, vllm, on "
    assert comparison_of(report).startswith(named)
