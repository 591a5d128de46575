"""What a gate says between its launches."""

from specreg.compare.judging import Decision, GateAnswer
from specreg.compare.progress import render_progress
from specreg.verdicts.verdict import Comparison, Outcome, Verdict
from tests.unit.builders.gates import PAIR


def progress(*verdicts: Verdict) -> list[str]:
    decision = Decision(answer=GateAnswer.UNDECIDED, verdicts=verdicts)
    return [line.removeprefix(f"{PAIR.id}: ") for line in render_progress(decision, [PAIR])]


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
        "acceptance length holds, throughput +0.3 % ± 4.1 %, about 3 more launches"
    ]


def test_a_loss_is_named_with_its_change_and_what_has_no_interval_is_open() -> None:
    change = Comparison(change_frac=-0.077, low_frac=-0.1, high_frac=-0.05)
    lost = verdict("acceptance_length_tokens", Outcome.REGRESSED, comparison=change)
    unknown = verdict("throughput_tokens_per_s", Outcome.INCONCLUSIVE, needed_launches=2)
    assert progress(lost, unknown) == [
        "acceptance length lost: -7.7 % ± 2.5 %, throughput undecided, about 1 more launch"
    ]


def test_a_pair_of_which_nothing_was_judged_has_no_line() -> None:
    assert progress() == []
