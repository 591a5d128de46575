"""Revise a verdict by the nights of its figure, by all cases of tonight, and by the control.

One night may be undecided although several nights together decide. It may look fine although a
loss has lasted for many nights. And it may look bad although the whole machine was slow.
"""

import dataclasses

from specreg.baselines.comparison import BaselineComparison
from specreg.core.counted import counted
from specreg.core.reasons import Reason
from specreg.measurement.metrics import Family, Metric
from specreg.stats.intervals import LEVEL, LEVELS, Look
from specreg.verdicts.detection import MAX_NIGHTS_TO_HOLD, nights_to_hold, to_frac
from specreg.verdicts.nights import KNOWN_NIGHTS, CommonEvidence, LastingLoss, NightEvidence
from specreg.verdicts.verdict import LASTING, MACHINE_MOVED, Outcome, Verdict, with_remark

HELD_BY_NIGHTS = "HELD_BY_NIGHTS"
"""The code of a figure that one night leaves undecided and the last nights together decide."""
COMMON_LEVEL = LEVEL / 20
"""The probability that chance alone shows a common loss of all cases. It is smaller than `LEVEL`
because a common loss fails many tests at once."""
_DATE_DIGITS = 8
"""The digits of the date at the beginning of a run's name, such as `20261121`."""


def hold_by_nights(metric: Metric, verdict: Verdict, nights: NightEvidence | None) -> Verdict:
    """Complete an undecided verdict by the last nights together, or by how many nights it needs.

    The test of an undecided figure fails only if no number of nights would decide the figure.

    Args:
        metric: the metric.
        verdict: the undecided verdict.
        nights: how the figure changed according to its nights; None if no night can decide it.
    """
    reason = verdict.reason
    if nights is None or reason is None:
        return dataclasses.replace(verdict, needed_nights=0)
    tolerance_frac = verdict.comparison.tolerance_frac or 0.0

    # The last nights together may prove what tonight alone can't.
    if nights.together is not None:
        low, high = nights.together.bounds(LEVEL)
        low_frac = to_frac(metric, low)
        is_within = low_frac > -tolerance_frac
        if metric.two_sided:
            is_within = is_within and to_frac(metric, high) < tolerance_frac
        if is_within:
            text = (
                f"{reason.text}; it holds over the last {nights.nights_together} nights together,"
                f" which lost no more than {max(-low_frac, 0.0):.1%}"
            )
            reason = Reason(code=HELD_BY_NIGHTS, text=text)
            return dataclasses.replace(verdict, reason=reason, needed_nights=nights.nights + 1)

    # Otherwise say how many nights would be needed.
    needed = nights_to_hold(metric, tolerance_frac, nights.spread)
    night = nights.nights + 1
    remedy = reason.remedy
    if needed > night:
        clause = f"about {needed} nights would tell, and this run is the {_ordinal(night)}"
    elif needed:
        # A change close to the tolerance stays undecided, however many nights there are.
        clause = (
            f"about {needed} nights would tell if nothing had changed, and {night} nights leave it"
            " undecided"
        )
    else:
        clause = f"not even {MAX_NIGHTS_TO_HOLD} nights would tell"
        # Acceptance doesn't depend on the machine, and its own remedy is to replay more prompts.
        effort = "measure on a quieter machine" if metric.by_launch else reason.remedy
        remedy = f"raise its tolerance in the tier, add it to 'shown' there, or {effort}"
    reason = Reason(code=reason.code, text=f"{reason.text}; {clause}", remedy=remedy)
    return dataclasses.replace(verdict, reason=reason, needed_nights=needed)


def _ordinal(number: int) -> str:
    """Return a number in an order, such as `1st` and `12th`."""
    suffixes = {1: "st", 2: "nd", 3: "rd"}
    is_teen = number % 100 // 10 == 1
    return f"{number}{'th' if is_teen else suffixes.get(number % 10, 'th')}"


def name_lasting_loss(metric: Metric, verdict: Verdict, nights: NightEvidence | None) -> Verdict:
    """Turn a verdict into REGRESSED if the nights prove a loss, and add when the loss began."""
    lasting = nights.lasting if nights is not None else None
    if lasting is None:
        return verdict
    if verdict.outcome is Outcome.REGRESSED:
        return dataclasses.replace(verdict, since=lasting.since)
    reason = Reason(code=LASTING, text=_describe_lasting(metric, lasting))
    return dataclasses.replace(
        verdict, outcome=Outcome.REGRESSED, reason=reason, since=lasting.since
    )


def _describe_lasting(metric: Metric, lasting: LastingLoss) -> str:
    """Describe a lasting loss: `-6.1% since the night of 2026-11-21, over 4 nights`."""
    changed_frac = metric.sign * to_frac(metric, lasting.effect.estimate_frac)
    since = _date_of(lasting.since)
    text = (
        f"{changed_frac:+.1%} since the night of {since}, over {counted(lasting.nights, 'night')}"
    )
    before, after = lasting.versions
    if before and after and before != after:
        text = f"{text}; the engine went from {before} to {after} on that night"
    return text


def _date_of(run: str) -> str:
    """Return the date of a run, `2026-11-21`; its whole name if it doesn't begin with a date."""
    digits = run[:_DATE_DIGITS]
    if len(digits) < _DATE_DIGITS or not digits.isdigit():
        return run
    year = digits[:4]
    month = digits[4:6]
    day = digits[6:]
    return f"{year}-{month}-{day}"


