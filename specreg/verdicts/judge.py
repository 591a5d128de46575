"""Judge an acceptance metric of a case, and find out whether a metric can be judged at all."""

import dataclasses
from dataclasses import dataclass

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.comparison import (
    BaselineComparison,
    CaseBaselines,
    clock_invalidity,
    describe_nothing_accepted,
    differing_settings,
    without_num_prompts,
)
from specreg.baselines.schema import load_acceptance
from specreg.core.catalogue import CATALOGUE
from specreg.core.commands import ATTACH_OPTION, is_attached, record_command
from specreg.core.counted import counted
from specreg.core.errors import BaselineError
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.judging.spread import MOST_NIGHTS
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric, acceptance_value
from specreg.stats.intervals import LEVELS, Effect, Look
from specreg.verdicts.acceptance_nights import AcceptanceNights, LastingLoss
from specreg.verdicts.changed_lengths import weigh_changed_lengths
from specreg.verdicts.detection import mde_frac, to_frac
from specreg.verdicts.software import Software, describe_changes
from specreg.verdicts.verdict import Comparison, Lack, Outcome, Verdict

PUBLISHED = "published"
"""The origin of the expected value if a case is compared with a published figure."""
_DATE_DIGITS = 8
"""The digits of the date at the beginning of a run's name, such as `20261121`."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why a metric can't be compared.

    Attributes:
        outcome: the outcome of the metric.
        reason: why it can't be compared.
        lacks: what is missing for a comparison, if a recording may supply it; None otherwise.
    """

    outcome: Outcome
    reason: Reason
    lacks: Lack | None = None


def judge_acceptance(
    metric: Metric,
    evidence: BaselineComparison,
    look: Look,
    *,
    decisions: int = 1,
    nights: AcceptanceNights | None = None,
) -> Verdict:
    """Judge an acceptance metric of a case on its last launch.

    Args:
        evidence: the launches of the case and its baselines.
        look: the moment of the decision, which determines the level of significance.
        decisions: how many decisions share the level of a loss. Chance may show a loss in each of
            them, so the level is divided by their number (Bonferroni).
        nights: what the nights show; None if they show nothing.
    """
    if look is Look.EXTENDED:
        # Before further prompts extended the case, its own prompts were judged. If they decide this
        # metric, their decision stands, even if another metric needed the further prompts.
        verdict = judge_acceptance(
            metric, evidence.without_extension, Look.FULL, decisions=decisions, nights=nights
        )
        if verdict.outcome is not Outcome.INCONCLUSIVE:
            return verdict

    obstacle = find_obstacle(metric, evidence)
    if obstacle is not None:
        return not_compared(metric, evidence, obstacle)
    verdict = _judge_prompts(metric, evidence, look, decisions)
    return _judge_by_nights(metric, verdict, nights)


