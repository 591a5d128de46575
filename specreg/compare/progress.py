"""Render what a gate has decided so far, as one line for each pair."""

from collections.abc import Iterable, Iterator

from specreg.compare.judging import Decision
from specreg.compare.pairs import Pair
from specreg.core.counted import counted
from specreg.report.tables import label_of
from specreg.verdicts.verdict import GOOD, Outcome, Verdict


def render_progress(decision: Decision, pairs: Iterable[Pair]) -> Iterator[str]:
    """Yield a line for each pair: the state of its metrics, and how many launches are missing.

    For example: `vllm-eagle3-c1: acceptance length holds, throughput +0.3 % ± 4.1 %, about 3 more
    launches`.
    """
    for pair in pairs:
        deciding = [
            verdict
            for verdict in decision.verdicts
            if verdict.case_id == pair.id and verdict.metric in pair.deciding
        ]
        parts = [_state_of(verdict) for verdict in deciding]
        missing = max((_missing_launches(verdict) for verdict in deciding), default=0)
        if missing:
            parts.append(f"about {counted(missing, 'more launch')}")
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


def _missing_launches(verdict: Verdict) -> int:
    """Return about how many more launches would decide a metric.

    This is 0 if the metric is decided, or if no number of launches would decide it.
    """
    if verdict.outcome is not Outcome.INCONCLUSIVE or verdict.needed_launches is None:
        return 0
    return max(verdict.needed_launches - verdict.launches, 0)
