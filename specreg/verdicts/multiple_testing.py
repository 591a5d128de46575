"""Tell a loss from chance among the hundreds of figures of a night, and from a slow machine.

What looks worse must do so twice, and more clearly the more figures there are. What the control
beside a case does too is the machine's doing.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from specreg.baselines.comparison import BaselineComparison
from specreg.core.reasons import Reason
from specreg.measurement.metrics import METRICS, Family
from specreg.stats.intervals import LEVEL, LEVELS, Look
from specreg.verdicts.detection import to_frac
from specreg.verdicts.verdict import Outcome, Verdict

_FEWEST_CASES = 4
"""With fewer cases it can't be told what most of them do."""
MACHINE_MOVED = "MACHINE_MOVED"


def confirm(first: Verdict, second: Verdict) -> Verdict:
    """Return the verdict that a fresh launch gives a figure that looked worse on the first.

    A speed is what the fresh launch says, because something else on a machine slows one now and
    then. It changes no acceptance, so launches that disagree on that are INCONCLUSIVE.
    """
    seen_first = f"a first launch had {first.value:.4g}"
    if second.outcome is Outcome.REGRESSED:
        if _went_opposite_ways(first, second):
            reason = Reason(text=f"{seen_first}, and a fresh one went the other way")
            return dataclasses.replace(second, outcome=Outcome.INCONCLUSIVE, reason=reason)
        return _with_remark(second, f"seen on two launches, {seen_first}")
    remark = f"{seen_first}, which a fresh one didn't confirm"
    if not second.fails and not METRICS[first.metric].by_launch:
        second = dataclasses.replace(second, outcome=Outcome.INCONCLUSIVE)
    return _with_remark(second, remark)


def _went_opposite_ways(first: Verdict, second: Verdict) -> bool:
    """Return whether a two-sided metric rose on one launch and fell on the other."""
    product = (first.comparison.change_frac or 0) * (second.comparison.change_frac or 0)
    return first.comparison.two_sided and product < 0


def _with_remark(verdict: Verdict, remark: str) -> Verdict:
    """Return a verdict whose reason ends with a remark."""
    if verdict.reason is None:
        return dataclasses.replace(verdict, reason=Reason(text=remark))
    known = verdict.reason
    if known.remedy:
        reason = dataclasses.replace(known, remedy=f"{known.remedy}; {remark}")
    else:
        reason = dataclasses.replace(known, text=f"{known.text}; {remark}")
    return dataclasses.replace(verdict, reason=reason)


