"""The words of pytest for tests that pass."""

import pytest

from specreg.core.reasons import Reason
from specreg.plugin.reporting import word_of
from specreg.report.failures import properties
from specreg.verdicts.verdict import Outcome
from tests.unit.builders.reports import verdict


@pytest.mark.parametrize(
    ("outcome", "reason", "word"),
    [
        (Outcome.INCONCLUSIVE, None, "undecided"),
        (Outcome.MEASURED, Reason.of("JUDGED_LATER"), "to be judged"),
        (Outcome.MEASURED, None, None),
        (Outcome.PASS, None, None),
    ],
)
def test_a_test_passes_in_so_many_words(
    outcome: Outcome, reason: Reason | None, word: str | None
) -> None:
    said = word_of(dict(properties(verdict(outcome, reason=reason))))
    assert (said and said[0]) == word