def outcome_of(
    change_frac: float,
    low_frac: float,
    high_frac: float,
    tolerance_frac: float,
    *,
    two_sided: bool = False,
) -> Outcome:
    """Return the outcome for a change, given as an estimate and its interval. Better is positive.

    Args:
        change_frac: the estimated change.
        low_frac: the lower end of the interval.
        high_frac: the upper end of the interval.
        tolerance_frac: the tolerated change for the worse.
        two_sided: whether a change in either direction is worse.

    Returns:
        PASS if it is proven that no more than the tolerance was lost, and IMPROVED if more than the
        tolerance is proven to be gained. REGRESSED if a loss is proven and the estimated loss is
        larger than the tolerance; for a two-sided metric, a gain counts as a loss. INCONCLUSIVE
        otherwise.
    """
    excludes_loss = low_frac > -tolerance_frac
    excludes_gain = high_frac < tolerance_frac
    if excludes_loss and (excludes_gain or not two_sided):
        if low_frac > tolerance_frac:
            return Outcome.IMPROVED
        return Outcome.PASS

    # A proven loss that is smaller than the tolerance is tolerated, so the estimate counts too.
    has_lost = high_frac < 0 and change_frac < -tolerance_frac
    has_gained = two_sided and low_frac > 0 and change_frac > tolerance_frac
    if has_lost or has_gained:
        return Outcome.REGRESSED
    return Outcome.INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class Reference:
    """What a metric is compared with.

    Attributes:
        expected: the value to compare with; None if only the change is known.
        against: where that value comes from: an environment, a publication, or a side of a gate.
        tolerance_frac: the tolerated change for the worse, as a share.
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
    """Judge a change by its interval.

    Args:
        metric: the metric that changed.
        effect: the change and its error.
        reference: what the metric is compared with.
        level: the probability, on each side, that the interval misses the truth, 0..0.5.
        loss_level: the level at which a loss must be proven; None for `level`.

    Returns:
        The outcome, and the comparison with the interval at `level`.
    """
    low, high = effect.bounds(level)
    low_frac = to_frac(metric, low)
    high_frac = to_frac(metric, high)

    # The loss level is stricter if the run judges many cases, so that chance rarely shows a loss in
    # any of them. A PASS keeps `level`, because it speaks of its own figure only. But the lower end
    # of a two-sided metric can prove a loss too, so there a PASS needs the loss level as well.
    loss_low, loss_high = effect.bounds(loss_level or level)
    proven_low_frac = low_frac
    if metric.two_sided:
        # A gain of such a metric is a loss too.
        proven_low_frac = to_frac(metric, loss_low)
    proven_high_frac = to_frac(metric, loss_high)
    change_frac = to_frac(metric, effect.estimate_frac)
    p_worse = effect.p_worse
    if metric.two_sided:
        p_worse = 2 * min(p_worse, 1 - p_worse)
    outcome = outcome_of(
        change_frac,
        proven_low_frac,
        proven_high_frac,
        reference.tolerance_frac,
        two_sided=metric.two_sided,
    )
    comparison = Comparison(
        expected=reference.expected,
        against=reference.against,
        tolerance_frac=reference.tolerance_frac,
        two_sided=metric.two_sided,
        change_frac=change_frac,
        # More than everything can't be lost.
        low_frac=max(low_frac, -1.0) if metric.sign > 0 else low_frac,
        high_frac=high_frac,
        p_worse=p_worse,
        mde_frac=mde_frac(metric, effect, level),
    )
    return outcome, comparison


def tolerance_of(metric: Metric, case: Case, baselines: CaseBaselines) -> float:
    """Return the tolerated loss of a metric, as a share.

    Acceptance that is compared with another machine or with a publication gets a wider tolerance.
    """
    own_frac = metric.allowed_frac(case)
    if metric.by_launch or baselines.exact is not None:
        return own_frac
    wider_frac = max(metric.portable_tolerance_frac or 0, own_frac)
    if baselines.baseline is not None or baselines.published is None:
        return wider_frac
    value = baselines.published.value(metric.name)
    published_frac = baselines.published.tolerance_frac
    if published_frac is None or value is None or value <= metric.origin:
        return wider_frac

    # The tolerance of a publication is a share of AL, and ours is a share of AL - 1.
    converted_frac = published_frac * value / (value - metric.origin)
    if converted_frac >= 1:
        # Near AL = 1 the published tolerance exceeds AL - 1, so no loss could ever fail.
        return wider_frac
    return max(wider_frac, converted_frac)


_ABSENT = {
    **dict.fromkeys(Family, Reason.of("METRIC_ABSENT")),
    Family.ACCEPTANCE: Reason.of("ACCEPTANCE_ABSENT"),
    Family.POWER: Reason.of("POWER_ABSENT"),
}
"""For each family, why a metric that a case should have may have no value."""


def not_compared(metric: Metric, evidence: BaselineComparison, obstacle: Obstacle) -> Verdict:
    """Return the verdict on a metric that can't be compared.

    If a recording would help, the reason ends with the command to record a baseline, or, if the
    server is attached, with the option to leave out for that.
    """
    measurement = evidence.measurement
    reason = obstacle.reason
    if obstacle.lacks is not None:
        options = evidence.baselines.options
        if is_attached(options):
            remedy = f"leave out {ATTACH_OPTION} to record one"
        else:
            remedy = f"record one with\n  {record_command((measurement.case.id,), options)}"
        reason = dataclasses.replace(reason, remedy=remedy)

    return Verdict(
        case_id=measurement.case.id,
        metric=metric.name,
        outcome=obstacle.outcome,
        value=measurement.values.get(metric.name),
        reason=reason,
        lacks=obstacle.lacks,
        launches=_launches_judged(metric, evidence),
    )


def _launches_judged(metric: Metric, evidence: BaselineComparison) -> int:
    """Return how many launches a verdict is based on: acceptance is judged on the last one."""
    return len(evidence.launches) if metric.by_launch else 1


def find_obstacle(metric: Metric, evidence: BaselineComparison) -> Obstacle | None:
    """Return the first obstacle to comparing a metric; None if it can be compared."""
    obstacle = _obstacle_of_figure(metric, evidence)
    if obstacle is None:
        obstacle = _obstacle_of_baseline(metric, evidence)
    if obstacle is not None:
        return obstacle
    if metric.by_launch:
        return _obstacle_of_speed(metric, evidence)
    return _obstacle_of_acceptance(metric, evidence)


def _obstacle_of_figure(metric: Metric, evidence: BaselineComparison) -> Obstacle | None:
    """Return why the measured figure can't be compared with anything; None if it can."""
    invalidity = _invalidity_of(metric, evidence)
    if invalidity is not None:
        return Obstacle(Outcome.INVALID, invalidity)
    if metric.family is Family.POWER:
        replay = evidence.measurement.replay
        power = replay.power if replay else None
        if power is None:
            return Obstacle(Outcome.NOT_COMPARABLE, Reason.of("power_not_sampled"))
        if power.too_short:
            reason = Reason(code="power_too_short", text=power.too_short)
            return Obstacle(Outcome.NOT_COMPARABLE, reason)

    is_absent = metric.name not in evidence.measurement.values
    if is_absent and metric.counters:
        # Servers of other versions may lack a counter, by which they became no worse.
        reason = Reason.of("not_counted", whose="the server's")
        return Obstacle(Outcome.NOT_COMPARABLE, reason)

    if is_absent:
        return Obstacle(Outcome.INVALID, _ABSENT[metric.family])
    return None