def hold_together(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Correct for the number of figures of a run, by Holm: chance makes some look bad, even twice.

    Of the m figures of acceptance that the run judged, or of speed, the k-th smallest p must not
    exceed LEVEL / (m - k + 1), with k from 1, and neither must those before it (Holm 1979). What
    doesn't keep that is INCONCLUSIVE. All of them count, not only those looked at again: greedy
    answers repeat on a fresh launch, and both looks share the baseline.
    """
    family_sizes: dict[tuple[str, str], int] = {}
    for by_launch in (False, True):
        family = [verdict for verdict in verdicts if _by_launch(verdict) == by_launch]
        family_sizes |= _chance_losses(family)
    return tuple(_demoted(verdict, family_sizes) for verdict in verdicts)


def _demoted(verdict: Verdict, family_sizes: Mapping[tuple[str, str], int]) -> Verdict:
    """Return a loss as INCONCLUSIVE if it is one that chance explains."""
    if verdict.outcome is not Outcome.REGRESSED or verdict.figure not in family_sizes:
        return verdict
    reason = Reason(
        text=f"worse on a fresh launch too, but it is one of {family_sizes[verdict.figure]}"
        " figures, and among so many chance makes one look that much worse",
        remedy="run it again, or raise prompts or launches",
    )
    return dataclasses.replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=reason)


def _chance_losses(family: Sequence[Verdict]) -> dict[tuple[str, str], int]:
    """Return the figures whose loss doesn't stand among all of a family, with the family's size."""
    judged = [verdict for verdict in family if verdict.comparison.p_worse is not None]
    size = len({verdict.figure for verdict in judged})
    chances: dict[tuple[str, str], float] = {}
    for verdict in judged:
        if verdict.outcome is Outcome.REGRESSED:
            p_worse = verdict.comparison.p_worse or 0.0
            chances[verdict.figure] = max(p_worse, chances.get(verdict.figure, 0.0))
    ranked = sorted(chances, key=chances.__getitem__)
    for rank, figure in enumerate(ranked):
        if chances[figure] > LEVEL / (size - rank):
            return dict.fromkeys(ranked[rank:], size)
    return {}


def _by_launch(verdict: Verdict) -> bool:
    return verdict.metric in METRICS and METRICS[verdict.metric].by_launch


def blame_machine(
    verdicts: Iterable[Verdict], comparisons: Mapping[tuple[str, str], BaselineComparison]
) -> tuple[Verdict, ...]:
    """Make speeds INVALID that regressed together with what they have nothing to do with.

    That is the control that ran beside the case; for a case without one, most of the cases. An
    engine that became slower as a whole looks the same; the speedup and a run of the old engine in
    the same hour tell.

    Args:
        verdicts: those of one machine.
        comparisons: by case and metric, with the launch that the verdict is about.
    """
    verdicts = tuple(verdicts)
    moved_alike = _moved_alike(verdicts)
    return tuple(
        _blamed(verdict, moved_alike.get(verdict.metric, ""), comparisons.get(verdict.figure))
        for verdict in verdicts
    )


def _shows_machine(verdict: Verdict) -> bool:
    """Return whether a slow machine would show; the speedup has its control in the same minute."""
    return _by_launch(verdict) and METRICS[verdict.metric].family is not Family.SPEEDUP


def _moved_alike(verdicts: Sequence[Verdict]) -> Mapping[str, str]:
    """Return a clause for each metric of which most cases became worse."""
    clauses = {}
    for name in dict.fromkeys(verdict.metric for verdict in verdicts if _shows_machine(verdict)):
        judged = [
            verdict
            for verdict in verdicts
            if verdict.metric == name and verdict.comparison.change_frac is not None
        ]
        worse = [
            verdict
            for verdict in judged
            if verdict.outcome is Outcome.REGRESSED or verdict.has_code(MACHINE_MOVED)
        ]
        # What shall stay as it is may have moved either way, and only one way is alike.
        directions = Counter((verdict.comparison.change_frac or 0) > 0 for verdict in worse)
        same_way = max(directions.values(), default=0)
        if len(judged) >= _FEWEST_CASES and same_way > len(judged) / 2:
            clauses[name] = f"{same_way} of {len(judged)} cases became worse alike"
    return clauses


def _blamed(verdict: Verdict, moved_alike: str, evidence: BaselineComparison | None) -> Verdict:
    """Return a loss as INVALID if the control moved too or, without one, most cases did."""
    if verdict.outcome is not Outcome.REGRESSED or not _shows_machine(verdict):
        return verdict
    clause = moved_alike
    control_clause = _control_moved(verdict, evidence) if evidence is not None else None
    if control_clause is not None:
        clause = control_clause
    if not clause:
        return verdict
    reason = Reason(
        code=MACHINE_MOVED,
        text=f"{clause}, so it isn't this case's doing",
        remedy="quieten the machine and run again, or compare two engines side by side",
    )
    return dataclasses.replace(verdict, outcome=Outcome.INVALID, reason=reason)


def _control_moved(verdict: Verdict, evidence: BaselineComparison) -> str | None:
    """Say how the control beside a case became worse too.

    Returns:
        Empty if it did not become worse; None if the change of the control isn't known.
    """
    metric = METRICS[verdict.metric]
    change = evidence.control_change(metric)
    if change is None:
        return None
    moved_frac = to_frac(metric, change.estimate_frac)
    low, high = change.bounds(LEVELS[Look.LAUNCH])
    went_up = metric.two_sided and (verdict.comparison.change_frac or 0) > 0
    if went_up:  # more is what both became
        moved_frac = -moved_frac
        high = -low
    if high >= 0 or moved_frac >= -metric.allowed_frac(evidence.measurement.case):
        return ""
    if metric.two_sided:
        return f"the server without speculation beside it changed by {-moved_frac:.1%} alike"
    return f"the server without speculation beside it became {-moved_frac:.1%} worse too"
