"""What a gate says between its launches."""

from specreg.compare.judging import Decision, GateAnswer
from specreg.compare.progress import render_progress
from specreg.verdicts.verdict import Comparison, Outcome, Verdict
from tests.unit.builders.gates import PAIR


def progress(*verdicts: Verdict) -> list[str]:
    decision = Decision(answer=GateAnswer.UNDECIDED, verdicts=verdicts)
    return [
        line.removeprefix(f"{PAIR.id}: ")
        for line in render_progress(decision, [PAIR], (1, 2, 4, 8, 16))
    ]


def verdict(metric: str, outcome: Outcome, **fields: object) -> Verdict:
    return Verdict(case_id=PAIR.id, metric=metric, outcome=outcome, **fields)  # type: ignore[arg-type]


def test_progress_names_what_holds_and_how_many_launches_the_rest_needs() -> None:
    held = verdict("acceptance_length_tokens", Outcome.PASS)
    change = Comparison(change_frac=0.003, low_frac=-0.038, high_frac=0.044)
    undecided = verdict(
        "throughput_tokens_per_s",
        Outcome.INCONCLUSIVE,
        comparison=change,
        launches=2,
        needed_launches=5,
    )
    assert progress(held, undecided) == [
        "acceptance length holds, throughput +0.3 % ± 4.1 %, to be decided after 8 launches"
    ]


def test_a_loss_is_named_with_its_change_and_what_has_no_interval_is_open() -> None:
    change = Comparison(change_frac=-0.077, low_frac=-0.1, high_frac=-0.05)
    lost = verdict("acceptance_length_tokens", Outcome.REGRESSED, comparison=change)
    unknown = verdict("throughput_tokens_per_s", Outcome.INCONCLUSIVE, needed_launches=2)
    (line,) = progress(lost, unknown)
    assert line.startswith("acceptance length lost: -7.7 % ± 2.5 %, throughput undecided, ")
    assert line.endswith("after 2 launches")


def test_a_pair_of_which_nothing_was_judged_has_no_line() -> None:
    assert progress() == []


def test_the_estimate_is_the_look_that_decides_and_stays_between_two_looks() -> None:
    for launches, needed in ((2, 5), (3, 7), (5, 8)):
        unknown = verdict(
            "throughput_tokens_per_s",
            Outcome.INCONCLUSIVE,
            launches=launches,
            needed_launches=needed,
        )
        assert progress(unknown) == ["throughput undecided, to be decided after 8 launches"]


def test_what_no_practical_number_of_launches_decides_gets_no_number() -> None:
    unknown = verdict("throughput_tokens_per_s", Outcome.INCONCLUSIVE, needed_launches=191)
    (line,) = progress(unknown)
    assert "191" not in line
    assert "tolerance" in line
