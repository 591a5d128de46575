"""Decide, while a case is being measured, whether its prompts are enough."""

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.comparison import CaseBaselines, compare
from specreg.matrix.case import Case
from specreg.measurement.arm import StoppingRule
from specreg.measurement.measure import Measurement, values_of
from specreg.measurement.metrics import Metric, Replay
from specreg.stats.intervals import Look
from specreg.verdicts.judge import judge_acceptance
from specreg.verdicts.verdict import Outcome


def enough_for(
    case: Case, metric: Metric, baselines: CaseBaselines, *, may_stop_early: bool, cases: int
) -> StoppingRule:
    """Return a function that decides whether the prompts measured so far are enough.

    A few prompts may be enough to prove a loss. Proving that there is none takes all prompts.

    Args:
        case: the case that is measured.
        metric: the metric that decides about the acceptance of the case.
        baselines: the baselines that apply to the case.
        may_stop_early: whether no other metric needs all prompts.
        cases: how many cases the run judges.
    """

    def is_enough(acceptance: AcceptanceRecord | None, look: Look) -> bool:
        is_early = look is Look.EARLY
        if acceptance is None or not acceptance.prompt_ids:
            # Without counts of single prompts there is no interval, and an extension won't help.
            return not is_early
        if is_early and not may_stop_early:
            return False
        evidence = compare((measured_prompts(case, acceptance),), baselines)
        outcome = judge_acceptance(metric, evidence, look, decisions=cases).outcome
        if is_early:
            return outcome is Outcome.REGRESSED
        return outcome is not Outcome.INCONCLUSIVE

    return is_enough


def measured_prompts(case: Case, acceptance: AcceptanceRecord) -> Measurement:
    """Return a measurement that consists of acceptance only."""
    replay = Replay(acceptance=acceptance, limits=case.judging.limits)
    return Measurement(
        case=case,
        engine_version="",
        target="",
        draft=None,
        replay=replay,
        values=values_of(case, replay),
    )
