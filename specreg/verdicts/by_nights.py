"""What the nights say beyond one night: what they hold, what was lost, and what all cases share."""

import dataclasses

from specreg.baselines.comparison import BaselineComparison
from specreg.core.reasons import Reason
from specreg.measurement.metrics import Family, Metric
from specreg.stats.intervals import LEVEL, LEVELS, Look
from specreg.verdicts.detection import MAX_NIGHTS_TO_HOLD, nights_to_hold, to_frac
from specreg.verdicts.nights import KNOWN_NIGHTS, LastingLoss, NightEvidence
from specreg.verdicts.verdict import Outcome, Verdict

HELD_BY_NIGHTS = "HELD_BY_NIGHTS"
"""The code of what one night can't tell and the last nights together hold."""
LASTING = "LASTING"
"""The code of a loss that the nights prove, with the night that it began on."""
MACHINE_MOVED = "MACHINE_MOVED"
"""The code of a loss of all cases alike."""
COMMON_LEVEL = LEVEL / 20
"""How often chance may show a loss of all cases alike: it is red for many tests at once."""
_DATE_DIGITS = 8


def hold_by_nights(metric: Metric, verdict: Verdict, nights: NightEvidence | None) -> Verdict:
    """Say whether the nights together hold what one night can't tell, or how many would.

    This is the one rule for what can't be told: a figure that one night doesn't decide fails
    nothing as long as some number of nights decides it.
    """
    reason = verdict.reason
    if nights is None or reason is None:
        return dataclasses.replace(verdict, needed_nights=0)
    tolerance_frac = verdict.comparison.tolerance_frac or 0.0
    if nights.together is not None:
        low, high = nights.together.bounds(LEVEL)
        low_frac = to_frac(metric, low)
        holds = low_frac > -tolerance_frac
        if metric.two_sided:
            holds = holds and to_frac(metric, high) < tolerance_frac
        if holds:
            text = (
                f"{reason.text}; it holds over the last {nights.nights_together} nights together,"
                f" which lost no more than {max(-low_frac, 0.0):.1%}"
            )
            reason = Reason(code=HELD_BY_NIGHTS, text=text)
            return dataclasses.replace(verdict, reason=reason, needed_nights=nights.nights + 1)
    needed = nights_to_hold(metric, tolerance_frac, nights.spread)
    if needed:
        clause = f"about {needed} nights would tell, {nights.nights + 1} are known"
    else:
        clause = f"not even {MAX_NIGHTS_TO_HOLD} nights would tell"
    if needed:
        remedy = reason.remedy
    else:
        remedy = (
            "raise its tolerance in the matrix, name it under shown, or measure on a quieter"
            " machine"
        )
    reason = Reason(code=reason.code, text=f"{reason.text}; {clause}", remedy=remedy)
    return dataclasses.replace(verdict, reason=reason, needed_nights=needed)


def name_lasting_loss(metric: Metric, verdict: Verdict, nights: NightEvidence | None) -> Verdict:
    """Name a loss that the nights prove, whatever one night can tell."""
    lasting = nights.lasting if nights is not None else None
    if lasting is None or verdict.outcome is Outcome.REGRESSED:
        if lasting is None:
            return verdict
        return dataclasses.replace(verdict, since=lasting.since)
    reason = Reason(code=LASTING, text=_describe_lasting(metric, lasting))
    return dataclasses.replace(
        verdict, outcome=Outcome.REGRESSED, reason=reason, since=lasting.since
    )


def _describe_lasting(metric: Metric, lasting: LastingLoss) -> str:
    """Say since when something is worse: `-6.1% since the night of 2026-11-21, over 4 nights`."""
    changed_frac = metric.sign * to_frac(metric, lasting.effect.estimate_frac)
    since = _date_of(lasting.since)
    text = f"{changed_frac:+.1%} since the night of {since}, over {lasting.nights} nights"
    before, after = lasting.versions
    if before and after and before != after:
        text = f"{text}; the engine went from {before} to {after} on that night"
    return text


