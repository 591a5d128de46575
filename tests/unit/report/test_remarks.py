"""What is said of a workload whose answers say little."""

import msgspec
import pytest

from specreg.measurement.figures import AnswerFigures, figures_of
from specreg.report.remarks import workload_remarks
from tests.unit.builders import reports

FINE = AnswerFigures(
    requests=20,
    unfinished_thoughts=0,
    without_text=0,
    without_tokens=0,
    of_one_token=9,
    looping=9,
    after_empty_replies=0,
    prompts=10,
    distinct=10,
)
FIGURES = figures_of(reports.measured(), 1)


def said(answers: AnswerFigures | None, side: str = "") -> list[str]:
    return list(workload_remarks(msgspec.structs.replace(FIGURES, answers=answers), side))


def test_of_a_workload_like_others_nothing_is_said() -> None:
    assert said(FINE) == []
    assert said(None) == []
    assert said(msgspec.structs.replace(FINE, distinct=None)) == []
    assert said(msgspec.structs.replace(FINE, thinking=True, with_thought=20)) == []
    assert said(msgspec.structs.replace(FINE, thinking=False, with_thought=0)) == []


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"unfinished_thoughts": 3}, "3 of 20 answers never left the thought; raise output_cap"),
        (
            {"thinking": False, "with_thought": 4},
            "4 of 20 answers have a thought with thinking = f",
        ),
        (
            {"thinking": True, "with_thought": 0},
            "none of 20 answers has a thought with thinking = t",
        ),
        ({"after_empty_replies": 2}, "2 of 20 requests were later turns that had empty replies"),
        ({"without_text": 1}, "1 of 20 answers hold no text"),
        ({"cut_short": 3}, "3 of 20 answers were ended by the server before the output cap"),
        ({"without_text": 1, "without_tokens": 1}, "1 of 20 answers have no token"),
        ({"of_one_token": 10}, "10 of 20 answers end at their first token"),
        ({"looping": 10}, "10 of 20 answers repeat themselves"),
        ({"distinct": 1}, "all 10 prompts have the same answer"),
    ],
)
def test_what_makes_a_workload_another_one_is_said(counts: dict[str, int], words: str) -> None:
    (remark,) = said(msgspec.structs.replace(FINE, **counts))
    assert remark.startswith(f"'{FIGURES.case_id}': {words}")
    (remark,) = said(msgspec.structs.replace(FINE, **counts), "B")
    assert remark.startswith(f"'{FIGURES.case_id}', side B: {words}")


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ({"thought": 2.5, "answer": 3.0}, "about 2.50 in the thoughts and 3.00 in the answers, if"),
        ({"thought": 2.5, "answer": None}, "about 2.50 in the thoughts, if each chunk"),
        ({"thought": None, "answer": None}, ""),
    ],
)
def test_only_parts_with_an_acceptance_length_are_named(
    lengths: dict[str, float | None], words: str
) -> None:
    assert FIGURES.acceptance is not None
    total = FIGURES.acceptance.total
    parts = {
        name: msgspec.structs.replace(total, acceptance_length_tokens=length)
        for name, length in lengths.items()
    }
    acceptance = msgspec.structs.replace(FIGURES.acceptance, by_part=parts)
    remarks = list(workload_remarks(msgspec.structs.replace(FIGURES, acceptance=acceptance)))
    named = [remark for remark in remarks if "the acceptance length is" in remark]
    assert [words in remark for remark in named] == [True] * bool(words)
