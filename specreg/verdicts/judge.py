"""Judge a metric of a case: its launches against what the baselines know of it."""

import dataclasses
import math
import statistics
from dataclasses import dataclass

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.comparison import (
    NOTHING_ACCEPTED_ADVICE,
    BaselineComparison,
    CaseBaselines,
    accepted_nothing,
    differing_settings,
    why_held_back,
    without_num_prompts,
)
from specreg.baselines.schema import load_acceptance
from specreg.core.commands import ATTACH_OPTION, is_attached, record_command
from specreg.core.reasons import Invalidity, Reason
from specreg.engines.methods import METHODS
from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS, SPOILS, Family, Metric, acceptance_value
from specreg.stats.intervals import LEVELS, Effect, Look
from specreg.verdicts.by_nights import (
    hold_by_nights,
    judge_beside_all_cases,
    judge_beside_control,
    name_lasting_loss,
)
from specreg.verdicts.changed_lengths import weigh_changed_lengths
from specreg.verdicts.detection import launches_to_hold, mde_frac, to_frac
from specreg.verdicts.nights import KNOWN_NIGHTS, NightEvidence
from specreg.verdicts.verdict import Cause, Comparison, Lack, Outcome, Verdict

_OTHER_CARD_FRAC = 0.1
"""How much the sensors of cards of one kind may differ: ±5 % each."""
_NEAR_ONE = 1.1
"""Below this acceptance length three digits don't show what AL - 1 lost."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a metric isn't compared, and what is missing for it to be."""

    outcome: Outcome
    reason: Reason
    lacks: Lack | None = None


def first_look(metric: Metric) -> Look:
    """Return the look that a run plans for: at its launches, or at all prompts of the case."""
    return Look.LAUNCH if metric.by_launch else Look.FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedBy:
    """What a figure is judged by, besides the comparison with its baseline.

    Attributes:
        nights: what the nights of the figure say; None without a night before tonight.
        cases: how many cases the run judges. Each of them may look worse by chance, so that a loss
            must be so many times clearer (Bonferroni).
    """

    nights: NightEvidence | None = None
    cases: int = 1


BY_BASELINE_ALONE = JudgedBy()


def judge(
    metric: Metric,
    evidence: BaselineComparison,
    look: Look,
    judged_by: JudgedBy = BY_BASELINE_ALONE,
) -> Verdict:
    """Judge one metric of a case at one look, which has its share of the level to spend.

    What the prompts of the case decided stays decided, whatever made the extension necessary.
    """
    if look is Look.EXTENDED:
        verdict = judge(metric, evidence.without_extension, Look.FULL, judged_by)
        if verdict.outcome is not Outcome.INCONCLUSIVE:
            return verdict
    refusal = _why_not_compared(metric, evidence)
    if refusal is not None:
        return _refused(metric, evidence, refusal)
    if metric.by_launch:
        return _judge_speed(metric, evidence, look, judged_by)
    return _judge_acceptance(metric, evidence, look, judged_by)


def outcome_of(
    change_frac: float,
    low_frac: float,
    high_frac: float,
    tolerance: float,
    *,
    two_sided: bool = False,
) -> Outcome:
    """Return the outcome that a whole interval gives; better is positive.

    PASS: proven within the tolerance. IMPROVED: proven better than it. REGRESSED: proven worse than
    before, and the estimate is worse than tolerated; of what should stay as it is (`two_sided`):
    proven to have changed, and by more. INCONCLUSIVE: none of these.
    """
    if low_frac > -tolerance and (not two_sided or high_frac < tolerance):
        return Outcome.IMPROVED if low_frac > tolerance else Outcome.PASS
    has_lost = high_frac < 0 and change_frac < -tolerance
    has_gained = two_sided and low_frac > 0 and change_frac > tolerance
    return Outcome.REGRESSED if has_lost or has_gained else Outcome.INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class Reference:
    """What a metric is held against.

    Attributes:
        expected: the value to compare with; None if only the change is known.
        against: whose value that is: an environment, a source, or a side of a gate.
        tolerance_frac: the change for the worse that is tolerated, 0..1.
    """

    expected: float | None
    against: str
    tolerance_frac: float


