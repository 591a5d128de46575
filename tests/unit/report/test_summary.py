"""What a run comes to: green is only what is known to be well."""

import dataclasses

import msgspec
import pytest

from specreg.report.document import Report, Tone
from specreg.report.gauges import render_metrics
from specreg.report.page import render_markdown, render_page
from specreg.report.summary import answers_of, notes_of, render_answers, title_of
from specreg.telemetry.identity import ProcessorLoad
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit.builders import reports
from tests.unit.builders.pages import Page
from tests.unit.builders.reports import CASE

TONES = {
    **dict.fromkeys(Outcome, Tone.DOUBT),
    **dict.fromkeys((Outcome.PASS, Outcome.IMPROVED), Tone.GOOD),
    **dict.fromkeys((Outcome.REGRESSED, Outcome.WRONG, Outcome.INVALID), Tone.BAD),
}


def judged(*verdicts: Verdict, **changes: object) -> Report:
    run = msgspec.structs.replace(reports.run_of(*verdicts), **changes)
    return msgspec.structs.replace(reports.REPORT, run=run, remarks=())


def speed(outcome: Outcome, **changes: object) -> Verdict:
    without_reason = dataclasses.replace(reports.LOST, outcome=outcome, reason=None)
    return reports.with_fields(without_reason, **changes)


def texts(report: Report) -> dict[str, str]:
    return {answer.subject: answer.text for answer in answers_of(report)}


def tones(report: Report) -> tuple[Tone, ...]:
    """The colours of acceptance, speed and power."""
    return tuple(answer.tone for answer in answers_of(report))


def test_each_outcome_has_its_colour_and_no_verdict_is_not_green() -> None:
    other_verdict = dataclasses.replace(reports.HELD, metric="acceptance_rate_frac", softened=True)
    for outcome, tone in TONES.items():
        report = judged(reports.HELD, dataclasses.replace(other_verdict, outcome=outcome))
        assert tones(report) == (tone, Tone.DOUBT, Tone.DOUBT), outcome
        assert ("holds in" in texts(report)["acceptance"]) == (tone is Tone.GOOD)


def test_what_can_not_be_told_is_red_only_where_its_test_fails() -> None:
    undecided = dataclasses.replace(reports.HELD, outcome=Outcome.INCONCLUSIVE)
    assert tones(judged(undecided))[0] is Tone.BAD
    assert tones(judged(dataclasses.replace(undecided, softened=True)))[0] is Tone.DOUBT


def test_acceptance_speed_and_power_are_answered_one_by_one() -> None:
    report = judged(
        reports.HELD,
        dataclasses.replace(reports.HELD, case_id="other", metric="lossless_frac"),
        speed(Outcome.REGRESSED, change_frac=-0.08),
        speed(Outcome.REGRESSED, metric="ttft_p50_ms", change_frac=-0.06),
        speed(Outcome.INCONCLUSIVE, metric="speedup_ratio"),
        speed(Outcome.PASS, metric="tpot_p50_ms"),
        no_power="RAPL: no readable device",
    )
    assert texts(report) == {
        "acceptance": "holds in all 2 cases",
        "speed": f"2 of 4 figures worse ({CASE.id}: throughput -8.0%), 1 undecided, 1 holds",
        "power": "not measured: RAPL: no readable device",
    }
    assert tones(report) == (Tone.GOOD, Tone.BAD, Tone.DOUBT)
    page = Page(render_page(report))
    markdown = render_markdown(report)
    banners = [tag["class"] for tag in page.all("p") if "banner" in (tag.get("class") or "")]
    assert banners == ["banner good", "banner bad", "banner doubt"]
    assert "✗ speed: 2 of 4 figures worse" in page.text
    assert "- **✓ acceptance:** holds in all 2 cases\n- **✗ speed:** 2 of 4" in markdown
    assert render_answers(answers_of(report), color=False).splitlines()[0] == (
        "acceptance: holds in all 2 cases"
    )
    assert "\x1b[1;31mspeed: 2 of 4" in render_answers(answers_of(report), color=True)


@pytest.mark.parametrize(
    ("outcome", "reason", "words"),
    [
        (Outcome.MEASURED, None, "measured, not judged"),
        (Outcome.MEASURED, "no speed; so it is", "measured, not judged (0: no speed)"),
        (Outcome.NOT_COMPARABLE, "nothing in 'x'\n  z", "not comparable (0: nothing in 'x')"),
        (Outcome.INVALID, "CLIENT_LATE: 3 ms; x", "invalid (0: CLIENT_LATE: 3 ms)"),
    ],
)
def test_what_was_not_compared_says_why(outcome: Outcome, reason: str | None, words: str) -> None:
    verdict = speed(outcome, change_frac=None, reason=reason)
    report = judged(*(dataclasses.replace(verdict, case_id=str(n)) for n in range(2)))
    assert texts(report)["speed"] == f"2 of 2 figures {words}"


