"""The verdicts of a run as a function of what it measured and of what that is compared with.

The acceptance of a case is judged as soon as its server group is measured. Speeds are judged
together, by `speeds`, once everything is measured.
"""

import dataclasses

from specreg.baselines.comparison import BaselineComparison, compare, differing_settings
from specreg.core.errors import BaselineError
from specreg.core.reasons import Reason
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric
from specreg.verdicts.acceptance_nights import AcceptanceNights, go_through_nights
from specreg.verdicts.detection import speed_loss
from specreg.verdicts.history import night_values
from specreg.verdicts.judge import judge_acceptance, tolerance_of, unreadable_baseline
from specreg.verdicts.multiple_testing import confirm
from specreg.verdicts.references import References
from specreg.verdicts.speeds import soften
from specreg.verdicts.verdict import Outcome, Verdict

Fresh = Measurement | Reason | None
"""What a fresh launch of a case measured, why it measured nothing, or None if there was none."""


def acceptance_on_launch(metric: Metric, launch: Measurement, references: References) -> Verdict:
    """Return the verdict on an acceptance metric on one launch.

    Its look is determined by the prompts after which the measurement stopped.
    """
    try:
        evidence = compare((launch,), references.baselines_of(launch.case))
    except BaselineError as error:
        return unreadable_baseline(metric, launch, error)

    verdict = judge_acceptance(
        metric,
        evidence,
        launch.look,
        decisions=references.cases,
        nights=_nights_of(metric, evidence, references),
    )
    return soften(verdict, references)


def wants_fresh_launch(verdict: Verdict) -> bool:
    """Return whether a fresh launch has to confirm a loss of acceptance on a planned launch.

    It doesn't if the nights have proven the loss.
    """
    return verdict.outcome is Outcome.REGRESSED and not verdict.since


def confirmed(verdict: Verdict, fresh: Fresh, references: References) -> Verdict:
    """Return the verdict on an acceptance metric after its fresh launch.

    Args:
        verdict: the verdict on a planned launch.
        fresh: the fresh launch.
        references: what it is compared with.
    """
    if not wants_fresh_launch(verdict):
        return verdict
    if fresh is None:
        reason = Reason.of("not_confirmed", outcome=verdict.outcome)
        return dataclasses.replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=reason)
    if isinstance(fresh, Reason):
        reason = Reason.of("further_launch_failed", outcome=verdict.outcome, failure=fresh)
        return dataclasses.replace(verdict, outcome=Outcome.INVALID, reason=reason)
    metric = METRICS[verdict.metric]
    verdict_on_fresh = acceptance_on_launch(metric, fresh, references)
    if metric.family in fresh.invalid:
        return verdict_on_fresh
    return soften(confirm(verdict, verdict_on_fresh), references)


def _nights_of(
    metric: Metric, evidence: BaselineComparison, references: References
) -> AcceptanceNights | None:
    """Return what the nights show of a metric that decides by itself.

    Returns:
        None if the metric follows another one, if this machine has no baseline of the case with
        these settings, or if acceptance has no interval or no level.
    """
    case = evidence.measurement.case
    baselines = evidence.baselines
    if metric.follows or baselines.exact is None:
        return None
    if differing_settings(baselines.exact.case, baselines.settings):
        return None
    change = evidence.ratio_change(metric)
    tonight = night_values(metric, evidence.launches)
    if isinstance(change, Reason) or not tonight:
        return None
    return go_through_nights(
        metric,
        tonight[-1],
        baselines.exact,
        references.history.of(case.id),
        error_frac=change.effect.error_frac,
        tolerance_frac=speed_loss(metric, tolerance_of(metric, case, baselines)),
        decisions=references.cases,
    )