def judge_effect(
    metric: Metric,
    effect: Effect,
    reference: Reference,
    level: float,
    loss_level: float | None = None,
) -> tuple[Outcome, Comparison]:
    """Judge a change by its whole interval.

    Args:
        metric: the metric that changed.
        effect: the change and its error.
        reference: what the metric is held against.
        level: how often the interval may miss the truth on either side, 0..0.5.
        loss_level: the level at which a loss must be proven; None for `level`.
    """
    low_frac, high_frac = (to_frac(metric, bound) for bound in effect.bounds(level))
    surely_above_frac, surely_below_frac = (
        to_frac(metric, bound) for bound in effect.bounds(loss_level or level)
    )
    change_frac = to_frac(metric, effect.estimate_frac)
    p_worse = effect.p_worse
    if metric.two_sided:
        p_worse = 2 * min(p_worse, 1 - p_worse)
    outcome = outcome_of(
        change_frac,
        surely_above_frac if metric.two_sided else low_frac,  # where a gain is a loss too
        surely_below_frac,
        reference.tolerance_frac,
        two_sided=metric.two_sided,
    )
    comparison = Comparison(
        expected=reference.expected,
        against=reference.against,
        tolerance_frac=reference.tolerance_frac,
        two_sided=metric.two_sided,
        change_frac=change_frac,
        low_frac=low_frac,
        high_frac=high_frac,
        p_worse=p_worse,
        mde_frac=mde_frac(metric, effect, level),
    )
    return outcome, comparison


def tolerance_of(metric: Metric, case: Case, known: CaseBaselines) -> float:
    """Return the tolerance; it is wider for the acceptance of another machine or of a paper."""
    own_frac = metric.allowed_frac(case)
    if metric.by_launch or known.exact is not None:
        return own_frac
    wider_frac = max(metric.portable_tolerance_frac or 0, own_frac)
    if known.baseline is not None or known.published is None:
        return wider_frac
    value = known.published.value(metric.name)
    published_frac = known.published.tolerance_frac
    if published_frac is None or value is None or value <= metric.origin:
        return wider_frac
    # A paper's percentage is of AL, ours is of AL - 1.
    converted_frac = published_frac * value / (value - metric.origin)
    # Near AL = 1 their percentage exceeds all there is to lose: it would never fail.
    return max(wider_frac, converted_frac) if converted_frac < 1 else wider_frac


_ABSENT = dict.fromkeys(
    Family,
    "no value, as no answer had two chunks or more, or the server beside it has none; raise"
    " output_cap_tokens",
) | {
    Family.ACCEPTANCE: "no value, as this source doesn't tell it; name it under shown in the"
    " matrix",
    Family.POWER: "no value, as no device's counter moved; look at power/ in the run's folder",
}
"""By family, why a metric that a case should have may have no value, and what to do."""


def _refused(metric: Metric, evidence: BaselineComparison, refusal: Refusal) -> Verdict:
    """Return the verdict on a metric that isn't compared, with how to record what it lacks."""
    measurement = evidence.measurement
    reason = refusal.reason
    if refusal.lacks is not None:
        options = evidence.known.options
        if is_attached(options):
            remedy = f"leave out {ATTACH_OPTION} to record one"
        else:
            remedy = f"record one with\n  {record_command((measurement.case.id,), options)}"
        reason = Reason(code=reason.code, text=reason.text, remedy=remedy)
    return Verdict(
        case_id=measurement.case.id,
        metric=metric.name,
        outcome=refusal.outcome,
        value=measurement.values.get(metric.name),
        reason=reason,
        lacks=refusal.lacks,
        launches=_launches_judged(metric, evidence),
    )


def _launches_judged(metric: Metric, evidence: BaselineComparison) -> int:
    return len(evidence.launches) if metric.by_launch else 1


def _why_not_compared(metric: Metric, evidence: BaselineComparison) -> Refusal | None:
    """Return the first reason that keeps a metric from being compared, None without any."""
    refusal = _refuse_figure(metric, evidence) or _refuse_baseline(metric, evidence)
    if refusal is not None:
        return refusal
    if metric.by_launch:
        return _refuse_speed(metric, evidence)
    return _refuse_acceptance(metric, evidence)


