"""When a case has been measured enough: what is known of it in, a rule for the measuring out."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.comparison import Known, compare
from specreg.matrix.case import Case
from specreg.measurement.measure import Enough, Measurement, values_of
from specreg.measurement.metrics import Metric, Replay
from specreg.stats.alpha_spending import Look
from specreg.verdicts.judge import Outcome, judge


def enough_for(
    case: Case, metrics: Sequence[Metric], known: Known, *, may_stop_early: bool
) -> Enough:
    """Enough is what decides all of some acceptance metrics, or shows a loss in the first early.

    Few prompts may show a loss; that there is none takes all of them.

    Args:
        case: what is measured.
        metrics: of acceptance, one at least.
        known: what the baselines know of the case.
        may_stop_early: whether nothing else is judged that takes all prompts.
    """

    def enough(acceptance: AcceptanceRecord | None, look: Look) -> bool:
        if acceptance is None or not acceptance.prompts:
            return look is not Look.EARLY  # of a sum alone, more prompts tell nothing more
        if look is Look.EARLY:
            if not may_stop_early:
                return False
            return _outcomes(case, metrics[:1], acceptance, known, look) == {Outcome.REGRESSED}
        return Outcome.INCONCLUSIVE not in _outcomes(case, metrics, acceptance, known, look)

    return enough


def _outcomes(
    case: Case,
    metrics: Iterable[Metric],
    acceptance: AcceptanceRecord | None,
    known: Known,
    look: Look,
) -> AbstractSet[Outcome]:
    """What a measurement that isn't over would be judged to be."""
    replay = Replay(rounds=(), control_rounds=(), acceptance=acceptance, limits=case.limits)
    so_far = Measurement(
        case=case,
        engine_version="",
        target="",
        draft=None,
        replay=replay,
        values=values_of(case, replay),
    )
    comparison = compare((so_far,), known)
    return {judge(metric, comparison, look).outcome for metric in metrics}
