"""Keep prompts whose answers are of another length from carrying a verdict alone."""

import dataclasses
from collections.abc import Sequence

from specreg.baselines.answer_lengths import LengthChange
from specreg.core.reasons import Reason
from specreg.stats.intervals import FEWEST_PROMPTS
from specreg.verdicts.verdict import GOOD, Outcome, Verdict

LENGTHS_CHANGED = "LENGTHS_CHANGED"
"""The code of a verdict in which some prompts gave answers of another length."""
_MAX_NAMED = 3


def weigh_changed_lengths(
    verdict: Verdict, unchanged: Verdict, changes: Sequence[LengthChange], prompts: int
) -> Verdict:
    """Return the verdict on a metric of acceptance of which some answers changed in length.

    What passes or is lost by those prompts alone is neither proven nor lost.

    Args:
        verdict: the verdict on all prompts.
        unchanged: the verdict on the prompts whose answers are about as long as before.
        changes: the other prompts, one at least.
        prompts: how many prompts there are in all.
    """
    examples = "; ".join(str(change) for change in changes[:_MAX_NAMED])
    subject = f"{len(changes)} of {prompts} prompts gave answers of another length ({examples})"
    shown = verdict
    if unchanged.comparison.change_frac is None:
        outcome = Outcome.INCONCLUSIVE if verdict.outcome in GOOD else verdict.outcome
        others = prompts - len(changes)
        comment = f"{others} others are too few to judge by, {FEWEST_PROMPTS} are needed"
    else:
        outcome = _joint_outcome(verdict.outcome, unchanged.outcome)
        comment = f"without them the change is {unchanged.comparison.change_frac:+.1%}"
        if verdict.outcome is not outcome and unchanged.outcome is outcome:
            shown = unchanged
            comment = f"with them the change is {verdict.comparison.change_frac or 0.0:+.1%}"
    own_reason = shown.reason or Reason(text="")
    clauses = (subject, comment, own_reason.text)
    reason = Reason(
        code=LENGTHS_CHANGED,
        text="; ".join(clause for clause in clauses if clause),
        remedy=own_reason.remedy or "look at what they say",
    )
    return dataclasses.replace(shown, outcome=outcome, reason=reason)


def _joint_outcome(of_all: Outcome, of_unchanged: Outcome) -> Outcome:
    """Return the outcome that the prompts of unchanged length bear out."""
    if of_all in GOOD:
        return Outcome.PASS if of_unchanged in GOOD and of_all != of_unchanged else of_unchanged
    if of_all is Outcome.REGRESSED:
        return Outcome.INCONCLUSIVE if of_unchanged in GOOD else of_all
    return of_unchanged if of_unchanged is Outcome.REGRESSED else of_all