def test_a_speed_of_several_launches_is_one_figure_in_every_form() -> None:
    """With --specreg-launches=3 two of them are measured before the third is judged."""
    measured = speed(Outcome.MEASURED, change_frac=None)
    report = judged(reports.HELD, measured, measured, speed(Outcome.PASS))
    assert tones(report)[:2] == (Tone.GOOD, Tone.GOOD)
    assert texts(report)["speed"] == "holds in the one case"
    for form in (render_page(report), render_markdown(report), render_metrics(report)):
        assert "MEASURED" not in form


def test_a_slowdown_by_speculation_is_said_though_it_equals_its_baseline() -> None:
    report = judged(reports.HELD, speed(Outcome.PASS), slowed={"a": 0.97, "vllm-ngram-c4": 0.534})
    assert tones(report)[:2] == (Tone.GOOD, Tone.DOUBT)
    message = (
        "holds in the one case; speculation slows down 'vllm-ngram-c4' (throughput ×0.53),"
        " 'a' (throughput ×0.97)"
    )
    assert texts(report)["speed"] == message
    assert message in Page(render_page(report)).text


def test_a_load_that_others_make_stands_beside_the_speed() -> None:
    busy = ProcessorLoad(waiting=4.0, cores=2)
    report = judged(reports.HELD, speed(Outcome.PASS), load=busy)
    message = "a load of 4.0 on 2 core(s) over the last minute"
    assert texts(report)["speed"].endswith(f"; the machine was busy when the run began: {message}")
    assert texts(report)["acceptance"] == "holds in the one case"
    quiet = judged(speed(Outcome.PASS), load=ProcessorLoad(waiting=0.9, cores=2))
    assert texts(quiet)["speed"] == "holds in the one case"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"complete": False}, "This was not the whole tier"),
        ({"exit_status": 1}, "ended with status 1, but not because of a verdict"),
    ],
    ids=["cut-short", "broken-elsewhere"],
)
def test_what_holds_is_green_and_a_note_says_what_is_missing_of_the_run(
    changes: dict[str, object], words: str
) -> None:
    report = judged(reports.HELD, speed(Outcome.PASS), **changes)
    assert tones(report) == (Tone.GOOD, Tone.GOOD, Tone.DOUBT)
    assert words in render_page(report)
    assert words in render_markdown(report)


def test_a_part_of_the_tier_holds_in_the_cases_that_ran() -> None:
    report = judged(reports.HELD, complete=False)
    assert texts(report)["acceptance"] == "holds in the case that ran"
    assert "<strong>✓ acceptance:</strong>" in render_page(report)


def test_a_check_that_does_not_apply_leaves_the_acceptance_as_it_is() -> None:
    check = dataclasses.replace(
        reports.HELD, metric="lossless_frac", outcome=Outcome.NOT_COMPARABLE
    )
    assert tones(judged(reports.HELD, check))[0] is Tone.GOOD
    assert tones(judged(check))[0] is Tone.DOUBT
    wrong = dataclasses.replace(check, outcome=Outcome.WRONG)
    assert tones(judged(reports.HELD, wrong))[0] is Tone.BAD
    other_case = dataclasses.replace(check, case_id="other")
    assert tones(judged(reports.HELD, other_case))[0] is Tone.DOUBT


def test_nothing_is_not_green() -> None:
    assert set(tones(reports.EMPTY)) == {Tone.DOUBT}
    reason = "'a' needs 4 GPUs, here are 2"
    lacks = msgspec.structs.replace(reports.EMPTY.run, skipped={"a": reason})
    skipped = msgspec.structs.replace(reports.EMPTY, run=lacks)
    assert set(texts(skipped).values()) == {f"not measured: {reason}"}


def left_out(cases: int, of: int) -> Report:
    """A run on a small card that left out so many cases of a tier, one of them for a program."""
    need = "1 GPU(s) of 76 GiB needed, this machine has 44 GiB"
    skipped = {f"case-{number}": need for number in range(cases - 1)}
    skipped["case-last"] = "no program 'tritonserver' on PATH"
    run = msgspec.structs.replace(reports.EMPTY.run, skipped=skipped)
    tier_cases = tuple(f"case-{number}" for number in range(of))
    return msgspec.structs.replace(reports.EMPTY, run=run, tier_cases=tier_cases, title="")


def test_what_a_run_left_out_is_one_line_with_the_reasons() -> None:
    note = next(note for note in notes_of(left_out(4, of=10)) if "skipped" in note)
    assert note == (
        "Cases that were skipped: 4 of 10. 3 such as case-0: 1 GPU(s) of 76 GiB needed, this"
        " machine has 44 GiB; case-last: no program 'tritonserver' on PATH."
    )


@pytest.mark.parametrize(("cases", "is_said"), [(5, False), (6, True)])
def test_a_run_that_left_out_most_of_its_tier_says_so_first(cases: int, *, is_said: bool) -> None:
    title = title_of(left_out(cases, of=10))
    assert ("which left out 6 of 10 cases" in title) is is_said