def _refuse_figure(metric: Metric, evidence: BaselineComparison) -> Refusal | None:
    """Return why what was measured can't be compared."""
    invalidity = _invalidity_of(metric, evidence)
    if invalidity is not None:
        return Refusal(Outcome.INVALID, Reason.of(invalidity))
    if metric.family is Family.POWER:
        replay = evidence.measurement.replay
        power = replay.power if replay else None
        if power is None:
            reason = Reason(text="the power of this launch wasn't sampled")
            return Refusal(Outcome.NOT_COMPARABLE, reason)
        if power.too_short:
            return Refusal(Outcome.NOT_COMPARABLE, Reason(text=power.too_short))
    if metric.name not in evidence.measurement.values:
        absent = Invalidity("METRIC_ABSENT", _ABSENT[metric.family])
        return Refusal(Outcome.INVALID, Reason.of(absent))
    return None


def _invalidity_of(metric: Metric, evidence: BaselineComparison) -> Invalidity | None:
    """Return why a metric's figure means nothing, None if it means something."""
    measurement = evidence.measurement
    if metric.family in measurement.invalid:
        return measurement.invalid[metric.family]
    if metric.family in SPOILS["CLOCK_LOW"]:
        held_back = why_held_back(evidence.launches, evidence.known.exact)
        if held_back is not None:
            return held_back
    if metric.family is Family.POWER and measurement.replay and measurement.replay.power:
        return measurement.replay.power.invalid
    return None


def _refuse_baseline(metric: Metric, evidence: BaselineComparison) -> Refusal | None:
    """Return why the baseline can't be compared with."""
    case = evidence.measurement.case
    known = evidence.known
    if known.baseline is None and not (known.published and known.published.has_acceptance):
        reason = Reason(text=_nothing_recorded(metric, known))
        return Refusal(Outcome.NO_BASELINE, reason, Lack.BASELINE)
    if known.baseline is not None:
        settings = without_num_prompts(known.settings)
        differing = differing_settings(known.baseline.case, settings)
        if differing:
            reason = Reason(text=f"it was recorded with other settings: {differing}")
            return Refusal(Outcome.NO_BASELINE, reason, Lack.BASELINE)
    takes_all_prompts = metric.by_launch or case.needs_fresh_server
    if known.settings.num_prompts is not None and takes_all_prompts:
        figure = "a speed" if metric.by_launch else "what a drafter learns"
        reason = Reason(
            text=f"of {known.settings.num_prompts} prompts: {figure} is of all prompts of the case",
            remedy="leave out --num-prompts to judge it",
        )
        return Refusal(Outcome.NOT_COMPARABLE, reason)
    return None


def _nothing_recorded(metric: Metric, known: CaseBaselines) -> str:
    """Say that nothing was recorded, and what was published of the metric and where that holds."""
    sentence = f"nothing recorded in '{known.environment.name}'"
    value = known.published.value(metric.name) if known.published else None
    if known.published is None or not value:
        return sentence
    return f"{sentence}, published is {value:.3g} ({known.published.conditions})"


def _refuse_acceptance(metric: Metric, evidence: BaselineComparison) -> Refusal | None:
    """Return why two acceptances are not of the same kind."""
    if evidence.counted_otherwise and (metric.of_proposed or metric.position is not None):
        reason = Reason(text=_counted_otherwise(evidence))
        return Refusal(Outcome.NOT_COMPARABLE, reason, Lack.SOURCE)
    if evidence.expected_ratio(metric) is None:
        reason = Reason(text=f"the baseline holds no {metric.name}")
        return Refusal(Outcome.NO_BASELINE, reason, Lack.BASELINE)
    measured = evidence.measurement.acceptance
    baseline = evidence.known.baseline
    recorded = baseline.acceptance if baseline else None
    if measured is None or recorded is None:
        return None
    is_known_apart = bool(recorded.prompts or recorded.rounds)
    is_same_source = measured.source is recorded.source
    if not (
        measured.counts_as(recorded.source, recorded.view) and (is_same_source or is_known_apart)
    ):
        reason = Reason(
            text=f"measured as {measured.source}, {measured.view}, recorded as"
            f" {recorded.source}, {recorded.view}"
        )
        return Refusal(Outcome.NOT_COMPARABLE, reason, Lack.SOURCE)
    return _refuse_nothing_to_lose(metric, evidence)


