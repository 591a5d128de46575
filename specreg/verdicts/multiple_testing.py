"""Keep a run of many figures from failing by chance.

Two rules do this. A loss must show on two launches. And figures that move together, such as the
acceptance length and the acceptance rate, are decided once: the first of them, the leader, decides,
and the others follow it. Such a group of figures is called a draw.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from specreg.core.reasons import Reason
from specreg.measurement.metrics import METRICS, Metric
from specreg.verdicts.verdict import GOOD, JUDGED, Outcome, Verdict, with_remark

_UNCHANGED_SHARE = 0.5
"""The first position counts as unchanged if it lost less than this share of its tolerance."""


def confirm(first: Verdict, second: Verdict) -> Verdict:
    """Return the final verdict on an acceptance that looked worse on a first launch.

    Greedy answers are usually the same on each launch. If the fresh launch shows no loss, something
    other than the drafter differed, and the verdict is INCONCLUSIVE. If the fresh launch fails for
    another reason, such as INVALID, it keeps its outcome.

    Args:
        first: the verdict on the first launch, which is REGRESSED.
        second: the verdict on the fresh launch.
    """
    seen_first = "a first launch was worse"
    if first.value is not None:
        metric = METRICS[first.metric]
        seen_first = f"a first launch had {metric.render_ratio(first.value - metric.origin)}"
    if second.outcome is Outcome.REGRESSED:
        return with_remark(second, Reason.of("loss_confirmed", first=seen_first))
    if not second.fails:
        second = dataclasses.replace(second, outcome=Outcome.INCONCLUSIVE)
    return with_remark(second, Reason.of("fresh_launch_differs", first=seen_first))


def draw_of(metric: Metric) -> str:
    """Return the name of the draw that a metric belongs to: the name of its leader."""
    return metric.follows or metric.name


def follow(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Give the figures of each draw the outcome of its leader.

    Two kinds of figures keep their own outcome: those that kept their tolerance although their
    leader has a loss, and a loss of a later draft position while the first position is unchanged.

    Args:
        verdicts: all verdicts of a run. If the leader of a draw wasn't judged, the first judged
            figure of the draw takes its place.
    """
    # Find the figure that decides each draw of each case.
    leaders: dict[tuple[str, str], Verdict] = {}
    for verdict in verdicts:
        if _is_judged_metric(verdict):
            leader_name = draw_of(METRICS[verdict.metric])
            draw = (verdict.case_id, leader_name)
            if draw not in leaders or verdict.metric == leader_name:
                leaders[draw] = verdict

    first_positions = {
        verdict.case_id: verdict
        for verdict in verdicts
        if verdict.metric in METRICS and METRICS[verdict.metric].position == 1
    }

    # Let the other judged figures follow them.
    followed = []
    for verdict in verdicts:
        if _is_judged_metric(verdict):
            draw = (verdict.case_id, draw_of(METRICS[verdict.metric]))
            followed.append(_follow_leader(verdict, leaders[draw], first_positions))
        else:
            followed.append(verdict)

    return tuple(followed)


def _is_judged_metric(verdict: Verdict) -> bool:
    """Return whether a verdict judges a metric, rather than a check such as losslessness."""
    return verdict.metric in METRICS and verdict.outcome in JUDGED


def _follow_leader(
    verdict: Verdict, leader: Verdict, first_positions: Mapping[str, Verdict]
) -> Verdict:
    """Return a verdict with the outcome of the figure that decides its draw.

    Args:
        leader: the verdict that decides the draw.
        first_positions: the verdict on the first draft position of each case, by the case's id.
    """
    first_position = first_positions.get(verdict.case_id)
    if verdict.metric == leader.metric or _is_later_loss(verdict, first_position):
        return verdict

    # A figure that kept its tolerance keeps its outcome if its leader has a loss, because it helps
    # to find the cause: if only the second draft became worse, the PASS of the first position shows
    # it.
    if leader.outcome is Outcome.REGRESSED and verdict.outcome in GOOD:
        return verdict
    reason = verdict.reason or leader.reason
    if leader.outcome is not verdict.outcome:
        reason = Reason.of("decided_by", metric=leader.metric)
        if leader.reason is not None:
            text = f"{reason.text}: {leader.reason.text}"
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


def _is_later_loss(verdict: Verdict, first_position: Verdict | None) -> bool:
    """Return whether a verdict is a loss of a later draft position while the first is unchanged.

    This happens if only the later heads of a drafter break. The acceptance length, which leads the
    draw, may hide the loss, because later positions contribute little to the length.

    Args:
        verdict: the verdict on any figure of acceptance or speed.
        first_position: the verdict on the case's first draft position; None without one.
    """
    position = METRICS[verdict.metric].position or 0
    if position <= 1 or verdict.outcome is not Outcome.REGRESSED or first_position is None:
        return False
    first_change_frac = first_position.comparison.change_frac
    tolerance_frac = first_position.comparison.tolerance_frac or 0.0
    if first_change_frac is None:
        return False
    return first_change_frac > -_UNCHANGED_SHARE * tolerance_frac