def judge_beside_all_cases(metric: Metric, verdict: Verdict, nights: NightEvidence) -> Verdict:
    """Judge the common change of all cases, which is subtracted from the change of one case.

    A common loss comes from the machine or from the engine. If enough nights show how much the
    machine itself varies, a proven loss is REGRESSED, because a nightly run has to find an engine
    that became slower. With fewer nights the two causes can't be distinguished, so the figure is
    INVALID.
    """
    common = nights.common
    if common is None:
        return verdict
    common_frac = to_frac(metric, common.effect.estimate_frac)
    verdict = _with_common_change(verdict, common_frac)
    if verdict.outcome is Outcome.REGRESSED:
        return verdict

    # The nights have proven a common loss.
    if common.lasting is not None:
        described = _describe_lasting(metric, common.lasting)
        reason = Reason(
            code=LASTING,
            text=f"all {common.cases + 1} cases changed together: {described}",
            remedy="compare the two engines side by side, which tells the machine from the engine",
        )
        return dataclasses.replace(
            verdict, outcome=Outcome.REGRESSED, reason=reason, since=common.lasting.since
        )

    # A time that became better is smaller, so its change is shown with the opposite sign.
    shown_frac = metric.sign * common_frac
    common_change = f"all {common.cases + 1} cases together changed by {shown_frac:+.1%} tonight"
    if _is_proven_worse(metric, common, verdict.comparison.tolerance_frac or 0.0):
        return _moved(verdict, common, common_change)
    return _mention(verdict, common_change)


def _is_proven_worse(metric: Metric, common: CommonEvidence, tolerance_frac: float) -> bool:
    """Return whether all cases are proven worse tonight, by an estimate beyond the tolerance."""
    common_frac = to_frac(metric, common.effect.estimate_frac)
    p_worse = common.effect.p_worse
    if metric.two_sided:
        return abs(common_frac) > tolerance_frac and min(p_worse, 1 - p_worse) < COMMON_LEVEL
    return common_frac < -tolerance_frac and p_worse < COMMON_LEVEL


def _moved(verdict: Verdict, common: CommonEvidence, common_change: str) -> Verdict:
    """Return the verdict on a figure if tonight proves a loss of all cases."""
    if common.nights >= KNOWN_NIGHTS:
        outcome = Outcome.REGRESSED
        text = f"{common_change}, which chance doesn't explain after {common.nights} nights"
    else:
        outcome = Outcome.INVALID
        text = (
            f"{common_change}, and too few nights ({common.nights}) show how much the machine"
            " varies"
        )
    reason = Reason(
        code=MACHINE_MOVED,
        text=text,
        remedy="quieten the machine and run again, or compare two engines side by side",
    )
    return dataclasses.replace(verdict, outcome=outcome, reason=reason)


def _mention(verdict: Verdict, common_change: str) -> Verdict:
    """Mention a common change that proves nothing, if it is large enough to matter."""
    common_frac = verdict.comparison.common_frac or 0.0
    tolerance_frac = verdict.comparison.tolerance_frac or 0.0
    if abs(common_frac) < tolerance_frac / 2:
        return verdict
    return with_remark(verdict, f"{common_change}, which is subtracted")


def _with_common_change(verdict: Verdict, common_frac: float) -> Verdict:
    """Add to a verdict the change of all cases or of the control; better is positive."""
    comparison = dataclasses.replace(verdict.comparison, common_frac=common_frac)
    return dataclasses.replace(verdict, comparison=comparison)


def judge_beside_control(metric: Metric, verdict: Verdict, evidence: BaselineComparison) -> Verdict:
    """Say of a loss that the machine or the engine may have caused it, if the control is worse too.

    The control runs in the same minutes as the case, so it shows what the machine or the engine
    did. The speedup is a ratio to the control, in which such a change cancels out. If enough nights
    show how much the machine itself varies, the loss stays REGRESSED. With fewer nights it becomes
    INVALID.
    """
    change = evidence.control_change(metric)
    if metric.family is Family.SPEEDUP or change is None:
        return verdict
    moved_frac = to_frac(metric, change.estimate_frac)
    low, high = change.bounds(LEVELS[Look.LAUNCH])
    if metric.two_sided and (verdict.comparison.change_frac or 0.0) > 0:
        # The case rose, which is a loss of such a metric. Check whether the control rose too.
        moved_frac = -moved_frac
        high = -low
    tolerance_frac = verdict.comparison.tolerance_frac or 0.0
    if high >= 0 or moved_frac >= -tolerance_frac:
        return verdict
    change_text = f"became {-moved_frac:.1%} worse too"
    if metric.two_sided:
        change_text = f"changed by {-moved_frac:.1%} in the same direction"
    reason = Reason(
        code=MACHINE_MOVED,
        text=f"the server without speculation beside it {change_text}, so this case isn't the"
        " cause",
        remedy="quieten the machine and run again, or compare two engines side by side",
    )
    outcome = Outcome.INVALID
    if verdict.nights >= KNOWN_NIGHTS:
        outcome = verdict.outcome
    moved = dataclasses.replace(verdict, outcome=outcome, reason=reason)
    return _with_common_change(moved, moved_frac)
