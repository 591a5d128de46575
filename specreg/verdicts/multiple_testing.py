"""Keep a run of many figures from being red by chance: one decision for each draw, seen twice.

A loss must show on two launches. Figures that move together are one draw and decided once, by the
first of them; the others follow it and explain it.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from specreg.core.reasons import Reason
from specreg.measurement.metrics import METRICS, Metric
from specreg.verdicts.by_nights import MACHINE_MOVED
from specreg.verdicts.verdict import JUDGED, Outcome, Verdict

_MAX_KEPT = 0.5
"""Of a lost pattern, the first position keeps at least so much of its tolerance."""


def confirm(first: Verdict, second: Verdict) -> Verdict:
    """Return the verdict on an acceptance that looked worse on a first launch, by a fresh one.

    Greedy answers repeat, so launches that disagree are INCONCLUSIVE.
    """
    seen_first = f"a first launch had {first.value:.4g}"
    if second.outcome is Outcome.REGRESSED:
        return with_remark(second, f"seen on two launches, {seen_first}")
    if not second.fails:
        second = dataclasses.replace(second, outcome=Outcome.INCONCLUSIVE)
    return with_remark(second, f"{seen_first}, which a fresh one didn't confirm")


def seen_on(verdict: Verdict, alone: Sequence[Verdict]) -> Verdict:
    """Return the verdict on all launches of a speed, by how many of them show a loss alone.

    A loss of one launch may be something else on the machine, and a server may be slow in half of
    its launches. Neither is REGRESSED, and neither is forgotten: over the nights it is named.

    Args:
        verdict: on all launches together.
        alone: on each launch alone.
    """
    if verdict.since or verdict.has_code(MACHINE_MOVED):
        return verdict  # the nights, or all cases together, have shown it
    tolerance_frac = verdict.comparison.tolerance_frac or 0.0
    direction = -1 if (verdict.comparison.change_frac or 0.0) < 0 else 1
    changes = [direction * (each.comparison.change_frac or 0.0) for each in alone]
    beyond = sum(change_frac > tolerance_frac for change_frac in changes)
    how = "worse on" if direction < 0 else "changed on"
    remark = f"{how} {beyond} of {len(alone)} launches"
    if verdict.outcome is Outcome.REGRESSED and beyond <= 1:
        verdict = dataclasses.replace(verdict, outcome=Outcome.INCONCLUSIVE)
    elif verdict.outcome in {Outcome.PASS, Outcome.IMPROVED}:
        looked_worse = sum(each.outcome is Outcome.REGRESSED for each in alone)
        if not looked_worse:
            return verdict
        remark = f"slow on {looked_worse} of {len(alone)} launches"
        verdict = dataclasses.replace(verdict, outcome=Outcome.INCONCLUSIVE)
    return with_remark(verdict, remark)


def with_remark(verdict: Verdict, remark: str) -> Verdict:
    """Return a verdict whose reason ends with a remark."""
    if verdict.reason is None:
        return dataclasses.replace(verdict, reason=Reason(text=remark))
    reason = dataclasses.replace(verdict.reason, text=f"{verdict.reason.text}; {remark}")
    return dataclasses.replace(verdict, reason=reason)


def draw_of(metric: Metric) -> str:
    """Return what the figures that move together have in common: the name of the first of them."""
    return metric.follows or metric.name


def follow(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Let the figures of a draw follow the first one that was judged.

    Args:
        verdicts: of a run; the first judged figure of each draw of a case decides.
    """
    leaders: dict[tuple[str, str], Verdict] = {}
    for verdict in verdicts:
        if verdict.metric in METRICS and verdict.outcome in JUDGED:
            draw = (verdict.case_id, draw_of(METRICS[verdict.metric]))
            known = leaders.get(draw)
            if known is None or verdict.metric == draw[1]:
                leaders[draw] = verdict
    first_positions = {
        verdict.case_id: verdict
        for verdict in verdicts
        if verdict.metric in METRICS and METRICS[verdict.metric].position == 1
    }
    return tuple(
        _followed(
            verdict, leaders[verdict.case_id, draw_of(METRICS[verdict.metric])], first_positions
        )
        if verdict.metric in METRICS and verdict.outcome in JUDGED
        else verdict
        for verdict in verdicts
    )


def _followed(verdict: Verdict, leader: Verdict, first_positions: Mapping[str, Verdict]) -> Verdict:
    """Return a verdict with the outcome of the figure that decides about it."""
    first_position = first_positions.get(verdict.case_id)
    if verdict.metric == leader.metric or _is_pattern(verdict, first_position):
        return verdict
    # What a loss has kept helps to find its cause: of a drafter whose second step broke, the first.
    has_kept = verdict.outcome in {Outcome.PASS, Outcome.IMPROVED}
    if leader.outcome is Outcome.REGRESSED and has_kept:
        return verdict
    reason = verdict.reason or leader.reason
    if leader.outcome is not verdict.outcome:
        decided = f"decided by {leader.metric}"
        reason = Reason(text=decided)
        if leader.reason is not None:
            text = f"{decided}: {leader.reason.text}"
            reason = dataclasses.replace(leader.reason, text=text)
    return dataclasses.replace(
        verdict,
        outcome=leader.outcome,
        reason=reason,
        softened=leader.softened,
        since=leader.since,
        needed_launches=leader.needed_launches,
        needed_nights=leader.needed_nights,
    )


def _is_pattern(verdict: Verdict, first_position: Verdict | None) -> bool:
    """Return whether a later position was lost while the first one was kept.

    That is a drafter whose later heads broke, which the length may hide.
    """
    position = METRICS[verdict.metric].position or 0
    if position <= 1 or verdict.outcome is not Outcome.REGRESSED or first_position is None:
        return False
    kept_frac = first_position.comparison.change_frac
    tolerance_frac = first_position.comparison.tolerance_frac or 0.0
    return kept_frac is not None and kept_frac > -_MAX_KEPT * tolerance_frac
