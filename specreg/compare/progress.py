"""Render what a gate has decided so far, as one line for each pair."""

from collections.abc import Iterable, Iterator, Sequence

from specreg.compare.judging import Decision
from specreg.compare.options import MOST_WORTH_ASKING
from specreg.compare.pairs import Pair
from specreg.core.counted import counted
from specreg.report.tables import label_of
from specreg.verdicts.verdict import GOOD, Outcome, Verdict


def render_progress(
    decision: Decision, pairs: Iterable[Pair], looks: Sequence[int]
) -> Iterator[str]:
    """Yield a line for each pair: the state of its metrics, and how many launches decide them.

    For example: `vllm-eagle3-c1: acceptance length holds, throughput +0.3 % ± 4.1 %, to be decided
    after 8 launches`.

    Args:
        decision: the decision so far.
        looks: the numbers of launches after which the gate judges.
    """
    for pair in pairs:
        deciding = [
            verdict
            for verdict in decision.verdicts
            if verdict.case_id == pair.id and verdict.metric in pair.deciding
        ]
        parts = [_state_of(verdict) for verdict in deciding]
        needed = max((_needed_launches(verdict) for verdict in deciding), default=0)
        if needed > MOST_WORTH_ASKING:
            parts.append("not decidable at this tolerance so far")
        elif needed:
            # A gate judges at its looks only, so that the estimate hardly changes between them.
            look = next((look for look in looks if look >= needed), looks[-1])
            parts.append(f"to be decided after {counted(look, 'launch')}")
        if parts:
            yield f"{pair.id}: {', '.join(parts)}"


def _state_of(verdict: Verdict) -> str:
    """Return the state of a metric: its outcome, or its change ± half the width of its interval."""
    label = label_of(verdict.metric)
    if verdict.outcome in GOOD:
        return f"{label} holds"
    comparison = verdict.comparison
    if comparison.change_frac is None and verdict.outcome is Outcome.INCONCLUSIVE:
        return f"{label} undecided"
    if comparison.change_frac is None:
        return f"{label} invalid"
    change = f"{100 * comparison.change_frac:+.1f} %"
    if comparison.low_frac is not None and comparison.high_frac is not None:
        half_percent = 50 * (comparison.high_frac - comparison.low_frac)
        change = f"{change} ± {half_percent:.1f} %"
    if verdict.outcome is Outcome.REGRESSED:
        return f"{label} lost: {change}"
    return f"{label} {change}"


def _needed_launches(verdict: Verdict) -> int:
    """Return about how many launches of each side decide a metric; 0 if none are missing."""
    if verdict.outcome is not Outcome.INCONCLUSIVE:
        return 0
    return verdict.needed_launches or 0
