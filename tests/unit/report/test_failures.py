"""What is said of a case that failed: plain words, each number with its unit."""

import dataclasses
from typing import Any

import msgspec
import pytest

from specreg.core.reasons import Reason
from specreg.report.failures import render_blocks, render_failures, render_skip, sentence_of
from specreg.report.since import moment_of
from specreg.verdicts.verdict import Cause, Outcome, Verdict
from tests.unit.builders import reports

LOST = dataclasses.replace(reports.LOST, case_id="a-case", reason=None, cause=None)
BROKEN = Verdict(
    case_id="a-case",
    metric="acceptance_length_tokens",
    outcome=Outcome.INVALID,
    reason=Reason(code="HUNG", text="x"),
)
CAUSE = Cause(parts=(("acceptance", -0.05), ("the cost of a step", 0.0)))
BETTER = {"low_frac": 0.02, "change_frac": 0.05, "high_frac": 0.08}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "throughput 90 tokens/s, recorded 100 tokens/s: worse by 10.0 % (8.0 to 12.0 %), to"),
        ({"cause": CAUSE}, f"tolerance 5 %; {CAUSE}"),
        (BETTER, "better by 5.0 % (2.0 to 8.0 %)"),
        ({"high_frac": 0.02}, "worse by 10.0 % (12.0 % worse to 2.0 % better)"),
        ({"metric": "power_w", "two_sided": True}, "90 W, recorded 100 W: less by 10.0 %"),
    ],
    ids=["worse", "caused", "better", "either", "watts"],
)
def test_a_change_is_a_sentence_with_its_interval_and_what_is_tolerated(
    changes: dict[str, Any], words: str
) -> None:
    assert words in sentence_of(reports.with_fields(LOST, **changes))


def test_a_reason_that_several_metrics_share_is_told_once_below_them() -> None:
    moved = Reason(code="MACHINE_MOVED", text="the server beside it became 5.0% worse too")
    second = dataclasses.replace(LOST, metric="tpot_p50_ms", reason=moved)
    broken = dataclasses.replace(BROKEN, metric="acceptance_rate_frac")
    shown = render_failures([dataclasses.replace(LOST, reason=moved), second, BROKEN, broken])
    assert [line[:24] for line in shown.splitlines()] == [
        "REGRESSED: throughput 90",
        "REGRESSED: tpot p50 90 m",
        "  MACHINE_MOVED: the ser",
        "INVALID: acceptance leng",
        "  HUNG: x",
    ]
    assert "INVALID: acceptance length, acceptance rate" in shown


def test_a_reason_of_one_metric_alone_stands_below_it() -> None:
    """Five reasons below five sentences leave it open which of them is whose."""
    first = dataclasses.replace(LOST, reason=Reason(text="by category: chat 90 -> 80"))
    second = dataclasses.replace(LOST, metric="tpot_p50_ms", reason=Reason(text="on two launches"))
    shown = render_failures([first, second])
    assert [line[:24] for line in shown.splitlines()] == [
        "REGRESSED: throughput 90",
        "  by category: chat 90 -",
        "REGRESSED: tpot p50 90 m",
        "  on two launches",
    ]


def test_an_error_is_told_in_full_in_the_first_case_that_it_stopped() -> None:
    second = dataclasses.replace(BROKEN, case_id="b-case")
    held = dataclasses.replace(LOST, case_id="c-case", outcome=Outcome.PASS)
    error = "HUNG: x\nthe last line of its log"
    blocks = render_blocks([BROKEN, second, held], {"a-case": error, "b-case": error})
    assert blocks == {
        "a-case": "INVALID: acceptance length\n  HUNG: x\n  the last line of its log",
        "b-case": "INVALID: acceptance length\n  HUNG: x\n  (as above)",
    }


def test_cases_without_an_error_repeat_nothing_of_an_earlier_one() -> None:
    first = dataclasses.replace(LOST, reason=None)
    second = dataclasses.replace(first, case_id="b-case")
    blocks = render_blocks([first, second], {})
    assert blocks["b-case"] == blocks["a-case"]
    assert "(as above)" not in blocks["b-case"]


def test_a_skipped_test_says_in_a_line_of_which_case_and_why() -> None:
    reason = Reason(
        text="nothing recorded in 'here'", remedy="record one with\n  pytest -k a-case-"
    )
    unlike = dataclasses.replace(LOST, outcome=Outcome.NOT_COMPARABLE, reason=reason)
    assert render_skip(unlike) == (
        "a-case, throughput 90 tokens/s: NOT_COMPARABLE, nothing recorded in 'here'; record one"
        " with pytest -k a-case-"
    )


def test_a_run_whose_version_is_not_known_names_none() -> None:
    run = msgspec.structs.replace(reports.past_run(21), engine_version="")
    assert moment_of(run) == "2026-11-21 02:00 UTC"
    assert moment_of(msgspec.structs.replace(run, run="by-hand")) == "run by-hand"