def _invalidity_of(metric: Metric, evidence: BaselineComparison) -> Reason | None:
    """Return why the figure of a metric is invalid; None if it is valid."""
    measurement = evidence.measurement
    if metric.family in measurement.invalid:
        return measurement.invalid[metric.family]
    if metric.family in CATALOGUE["CLOCK_LOW"].spoils:
        low_clock = clock_invalidity(evidence.launches, evidence.baselines.exact)
        if low_clock is not None:
            return low_clock

    if metric.family is Family.POWER and measurement.replay and measurement.replay.power:
        return measurement.replay.power.invalid
    return None


def _obstacle_of_baseline(metric: Metric, evidence: BaselineComparison) -> Obstacle | None:
    """Return why there is no baseline, or why `--num-prompts` prevents a comparison with it.

    Returns:
        None if there is a baseline, or published acceptance, and the number of prompts fits it.
    """
    case = evidence.measurement.case
    baselines = evidence.baselines
    published = baselines.published
    has_published_acceptance = published is not None and published.has_acceptance
    if baselines.baseline is None and not has_published_acceptance:
        reason = Reason.of(
            "nothing_recorded",
            environment=baselines.environment.name,
            published=_published(metric, baselines),
        )
        return Obstacle(Outcome.NO_BASELINE, reason, Lack.BASELINE)

    if baselines.baseline is not None:
        settings = without_num_prompts(baselines.settings)
        differing = differing_settings(baselines.baseline.case, settings)
        if differing:
            reason = Reason.of("settings_changed", differing=differing)
            return Obstacle(Outcome.NO_BASELINE, reason, Lack.BASELINE)

    # Acceptance is compared prompt by prompt, so fewer prompts are enough for it. A speed or power
    # is a figure of the whole load, and a method that learns on a fresh server depends on every
    # prompt.
    takes_all_prompts = metric.by_launch or case.needs_fresh_server
    if baselines.settings.num_prompts is not None and takes_all_prompts:
        figure = metric.quantity if metric.by_launch else "what a drafter learns"
        replayed = counted(baselines.settings.num_prompts, "prompt")
        reason = Reason.of("fewer_prompts", prompts=replayed, figure=figure)
        return Obstacle(Outcome.NOT_COMPARABLE, reason)

    return None