def _refuse_nothing_to_lose(metric: Metric, evidence: BaselineComparison) -> Refusal | None:
    """Return why no loss could show: the baseline accepted nothing, or nothing at a position."""
    recorded = evidence.known.baseline.acceptance if evidence.known.baseline else None
    acceptance = load_acceptance(recorded)
    if acceptance is None:
        return None
    nothing = accepted_nothing(acceptance.total)
    if nothing:
        text = f"the baseline accepted {nothing}, so no loss could ever show"
        measured = evidence.measurement.acceptance
        if measured is not None and measured.total.accepted:
            return Refusal(Outcome.NO_BASELINE, Reason(text=text), Lack.BASELINE)
        reason = Reason(text=text, remedy=NOTHING_ACCEPTED_ADVICE)
        return Refusal(Outcome.NO_BASELINE, reason)
    if metric.position and acceptance_value(metric, acceptance) == 0:
        text = f"the baseline never accepted a draft at position {metric.position}: nothing to lose"
        return Refusal(Outcome.NOT_COMPARABLE, Reason(text=text))
    return None


def _refuse_speed(metric: Metric, evidence: BaselineComparison) -> Refusal | None:
    """Return why two speeds are not of the same kind."""
    known = evidence.known
    if known.exact is None:
        source = "a published figure"
        if known.baseline is not None:
            source = f"'{known.baseline.environment.name}'"
        reason = Reason(
            text=f"{_nothing_recorded(metric, known)}, and speed doesn't carry over from {source}"
        )
        return Refusal(Outcome.NOT_COMPARABLE, reason, Lack.BASELINE)
    if not known.exact.launches:
        reason = Reason(text="the baseline holds acceptance alone, and no speed")
        return Refusal(Outcome.NOT_COMPARABLE, reason, Lack.BASELINE)
    if not known.exact.launch_values(metric):
        return Refusal(Outcome.NO_BASELINE, Reason(text="the baseline holds none"), Lack.BASELINE)
    if metric.family is Family.POWER and evidence.unlike_devices:
        reason = Reason(text=evidence.unlike_devices)
        return Refusal(Outcome.NOT_COMPARABLE, reason, Lack.SOURCE)
    return None


def _against(known: CaseBaselines) -> str:
    return known.baseline.environment.name if known.baseline else "published"


def _judge_acceptance(
    metric: Metric, evidence: BaselineComparison, look: Look, judged_by: JudgedBy
) -> Verdict:
    """Judge acceptance by all prompts, and without those whose answers are of another length."""
    verdict = _judge_ratio(metric, evidence, look, judged_by)
    changes = evidence.length_changes
    if evidence.measured is None or not changes:
        return verdict
    unchanged = evidence.without({change.prompt_id for change in changes})
    prompts = len(evidence.measured.prompt_ids)
    without = _judge_ratio(metric, unchanged, look, judged_by)
    return weigh_changed_lengths(verdict, without, changes, prompts)


def _judge_ratio(
    metric: Metric, evidence: BaselineComparison, look: Look, judged_by: JudgedBy
) -> Verdict:
    case = evidence.measurement.case
    known = evidence.known
    reference = Reference(None, _against(known), tolerance_of(metric, case, known))
    change = evidence.ratio_change(metric)
    nights = judged_by.nights
    if isinstance(change, Reason):
        verdict = Verdict(
            case_id=case.id,
            metric=metric.name,
            outcome=Outcome.INCONCLUSIVE,
            value=evidence.measurement.values.get(metric.name),
            comparison=Comparison(
                against=reference.against, tolerance_frac=reference.tolerance_frac
            ),
            reason=change,
            needed_nights=0,
        )
        return name_lasting_loss(metric, verdict, nights)
    reference = dataclasses.replace(reference, expected=change.expected)
    level = LEVELS[look]
    outcome, comparison = judge_effect(
        metric, change.effect, reference, level, level / judged_by.cases
    )
    prompt_ids = evidence.measured.prompt_ids if evidence.measured is not None else ()
    verdict = Verdict(
        case_id=case.id,
        metric=metric.name,
        outcome=outcome,
        value=change.value,
        comparison=comparison,
    )
    if nights is not None:
        verdict = dataclasses.replace(verdict, nights=nights.nights)
    if outcome is Outcome.INCONCLUSIVE:
        verdict = _undecided_acceptance(metric, verdict, len(prompt_ids), nights)
    elif evidence.counted_otherwise:
        verdict = dataclasses.replace(verdict, reason=Reason(text=_counted_otherwise(evidence)))
    elif outcome is Outcome.REGRESSED:
        recorded = load_acceptance(known.baseline.acceptance) if known.baseline else None
        measured = evidence.measurement.acceptance
        if measured is not None and recorded is not None:
            shared_ids = set(prompt_ids)
            reason = _where_lost(metric, measured.only(shared_ids), recorded.only(shared_ids))
            verdict = dataclasses.replace(verdict, reason=reason)
    return name_lasting_loss(metric, verdict, nights)


