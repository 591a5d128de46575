"""The exit status of verdicts, and what each status means."""

from collections import Counter
from collections.abc import Sequence

from specreg.verdicts.verdict import Outcome, Verdict

REGRESSED_STATUS = 1
UNDECIDED_STATUS = 10
NO_BASELINE_STATUS = 11
STATUS_MEANINGS = {
    REGRESSED_STATUS: "something is proven to be worse or wrong, or a test failed otherwise",
    UNDECIDED_STATUS: "nothing is proven to be worse, but something couldn't be judged",
    NO_BASELINE_STATUS: "nothing is worse, but there is no baseline to compare with",
}
"""What each exit status of a failed run means, for readers who see only the number."""


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """Return the exit status of a run with these verdicts.

    Returns:
        1 if a figure is REGRESSED or WRONG; otherwise 10 if one is INVALID or if the test of an
        INCONCLUSIVE one fails; otherwise 11 if a baseline is missing or unreadable; otherwise 0.
    """
    failed = {verdict.outcome for verdict in verdicts if verdict.fails}
    if failed & {Outcome.REGRESSED, Outcome.WRONG}:
        return REGRESSED_STATUS
    if failed & {Outcome.INVALID, Outcome.INCONCLUSIVE}:
        return UNDECIDED_STATUS
    if Outcome.NO_BASELINE in failed:
        return NO_BASELINE_STATUS
    return 0


def count_outcomes(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Count the verdicts of each outcome, in the order in which `Outcome` defines them."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    return {str(outcome): counts[outcome] for outcome in Outcome if counts[outcome]}