def _published(metric: Metric, baselines: CaseBaselines) -> str:
    """Return a clause with the published value and its conditions; empty without one."""
    value = baselines.published.value(metric.name) if baselines.published else None
    if baselines.published is None or not value:
        return ""
    return f", published is {metric.render_ratio(value)} ({baselines.published.conditions})"


def _obstacle_of_acceptance(metric: Metric, evidence: BaselineComparison) -> Obstacle | None:
    """Return why the run's acceptance can't be compared with the baseline's; None if it can."""
    # Runs that count different steps have only the tokens per step of all steps in common.
    other_counting = _describe_other_counting(evidence)
    if other_counting and (metric.of_proposed or metric.position is not None):
        return Obstacle(Outcome.NOT_COMPARABLE, other_counting, Lack.SOURCE)
    if evidence.expected_ratio(metric) is None:
        leader = METRICS.get(metric.follows)
        if leader is not None and evidence.expected_ratio(leader) is not None:
            # The acceptance of the case is judged all the same.
            source = "baseline" if evidence.baselines.baseline else "publication"
            reason = Reason.of("not_recorded_yet", metric=metric.name, source=source)
            return Obstacle(Outcome.NOT_COMPARABLE, reason, Lack.BASELINE)
        reason = Reason.of("not_in_baseline", metric=metric.name)
        return Obstacle(Outcome.NO_BASELINE, reason, Lack.BASELINE)

    measured = evidence.measurement.acceptance
    baseline = evidence.baselines.baseline
    recorded = baseline.acceptance if baseline else None
    if measured is None or recorded is None:
        return None

    # Two sources that count the same steps may be compared if the baseline has counts for single
    # prompts or rounds, because the same prompts are then compared on both sides.
    has_parts = bool(recorded.prompts or recorded.rounds)
    is_same_source = measured.source is recorded.source
    counts_equally = measured.counts_as(recorded.source, recorded.view)
    if not counts_equally or not (is_same_source or has_parts):
        reason = Reason.of(
            "source_changed",
            measured=f"{measured.source} ({measured.view})",
            recorded=f"{recorded.source} ({recorded.view})",
        )
        return Obstacle(Outcome.NOT_COMPARABLE, reason, Lack.SOURCE)

    return _obstacle_of_nothing_accepted(metric, evidence)


def _obstacle_of_nothing_accepted(metric: Metric, evidence: BaselineComparison) -> Obstacle | None:
    """Return why no loss could show, if the baseline accepted nothing; None if one could.

    The baseline may have accepted nothing at all, or nothing at the position of the metric.
    """
    recorded = evidence.baselines.baseline.acceptance if evidence.baselines.baseline else None
    acceptance = load_acceptance(recorded)
    if acceptance is None:
        return None
    nothing = describe_nothing_accepted(acceptance.total)
    if nothing:
        measured = evidence.measurement.acceptance
        # If this run accepts drafts, recording it helps.
        lacks = Lack.BASELINE if measured is not None and measured.total.accepted else None
        return Obstacle(Outcome.NO_BASELINE, Reason.of("nothing_accepted", nothing=nothing), lacks)

    if metric.position and acceptance_value(metric, acceptance) == 0:
        reason = Reason.of("position_unused", position=metric.position)
        return Obstacle(Outcome.NOT_COMPARABLE, reason)
    return None


