"""Notes on what the answer of a run leaves open."""

import msgspec
import pytest

from specreg.report.document import RunReport, Tone
from specreg.report.summary import notes_of, tone_of
from specreg.verdicts.verdict import Outcome
from tests.unit.builders import reports


def left_out(cases: int, of: int) -> RunReport:
    """A run on a small card that left out so many cases of a tier, one of them for a program."""
    need = "1 GPU(s) of 76 GiB needed, this machine has 44 GiB"
    skipped = {f"case-{number}": need for number in range(cases - 1)}
    skipped["case-last"] = "no program 'tritonserver' on PATH"
    run = msgspec.structs.replace(reports.EMPTY.run, skipped=skipped)
    tier_cases = tuple(f"case-{number}" for number in range(of))
    return msgspec.structs.replace(reports.EMPTY, run=run, tier_cases=tier_cases)


def test_what_a_run_left_out_is_one_line_with_the_reasons() -> None:
    note = next(note for note in notes_of(left_out(4, of=10)) if "skipped" in note)
    assert note == (
        "Cases that were skipped: 4 of 10. 3 such as case-0: 1 GPU(s) of 76 GiB needed, this"
        " machine has 44 GiB; case-last: no program 'tritonserver' on PATH."
    )


@pytest.mark.parametrize(
    ("tier_cases", "said"),
    [
        ((reports.CASE.id, "other"), "This was not the whole tier: 1 of 2 cases were judged."),
        ((reports.CASE.id,), "Not all tests of the tier ran, though each case was judged."),
    ],
)
def test_a_part_of_a_tier_says_what_is_missing(tier_cases: tuple[str, ...], said: str) -> None:
    run = msgspec.structs.replace(reports.run_of(reports.HELD), complete=False)
    report = msgspec.structs.replace(reports.REPORT, run=run, tier_cases=tier_cases)
    assert said in notes_of(report)


def test_what_is_undecided_is_not_coloured_as_a_loss_though_its_test_fails() -> None:
    undecided = reports.verdict(Outcome.INCONCLUSIVE)
    assert undecided.fails
    assert tone_of([undecided]) is Tone.DOUBT
