from pathlib import Path
from types import SimpleNamespace

import pytest

from specreg.compare import answers
from specreg.compare.answers import AnswerComparison
from specreg.compare.pairs import Side
from specreg.core.errors import InvalidMeasurementError
from specreg.correctness.answers import Answers, verdict_on_answers
from specreg.verdicts.judge import Outcome, Verdict
from tests.unit import builders
from tests.unit.compare.launches import PAIR

SERVER = SimpleNamespace(check_alive=lambda: None)
ALONE_A, ALONE_B = {Side.A: SERVER}, {Side.B: SERVER}


@pytest.fixture
def comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AnswerComparison:
    """Of sides that answer the same."""

    def same(case_id: str, *_: object) -> Verdict:
        return verdict_on_answers(case_id, Outcome.PASS, "")

    monkeypatch.setattr(answers, "load_case_prompts", lambda *_: ())
    monkeypatch.setattr(answers, "answers_of", lambda *_: Answers(prompts=(), answers=()))
    monkeypatch.setattr(answers, "compare_answers", same)
    path = tmp_path / "answers.json"
    return AnswerComparison(pairs=[PAIR], root=builders.ROOT, path=path, show=lambda _: None)


def outcome(comparison: AnswerComparison) -> Outcome:
    [found] = comparison.verdicts
    return found.outcome


def test_answers_of_servers_that_are_up_in_turn_are_kept_for_the_other_side(
    comparison: AnswerComparison, tmp_path: Path
) -> None:
    comparison.ask(PAIR, ALONE_A, 1)  # type: ignore[arg-type]
    assert (outcome(comparison), comparison.wants([PAIR])) == (Outcome.INVALID, True)
    resumed = AnswerComparison(
        pairs=[PAIR], root=builders.ROOT, path=tmp_path / "answers.json", show=lambda _: None
    )
    resumed.take_over()
    resumed.ask(PAIR, ALONE_B, 1)  # type: ignore[arg-type]
    assert (outcome(resumed), resumed.wants([PAIR])) == (Outcome.PASS, False)


def test_what_cant_be_compared_in_two_blocks_is_asked_for_no_more(
    comparison: AnswerComparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Answers:
        raise InvalidMeasurementError("NO_IDS", "it answers in text")

    monkeypatch.setattr(answers, "answers_of", fail)
    for block in (1, 2):
        assert comparison.wants([PAIR])
        comparison.ask(PAIR, ALONE_A, block)  # type: ignore[arg-type]
    assert not comparison.wants([PAIR])
    [found] = comparison.verdicts
    assert found.reason == "side A: NO_IDS: it answers in text"