def _obstacle_of_speed(metric: Metric, evidence: BaselineComparison) -> Obstacle | None:
    """Return why the run's speed or power can't be compared with the baseline's; None if it can."""
    baselines = evidence.baselines
    if baselines.exact is None:
        source = "a published figure"
        if baselines.baseline is not None:
            source = f"'{baselines.baseline.environment.name}'"
        reason = Reason.of(
            "machine_differs",
            environment=baselines.environment.name,
            published=_published(metric, baselines),
            quantity=metric.quantity,
            source=source,
        )
        return Obstacle(Outcome.NOT_COMPARABLE, reason, Lack.BASELINE)

    if not baselines.exact.launches:
        reason = Reason.of("acceptance_recorded_alone", quantity=metric.quantity)
        return Obstacle(Outcome.NOT_COMPARABLE, reason, Lack.BASELINE)
    if not baselines.exact.launch_values(metric):
        # The metric is newer than the baseline, so its case has lost nothing by it.
        reason = Reason.of("not_recorded_yet", metric=metric.name, source="baseline")
        return Obstacle(Outcome.NOT_COMPARABLE, reason, Lack.BASELINE)

    if metric.family is not Family.SPEEDUP and is_attached(baselines.options):
        return Obstacle(Outcome.NOT_COMPARABLE, Reason.of("attached"))
    if metric.family is Family.POWER and evidence.device_difference:
        reason = Reason.of("devices_differ", difference=evidence.device_difference)
        return Obstacle(Outcome.NOT_COMPARABLE, reason, Lack.SOURCE)
    return None


def against_of(baselines: CaseBaselines) -> str:
    """Return the name of what a case is compared with: an environment, or `PUBLISHED`."""
    return baselines.baseline.environment.name if baselines.baseline else PUBLISHED


def _judge_prompts(
    metric: Metric, evidence: BaselineComparison, look: Look, decisions: int
) -> Verdict:
    """Judge acceptance over all prompts, and over those whose answers kept their length.

    A prompt whose answer became much longer or shorter must not decide the verdict alone.
    """
    verdict = _judge_ratio(metric, evidence, look, decisions)
    changes = evidence.length_changes
    if evidence.measured is None or not changes:
        return verdict
    changed_ids = {change.prompt_id for change in changes}
    unchanged_prompts = evidence.without(changed_ids)
    verdict_on_unchanged = _judge_ratio(metric, unchanged_prompts, look, decisions)
    prompts = len(evidence.measured.prompt_ids)
    return weigh_changed_lengths(verdict, verdict_on_unchanged, changes, prompts)