def _undecided_acceptance(
    metric: Metric, verdict: Verdict, prompts: int, nights: NightEvidence | None
) -> Verdict:
    """Say how many prompts would detect a loss as large as tolerated, and what the nights say.

    The error falls with the root of the number of prompts.
    """
    comparison = verdict.comparison
    ratio = (comparison.mde_frac or 0.0) / (comparison.tolerance_frac or 1.0)
    enough = max(2.0, ratio**2) * prompts
    reason = Reason(
        text=f"{_can_not_tell(comparison)} with {prompts} prompts",
        remedy=f"raise prompts in the matrix to about {enough:.0f}",
    )
    return hold_by_nights(
        metric, dataclasses.replace(verdict, reason=reason, needed_launches=0), nights
    )


def _counted_otherwise(evidence: BaselineComparison) -> str:
    """Say that two acceptances count other steps, and what of them is compared nevertheless."""
    runner = evidence.measurement.facts.model_runner
    baseline = evidence.known.baseline
    recorded_runner = baseline.provenance.facts.model_runner if baseline else ""
    runners = f"model runner {recorded_runner or 'unknown'} -> {runner or 'unknown'}"
    return (
        f"{runners}: one counts the steps that found a draft, the other all steps; so the tokens"
        " per step of all steps are compared, which mean the same"
    )


def _judge_speed(
    metric: Metric, evidence: BaselineComparison, look: Look, judged_by: JudgedBy
) -> Verdict:
    case = evidence.measurement.case
    known = evidence.known
    values = evidence.launch_values(metric)
    recorded = known.exact.launch_values(metric) if known.exact else ()
    other_card = evidence.other_card if metric.family is Family.POWER else ""
    tolerance_frac = tolerance_of(metric, case, known)
    if other_card:
        tolerance_frac = max(tolerance_frac, _OTHER_CARD_FRAC)
    nights = judged_by.nights
    if nights is None:
        return _judge_standstill(metric, evidence, tolerance_frac)
    reference = Reference(_geometric_mean(recorded), _against(known), tolerance_frac)
    level = LEVELS[look]
    outcome, comparison = judge_effect(
        metric, nights.effect, reference, level, level / judged_by.cases
    )
    verdict = Verdict(
        case_id=case.id,
        metric=metric.name,
        outcome=outcome,
        value=_geometric_mean(values),
        comparison=comparison,
        cause=_cause(metric, evidence, nights.effect),
        launches=len(evidence.launches),
        nights=nights.nights,
    )
    if other_card and outcome is not Outcome.PASS:
        reason = Reason(
            text=f"{other_card}, and cards of one kind differ by {_OTHER_CARD_FRAC:.0%}"
        )
        return dataclasses.replace(verdict, outcome=Outcome.NOT_COMPARABLE, reason=reason)
    if outcome is Outcome.INCONCLUSIVE:
        verdict = _undecided_speed(metric, verdict, nights)
    elif outcome is Outcome.REGRESSED and nights.nights < KNOWN_NIGHTS:
        verdict = judge_beside_control(metric, verdict, evidence)
    verdict = name_lasting_loss(metric, verdict, nights)
    return judge_beside_all_cases(metric, verdict, nights)


