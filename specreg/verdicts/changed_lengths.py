"""Don't let a verdict depend only on prompts whose answers changed much in length."""

import dataclasses
from collections.abc import Sequence

from specreg.baselines.answer_lengths import LengthChange
from specreg.core.reasons import Reason
from specreg.verdicts.verdict import GOOD, Outcome, Verdict

_MAX_NAMED = 3
"""The most prompts that a reason names."""


def weigh_changed_lengths(
    verdict: Verdict, unchanged: Verdict, changes: Sequence[LengthChange], prompts: int
) -> Verdict:
    """Combine the verdict on all prompts with one on those whose answers kept their length.

    A PASS or a loss that only the changed prompts cause becomes INCONCLUSIVE. A loss that they hide
    is REGRESSED.

    Args:
        verdict: the verdict on all prompts.
        unchanged: the verdict on the prompts whose answers are about as long as before.
        changes: the prompts whose answers changed in length, at least one.
        prompts: the number of all prompts.
    """
    examples = "; ".join(str(change) for change in changes[:_MAX_NAMED])
    shown = verdict
    if unchanged.comparison.change_frac is None:
        # The unchanged prompts can't be judged, so nothing supports a PASS.
        outcome = verdict.outcome
        if outcome in GOOD:
            outcome = Outcome.INCONCLUSIVE
        comment = "without them there is no interval"
        if unchanged.outcome is Outcome.INCONCLUSIVE and unchanged.reason is not None:
            comment = f"{comment}: {unchanged.reason.text}"
    else:
        outcome = _joint_outcome(verdict.outcome, unchanged.outcome)
        comment = f"without them the change is {unchanged.comparison.change_frac:+.1%}"
        if verdict.outcome is not outcome and unchanged.outcome is outcome:
            # Show the figures that the outcome comes from.
            shown = unchanged
            comment = f"with them the change is {verdict.comparison.change_frac or 0.0:+.1%}"

    reason = Reason.of(
        "LENGTHS_CHANGED",
        changed=len(changes),
        prompts=prompts,
        examples=examples,
        effect=f"{comment}; {shown.reason.text}" if shown.reason else comment,
    )
    if shown.reason and shown.reason.remedy:
        reason = dataclasses.replace(reason, remedy=shown.reason.remedy)
    return dataclasses.replace(shown, outcome=outcome, reason=reason)


def _joint_outcome(of_all: Outcome, of_unchanged: Outcome) -> Outcome:
    """Return the outcome that both the verdicts on all and on the unchanged prompts support."""
    if of_all in GOOD:
        if of_unchanged in GOOD and of_all != of_unchanged:
            # Only one of them is IMPROVED.
            return Outcome.PASS
        return of_unchanged

    if of_all is Outcome.REGRESSED:
        if of_unchanged in GOOD:
            return Outcome.INCONCLUSIVE
        return of_all

    # A loss that the changed prompts hide is a loss.
    return of_unchanged if of_unchanged is Outcome.REGRESSED else of_all
