"""Tell a loss from chance among the hundreds of figures of a night, and from a slow machine.

What looks worse must do so twice, and more clearly the more figures there are. What the server
without speculation beside it does too is the machine's doing.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from specreg.baselines.comparison import Comparison
from specreg.measurement.metrics import METRICS, Family
from specreg.stats.intervals import LEVEL, Look
from specreg.verdicts.detection import to_frac
from specreg.verdicts.judge import Outcome, Verdict

_FEWEST_CASES = 4
"""With fewer cases it can't be told what most of them do."""
MACHINE_MOVED = "MACHINE_MOVED"


def confirm(first: Verdict, second: Verdict) -> Verdict:
    """The verdict that a fresh launch gives a figure that looked worse in the first.

    A speed is what the fresh launch says: something else on a machine slows one now and then. It
    changes no acceptance; launches that disagree on that are INCONCLUSIVE.
    """
    looked = f"a first launch had {first.value:.4g}"
    turned = first.two_sided and (first.change_frac or 0) * (second.change_frac or 0) < 0
    if turned and second.outcome is Outcome.REGRESSED:
        reason = f"{looked}, and a fresh one went the other way"
        return dataclasses.replace(second, outcome=Outcome.INCONCLUSIVE, reason=reason)
    word = f"{looked}, which a fresh one didn't confirm"
    if second.outcome is Outcome.REGRESSED:
        word = f"seen on two launches, {looked}"
    elif not second.fails and not METRICS[first.metric].by_launch:
        second = dataclasses.replace(second, outcome=Outcome.INCONCLUSIVE)
    return dataclasses.replace(second, reason="; ".join(filter(None, (second.reason, word))))


def hold_together(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Correct for the number of figures of a run, by Holm: chance makes some look bad, even twice.

    Of the m figures of acceptance that the run judged, or of speed, the k-th smallest p must not
    exceed LEVEL / (m - k + 1), with k from 1, and neither must those before it (Holm 1979). What
    doesn't keep that is INCONCLUSIVE. All of them count, not only those looked at again: greedy
    answers repeat on a fresh launch, and both looks share the baseline.
    """
    refused: dict[tuple[str, str], int] = {}
    for by_launch in (False, True):
        refused |= _refused([one for one in verdicts if _by_launch(one) == by_launch])
    return tuple(
        dataclasses.replace(
            verdict,
            outcome=Outcome.INCONCLUSIVE,
            reason=f"worse on a fresh launch too, but it is one of {refused[_place(verdict)]}"
            " figures, and among so many chance makes one look that much worse; run it again, or"
            " raise prompts or launches",
        )
        if verdict.outcome is Outcome.REGRESSED and _place(verdict) in refused
        else verdict
        for verdict in verdicts
    )


def _refused(family: Sequence[Verdict]) -> dict[tuple[str, str], int]:
    """Whose loss doesn't stand among all of a family, with the size of the family."""
    judged = [verdict for verdict in family if verdict.p_worse is not None]
    size = len({_place(verdict) for verdict in judged})
    chances: dict[tuple[str, str], float] = {}
    for verdict in judged:
        if verdict.outcome is Outcome.REGRESSED:
            place = _place(verdict)
            chances[place] = max(verdict.p_worse or 0.0, chances.get(place, 0.0))
    order = sorted(chances, key=chances.__getitem__)
    for rank, place in enumerate(order):
        if chances[place] > LEVEL / (size - rank):
            return dict.fromkeys(order[rank:], size)
    return {}


def _place(verdict: Verdict) -> tuple[str, str]:
    return verdict.case_id, verdict.metric


def _by_launch(verdict: Verdict) -> bool:
    return verdict.metric in METRICS and METRICS[verdict.metric].by_launch


def blame_machine(
    verdicts: Iterable[Verdict], comparisons: Mapping[tuple[str, str], Comparison]
) -> tuple[Verdict, ...]:
    """Speeds that regressed together with what they have nothing to do with are INVALID.

    That is the server without speculation that ran beside the case; for a case without one, most of
    the cases. An engine that became slower as a whole looks the same; the speedup and a run of the
    old engine in the same hour tell. `comparisons` are by case and metric, with the launch that the
    verdict is about.
    """
    verdicts = tuple(verdicts)
    alike = _moved_alike(verdicts)
    return tuple(
        _blamed(one, alike.get(one.metric, ""), comparisons.get(_place(one))) for one in verdicts
    )


def _of_machine(verdict: Verdict) -> bool:
    """Whether a slow machine would show in it: the speedup has its control in the same minute."""
    return _by_launch(verdict) and METRICS[verdict.metric].family is not Family.SPEEDUP


def _moved_alike(verdicts: Sequence[Verdict]) -> Mapping[str, str]:
    """By metric, in words, that most cases became worse; only for those where they did."""
    found = {}
    for name in dict.fromkeys(v.metric for v in verdicts if _of_machine(v)):
        judged = [v for v in verdicts if v.metric == name and v.change_frac is not None]
        # What shall stay as it is may have moved either way; alike is one of them.
        went_up = Counter(
            (v.change_frac or 0) > 0
            for v in judged
            if v.outcome is Outcome.REGRESSED or v.reason.startswith(MACHINE_MOVED)
        )
        worse = max(went_up.values(), default=0)
        if len(judged) >= _FEWEST_CASES and worse > len(judged) / 2:
            found[name] = f"{worse} of {len(judged)} cases became worse alike"
    return found


def _blamed(verdict: Verdict, alike: str, comparison: Comparison | None) -> Verdict:
    if verdict.outcome is not Outcome.REGRESSED or not _of_machine(verdict):
        return verdict
    metric = METRICS[verdict.metric]
    change = comparison.control_change(metric) if comparison else None
    if comparison is not None and change is not None:
        allowed_frac = metric.allowed_frac(comparison.measurement.case)
        moved, (low, high) = to_frac(metric, change.estimate_frac), change.bounds(Look.LAUNCH.value)
        if metric.two_sided and (verdict.change_frac or 0) > 0:  # more is what both became
            moved, high = -moved, -low
        words = "changed by {:.1%} alike" if metric.two_sided else "became {:.1%} worse too"
        alike = f"the server without speculation beside it {words.format(-moved)}"
        if high >= 0 or moved >= -allowed_frac:
            alike = ""
    if not alike:
        return verdict
    reason = (
        f"{MACHINE_MOVED}: {alike}, so it isn't this case's doing; quieten the machine and run"
        " again, or compare two engines side by side"
    )
    return dataclasses.replace(verdict, outcome=Outcome.INVALID, reason=reason)