def _judge_standstill(
    metric: Metric, evidence: BaselineComparison, tolerance_frac: float
) -> Verdict:
    """Judge a speed that is 0 in a launch: a goodput of 0 has no logarithm, and is surely worse."""
    values = evidence.launch_values(metric)
    recorded = evidence.known.exact.launch_values(metric) if evidence.known.exact else ()
    is_always_zero = max(values) <= 0
    reason = None if is_always_zero else Reason(text="it is 0 in one launch, and isn't in another")
    return Verdict(
        case_id=evidence.measurement.case.id,
        metric=metric.name,
        outcome=Outcome.REGRESSED if is_always_zero else Outcome.INCONCLUSIVE,
        value=evidence.measurement.values.get(metric.name),
        comparison=Comparison(
            expected=_geometric_mean(recorded),
            against=_against(evidence.known),
            tolerance_frac=tolerance_frac,
            change_frac=-1.0,
            low_frac=-1.0,
            high_frac=-1.0,
            p_worse=0.0,
        ),
        reason=reason,
        launches=len(evidence.launches),
        needed_nights=0,
    )


def _can_not_tell(comparison: Comparison) -> str:
    """Say what some evidence can detect: a tolerance finer than that can't be kept."""
    return (
        f"tonight detects {comparison.mde_frac:.1%}, and its tolerance is"
        f" {comparison.tolerance_frac:.1%}"
    )


def _undecided_speed(metric: Metric, verdict: Verdict, nights: NightEvidence) -> Verdict:
    """Say what one night can't tell, and what further launches or nights would."""
    launches = verdict.launches
    plural = "" if launches == 1 else "es"
    reason = Reason(text=f"{_can_not_tell(verdict.comparison)} with {launches} launch{plural}")
    tolerance_frac = verdict.comparison.tolerance_frac or 0.0
    needed = launches_to_hold(metric, tolerance_frac, nights, launches=launches)
    if needed:
        reason = dataclasses.replace(reason, remedy=f"measure {needed} launches")
    verdict = dataclasses.replace(verdict, reason=reason, needed_launches=needed)
    return hold_by_nights(metric, verdict, nights)


def _cause(metric: Metric, evidence: BaselineComparison, effect: Effect) -> Cause | None:
    """Return Δ log(output speed) = Δ log(tokens per step) - Δ log(step time), in its two parts.

    Returns:
        None for what isn't a speed of output, without an acceptance to compare, and where steps
        went without a draft, by the method or by dynamic speculation: AL leaves those steps out.
    """
    method = evidence.measurement.case.server.method
    if not metric.of_output or method == "none" or not METHODS[method].drafts_every_step:
        return None
    record = evidence.measurement.acceptance
    if record is not None and record.undrafted_steps:
        return None
    length = evidence.without_extension.ratio_change(METRICS["acceptance_length_tokens"])
    if isinstance(length, Reason):
        return None
    from_acceptance = math.log(length.value / length.expected)
    from_step = effect.estimate_frac - from_acceptance
    return Cause(
        parts=(
            ("acceptance", math.expm1(from_acceptance)),
            ("the cost of a step", math.expm1(from_step)),
        )
    )


def _where_lost(
    metric: Metric, measured: AcceptanceRecord, recorded: AcceptanceRecord
) -> Reason | None:
    """Say where acceptance was lost: `by category: coding 3.12 -> 1.85, math 2.74 -> 2.73`.

    Of the length also by draft. A position counts the steps that accepted so many drafts or more,
    so that a draft which became worse drags all positions after it down. Its share of the steps
    that accepted the drafts before it shows which draft that is.
    """
    parts = []
    by_category = []
    for category, record in measured.by_category.items():
        before = acceptance_value(metric, recorded.by_category.get(category))
        now = acceptance_value(metric, record)
        if before is not None and now is not None:
            digits = 3 if before >= _NEAR_ONE else 5
            by_category.append(f"{category} {before:.{digits}g} -> {now:.{digits}g}")
    if by_category:
        parts.append(f"by category: {', '.join(by_category)}")
    if not metric.follows:
        conditional_fracs = zip(
            recorded.total.conditional_acceptance,
            measured.total.conditional_acceptance,
            strict=False,
        )
        by_draft = ", ".join(
            f"no. {number} {before:.1%} -> {now:.1%}"
            for number, (before, now) in enumerate(conditional_fracs, start=1)
        )
        if by_draft:
            parts.append(f"by draft, where those before it were accepted: {by_draft}")
    return Reason(text="; ".join(parts)) if parts else None


def _geometric_mean(values: tuple[float, ...]) -> float:
    return statistics.geometric_mean(values) if len(values) > 1 else values[0]