def _judge_ratio(
    metric: Metric, evidence: BaselineComparison, look: Look, decisions: int
) -> Verdict:
    """Judge an acceptance metric over all prompts that run and baseline share."""
    case = evidence.measurement.case
    baselines = evidence.baselines
    reference = Reference(None, against_of(baselines), tolerance_of(metric, case, baselines))
    change = evidence.ratio_change(metric)

    # Without an interval nothing can be proven tonight.
    if isinstance(change, Reason):
        return Verdict(
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

    # Judge the change of tonight.
    reference = dataclasses.replace(reference, expected=change.expected)
    level = LEVELS[look]
    loss_level = level / decisions
    outcome, comparison = judge_effect(metric, change.effect, reference, level, loss_level)
    verdict = Verdict(
        case_id=case.id,
        metric=metric.name,
        outcome=outcome,
        value=change.value,
        comparison=comparison,
    )

    # Explain the outcome.
    if outcome is Outcome.INCONCLUSIVE:
        verdict = _undecided_acceptance(verdict, evidence)
    elif other_counting := _describe_other_counting(evidence):
        verdict = dataclasses.replace(verdict, reason=other_counting)
    elif outcome is Outcome.REGRESSED:
        recorded = load_acceptance(baselines.baseline.acceptance) if baselines.baseline else None
        measured = evidence.measurement.acceptance
        if measured is not None and recorded is not None and evidence.measured is not None:
            shared_ids = set(evidence.measured.prompt_ids)
            reason = _where_lost(metric, measured.only(shared_ids), recorded.only(shared_ids))
            verdict = dataclasses.replace(verdict, reason=reason)

    return verdict


def _undecided_acceptance(verdict: Verdict, evidence: BaselineComparison) -> Verdict:
    """Add to an undecided verdict how many prompts would decide it."""
    comparison = verdict.comparison
    prompts = len(evidence.measured.prompt_ids) if evidence.measured is not None else 0
    ratio = (comparison.mde_frac or 0.0) / (comparison.tolerance_frac or 1.0)

    # The error falls with the square root of the number of prompts. The advice is to double them
    # at least, because a smaller change would hardly help.
    needed_prompts = max(2.0, ratio**2) * prompts
    remedy = f"raise {evidence.baselines.prompts_setting} to about {needed_prompts:.0f}"
    reason = undecided_reason(comparison, counted(prompts, "prompt"), remedy)

    # Further launches replay the same prompts, so no number of them would decide.
    return dataclasses.replace(verdict, reason=reason, needed_launches=0, needed_nights=0)


def _judge_by_nights(metric: Metric, verdict: Verdict, nights: AcceptanceNights | None) -> Verdict:
    """Judge a metric that tonight decided, or left undecided, by its nights."""
    if nights is None:
        return verdict
    verdict = dataclasses.replace(verdict, nights=nights.nights)
    if nights.lasting is not None:
        since = nights.lasting.since
        if verdict.outcome is Outcome.REGRESSED:
            return dataclasses.replace(verdict, since=since)
        reason = lasting_reason(metric, nights.lasting)
        return dataclasses.replace(
            verdict, outcome=Outcome.REGRESSED, reason=reason, since=since, needed_nights=None
        )

    if verdict.outcome is not Outcome.INCONCLUSIVE or verdict.reason is None:
        return verdict
    reason = with_outlook(
        verdict.reason, verdict.reason.remedy, nights.needed_nights, nights.nights + 1
    )
    return dataclasses.replace(verdict, reason=reason, needed_nights=nights.needed_nights)


def with_outlook(reason: Reason, effort: str, needed_nights: int, night: int) -> Reason:
    """Add to the reason of an undecided metric how many nights would decide it.

    Args:
        effort: what else would decide it.
        needed_nights: how many nights would; 0 if no number would.
        night: the number of tonight.
    """
    remedy = reason.remedy
    if needed_nights > night:
        clause = f"about {needed_nights} nights would tell, and this run is the {_ordinal(night)}"
    elif needed_nights:
        # A change close to the tolerance stays undecided, however many nights there are.
        clause = (
            f"about {needed_nights} nights would tell if nothing had changed, and {night} nights"
            " leave it undecided"
        )
    else:
        clause = f"not even {MOST_NIGHTS} nights would tell"
        remedy = f"raise its tolerance in the tier, add it to 'shown' there, or {effort}"

    return dataclasses.replace(reason, text=f"{reason.text}; {clause}", remedy=remedy)


def _ordinal(number: int) -> str:
    """Return a number in an order, such as `1st` and `12th`."""
    suffixes = {1: "st", 2: "nd", 3: "rd"}
    is_teen = number % 100 // 10 == 1
    return f"{number}{'th' if is_teen else suffixes.get(number % 10, 'th')}"


def lasting_reason(metric: Metric, lasting: LastingLoss) -> Reason:
    """Describe a lasting loss: `-6.1% since the night of 2026-11-21, over 4 nights`."""
    return Reason.of(
        "LASTING",
        change_frac=metric.sign * to_frac(metric, lasting.change_frac),
        since=date_of(lasting.since),
        nights=counted(lasting.nights, "night"),
        changes=changes_on_that_night(lasting.software),
    )


def changes_on_that_night(software: tuple[Software, Software]) -> str:
    """Return a clause on what changed on the first night of a loss; empty if nothing did.

    Args:
        software: the software before that night and on it.
    """
    changes = describe_changes(*software)
    return f"; {changes} on that night" if changes else ""


def date_of(run: str) -> str:
    """Return the date of a run, `2026-11-21`; its whole name if it doesn't begin with a date."""
    digits = run[:_DATE_DIGITS]
    if len(digits) < _DATE_DIGITS or not digits.isdigit():
        return run
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"


def _describe_other_counting(evidence: BaselineComparison) -> Reason | None:
    """Say how run and baseline count differently, and what is compared in spite of that.

    Returns:
        None if they count alike.
    """
    if evidence.counting_difference is None:
        return None
    runner = evidence.measurement.facts.model_runner
    version = evidence.measurement.engine_version
    baseline = evidence.baselines.baseline
    recorded_runner = baseline.provenance.facts.model_runner if baseline else ""
    recorded_version = baseline.provenance.engine_version if baseline else ""
    changes = ""
    if runner != recorded_runner:
        changes = f"model runner {recorded_runner or 'unknown'} -> {runner or 'unknown'}: "
    elif version != recorded_version:
        changes = f"engine {recorded_version} -> {version}: "

    difference = evidence.counting_difference.description
    return Reason.of("counted_differently", versions=changes, difference=difference)


def undecided_reason(comparison: Comparison, amount: str, remedy: str = "") -> Reason:
    """Say how small a loss tonight can detect, next to the tolerance.

    Args:
        comparison: the comparison of tonight.
        amount: how much was measured tonight, such as `2 launches`.
        remedy: what would decide it.
    """
    return Reason.of(
        "undecided",
        detects_frac=comparison.mde_frac,
        amount=amount,
        tolerance_frac=comparison.tolerance_frac,
        remedy=remedy,
    )


def _where_lost(
    metric: Metric, measured: AcceptanceRecord, recorded: AcceptanceRecord
) -> Reason | None:
    """Say where acceptance was lost: `by category: coding 41.2% -> 18.5%, math 37% -> 37%`.

    The verdict on the acceptance length also says which draft became worse.
    """
    parts = []
    by_category = []
    for category, record in measured.by_category.items():
        old_value = acceptance_value(metric, recorded.by_category.get(category))
        new_value = acceptance_value(metric, record)
        if old_value is not None and new_value is not None:
            # The acceptance length is compared without the token that isn't a draft.
            old_text = metric.render_ratio(old_value - metric.origin, digits=3)
            new_text = metric.render_ratio(new_value - metric.origin, digits=3)
            by_category.append(f"{category} {old_text} -> {new_text}")

    if by_category:
        subject = "accepted drafts by category" if metric.origin else "by category"
        parts.append(f"{subject}: {', '.join(by_category)}")
    if not metric.follows:
        # A draft is accepted only after all drafts before it, so a worse draft lowers the marginal
        # acceptance of all later positions too. Conditional acceptance falls only at the position
        # of the draft that became worse.
        old_fracs = recorded.total.conditional_acceptance
        new_fracs = measured.total.conditional_acceptance
        by_draft = []
        # A position that no step has reached has no share, so one of the two may be shorter.
        for number, (old_frac, new_frac) in enumerate(zip(old_fracs, new_fracs, strict=False), 1):
            by_draft.append(f"no. {number} {old_frac:.1%} -> {new_frac:.1%}")
        if by_draft:
            listed = ", ".join(by_draft)
            parts.append(f"by draft, where those before it were accepted: {listed}")

    if not parts:
        return None
    return Reason.of("where_lost", places="; ".join(parts))


def unreadable_baseline(metric: Metric, launch: Measurement, error: BaselineError) -> Verdict:
    """Return the verdict on a metric whose baseline can't be read."""
    invalidity = launch.invalid.get(metric.family)
    outcome = Outcome.NO_BASELINE
    reason = Reason(text=str(error))
    lacks: Lack | None = Lack.FILE
    if invalidity is not None:
        outcome = Outcome.INVALID
        reason = invalidity
        lacks = None

    return Verdict(
        case_id=launch.case.id,
        metric=metric.name,
        outcome=outcome,
        value=launch.values.get(metric.name),
        reason=reason,
        lacks=lacks,
    )