def _date_of(run: str) -> str:
    """Return the date of a run, `2026-11-21`; its name if that doesn't begin with a date."""
    digits = run[:_DATE_DIGITS]
    if len(digits) < _DATE_DIGITS or not digits.isdigit():
        return run
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"


def judge_beside_all_cases(metric: Metric, verdict: Verdict, nights: NightEvidence) -> Verdict:
    """Say what all cases did alike, which the verdict on a case leaves out, and judge it.

    A loss of all cases is the machine's or the engine's. With nights that tell how much the machine
    itself varies it is REGRESSED, because a nightly run is there to find that an engine became
    slower. Without them nobody can tell the two apart, and the figure is INVALID.
    """
    common = nights.common
    if common is None or verdict.outcome is Outcome.REGRESSED:
        return verdict
    tolerance_frac = verdict.comparison.tolerance_frac or 0.0
    change_frac = to_frac(metric, common.effect.estimate_frac)
    p_worse = common.effect.p_worse
    if metric.two_sided:
        p_worse = min(p_worse, 1 - p_worse)
    is_beyond = change_frac < -tolerance_frac
    if metric.two_sided:
        is_beyond = abs(change_frac) > tolerance_frac
    shown_frac = metric.sign * change_frac
    alike = f"all {common.cases + 1} cases changed by {shown_frac:+.1%} alike tonight"
    if common.lasting is not None:
        described = _describe_lasting(metric, common.lasting)
        reason = Reason(
            code=LASTING,
            text=f"all {common.cases + 1} cases alike: {described}",
            remedy="compare the two engines side by side, which tells the machine from the engine",
        )
        return dataclasses.replace(
            verdict, outcome=Outcome.REGRESSED, reason=reason, since=common.lasting.since
        )
    if is_beyond and p_worse < COMMON_LEVEL:
        if common.nights >= KNOWN_NIGHTS:
            outcome = Outcome.REGRESSED
            text = f"{alike}, further than on any of {common.nights} nights by chance"
        else:
            outcome = Outcome.INVALID
            text = f"{alike}, and {common.nights} nights don't tell how much the machine varies"
        reason = Reason(
            code=MACHINE_MOVED,
            text=text,
            remedy="quieten the machine and run again, or compare two engines side by side",
        )
        return dataclasses.replace(verdict, outcome=outcome, reason=reason)
    if abs(change_frac) < tolerance_frac / 2:
        return verdict
    if verdict.reason is None:
        return dataclasses.replace(verdict, reason=Reason(text=f"{alike}, which is left out"))
    text = f"{verdict.reason.text}; {alike}, which is left out"
    return dataclasses.replace(verdict, reason=dataclasses.replace(verdict.reason, text=text))


def judge_beside_control(metric: Metric, verdict: Verdict, evidence: BaselineComparison) -> Verdict:
    """Return a loss as INVALID if the control became worse too, and no nights tell why.

    The control beside a case shows what the machine, or the engine, did in the same minutes. The
    speedup has it taken off.
    """
    change = evidence.control_change(metric)
    if metric.family is Family.SPEEDUP or change is None:
        return verdict
    moved_frac = to_frac(metric, change.estimate_frac)
    low, high = change.bounds(LEVELS[Look.LAUNCH])
    if metric.two_sided and (verdict.comparison.change_frac or 0.0) > 0:
        # Both may have risen alike, which is for the worse here.
        moved_frac = -moved_frac
        high = -low
    tolerance_frac = verdict.comparison.tolerance_frac or 0.0
    if high >= 0 or moved_frac >= -tolerance_frac:
        return verdict
    verb = "changed by" if metric.two_sided else "became"
    adverb = "alike" if metric.two_sided else "worse too"
    reason = Reason(
        code=MACHINE_MOVED,
        text=f"the server without speculation beside it {verb} {-moved_frac:.1%} {adverb}, so it"
        " isn't this case's doing",
        remedy="quieten the machine and run again, or compare two engines side by side",
    )
    return dataclasses.replace(verdict, outcome=Outcome.INVALID, reason=reason)
