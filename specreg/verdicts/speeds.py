"""Judge the speeds and the power of a run by the nights of its machine.

All cases of a run show together what the machine does tonight, so nothing here is judged before
everything has been measured.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from specreg.baselines.comparison import BaselineComparison, compare
from specreg.core.commands import is_attached, record_command
from specreg.core.counted import counted
from specreg.core.errors import BaselineError
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.engines.methods import METHODS
from specreg.judging.nights import CPU, GPU, PASS_LEVEL
from specreg.judging.rules import Evidence, NightFinding
from specreg.judging.samples import Figure, Sample, SoftwareItems
from specreg.judging.verdicts import NightJudge, SpeedVerdict
from specreg.matrix.case import Case
from specreg.matrix.models import model_sha256
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric
from specreg.stats.intervals import Effect
from specreg.verdicts.acceptance_nights import LastingLoss
from specreg.verdicts.detection import mde_frac, speed_loss, to_frac
from specreg.verdicts.history import RUN_TIME, began_s, night_control_values
from specreg.verdicts.judge import (
    Obstacle,
    against_of,
    changes_on_that_night,
    date_of,
    find_obstacle,
    lasting_reason,
    not_compared,
    undecided_reason,
    unreadable_baseline,
    with_outlook,
)
from specreg.verdicts.night_samples import sample_of, samples_of
from specreg.verdicts.references import References
from specreg.verdicts.software import software_of_launch, whole_software
from specreg.verdicts.verdict import Cause, Comparison, Lack, Outcome, Verdict, with_remark

_OTHER_CARD_FRAC = 0.2
"""How far the energy and power of two cards of one kind may be apart. Each sensor may be 5 % off,
and one H200 took 15 % more energy per token than another H200 with the same server."""
_FEWEST_LAUNCHES = 2
"""The fewest launches that prove a loss in one night."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A speed of a case, or its power, that can be compared with its baseline.

    Attributes:
        comparison: its launches and its baselines.
        failure: why a further launch has no measurement; None if none failed.
    """

    metric: Metric
    comparison: BaselineComparison
    failure: Reason | None = None

    @property
    def case(self) -> Case:
        """The case."""
        return self.comparison.measurement.case

    @property
    def key(self) -> tuple[str, str]:
        """The case's id and the metric's name."""
        return self.case.id, self.metric.name

    @property
    def tolerance_frac(self) -> float:
        """The tolerated loss, 0..1."""
        own_frac = self.metric.allowed_frac(self.case)
        if self.metric.family is Family.POWER and self.comparison.card_difference:
            return max(own_frac, _OTHER_CARD_FRAC)
        return own_frac


def compare_speed(
    metric: Metric, launches: Sequence[Measurement], references: References
) -> BaselineComparison | Verdict:
    """Return the launches of a case beside its baselines, or the verdict if they don't compare.

    An invalid earlier launch is left out. An invalid last one makes the metric INVALID.

    Args:
        metric: the speed.
        launches: all launches of the case in order, at least one.
        references: what they are compared with.
    """
    earlier = [launch for launch in launches[:-1] if metric.family not in launch.invalid]
    try:
        comparison = compare((*earlier, launches[-1]), references.baselines_of(launches[-1].case))
    except BaselineError as error:
        return unreadable_baseline(metric, launches[-1], error)

    obstacle = find_obstacle(metric, comparison)
    if obstacle is not None:
        return not_compared(metric, comparison, obstacle)
    return comparison


class SpeedJudge:
    """Judges the speeds of a run. The nights before it are gone through once.

    Args:
        speeds: what the run has measured. Later calls may have further launches of these cases.
        references: what it is compared with.
    """

    def __init__(self, speeds: Sequence[Speed], references: References) -> None:
        # A run that records, or that measures an attached server, has no nights but the baselines.
        own = {
            speed.case.id: speed.comparison.baselines.exact
            for speed in speeds
            if speed.comparison.baselines.exact is not None
        }
        references = dataclasses.replace(references, baselines={**references.baselines, **own})
        self._references = references
        self._tonight_s = began_s(references.run)
        self._tolerances = {
            speed.key: speed_loss(speed.metric, speed.tolerance_frac) for speed in speeds
        }
        kinds = {baseline.environment.kind for baseline in references.baselines.values()}
        self._by_machine = {
            machine: NightJudge(
                _earlier_samples(references, machine, self._tonight_s, speeds),
                samples,
                self._tolerance_of,
                GPU if "gpu" in kinds else CPU,
            )
            for machine, samples in self._tonight(speeds).items()
        }

    def _tolerance_of(self, figure: Figure) -> float:
        key = (figure.case, figure.metric)
        if key in self._tolerances:
            return self._tolerances[key]
        metric = METRICS[figure.metric]
        return speed_loss(metric, metric.tolerance_frac)

    def wanted(self, speeds: Sequence[Speed]) -> list[Case]:
        """Return the cases that look worse tonight, so that a further launch would help.

        A case with a proven loss is red already, and each launch may take minutes.
        """
        wanted_ids = {
            figure.case
            for machine, samples in self._tonight(speeds).items()
            for figure in self._by_machine[machine].looks_lost(samples)
        }
        wanted_ids |= {speed.case.id for speed in speeds if _stands_still_once(speed)}
        wanted_ids -= {speed.case.id for speed in speeds if speed.failure is not None}
        wanted_ids -= {
            verdict.case_id
            for verdict in self.judge(speeds)
            if verdict.outcome is Outcome.REGRESSED
        }
        cases = {speed.case.id: speed.case for speed in speeds}
        return [case for case_id, case in cases.items() if case_id in wanted_ids]

    def judge(self, speeds: Sequence[Speed]) -> list[Verdict]:
        """Return the verdict on each speed."""
        by_key = {
            (by_nights.figure.case, by_nights.figure.metric): by_nights
            for machine, samples in self._tonight(speeds).items()
            for by_nights in self._by_machine[machine].judge(samples)
        }
        return [self._verdict(speed, by_key.get(speed.key)) for speed in speeds]

    def _tonight(self, speeds: Sequence[Speed]) -> Mapping[str, list[Sample]]:
        """Return what tonight measured, by machine."""
        by_machine: dict[str, list[Sample]] = {}
        for speed in speeds:
            launches = speed.comparison.launches
            sample = sample_of(
                speed.metric,
                speed.case.id,
                speed.case.server.engine,
                began_s=self._tonight_s,
                values=speed.comparison.launch_values(speed.metric),
                control_values=night_control_values(speed.metric, launches),
            )
            sample = dataclasses.replace(sample, software=self._software(launches[-1]))
            # A speed of 0 has no logarithm.
            if sample.logs:
                machine = self._references.machine_of(speed.case.id)
                by_machine.setdefault(machine, []).append(sample)

        return by_machine

    def _software(self, launch: Measurement) -> SoftwareItems:
        further = software_of_launch(launch, self._references.driver_version)
        draft_sha256 = model_sha256(launch.draft) if launch.draft else ""
        return tuple(whole_software(launch.engine_version, draft_sha256, further).items())

    def _verdict(self, speed: Speed, by_nights: SpeedVerdict | None) -> Verdict:
        if by_nights is None:
            verdict = _judge_standstill(speed)
        elif by_nights.finding is NightFinding.NOT_RECORDED:
            reason = Reason.of("not_recorded_yet", metric=speed.metric.name, source="nights")
            obstacle = Obstacle(Outcome.NOT_COMPARABLE, reason, Lack.BASELINE)
            return not_compared(speed.metric, speed.comparison, obstacle)
        else:
            verdict = _render(speed, by_nights)

        if speed.failure is not None and verdict.outcome is Outcome.INCONCLUSIVE:
            reason = Reason.of(
                "further_launch_failed", outcome=verdict.outcome, failure=speed.failure
            )
            return dataclasses.replace(verdict, outcome=Outcome.INVALID, reason=reason)

        return soften(verdict, self._references)


def soften(verdict: Verdict, references: References) -> Verdict:
    """Mark a verdict whose test passes even if it is undecided.

    The user has chosen that for the metric, or some number of nights would decide the verdict.
    """
    softened = verdict.metric in references.softened
    if references.holds_by_nights and verdict.outcome is Outcome.INCONCLUSIVE:
        softened = softened or verdict.needed_nights != 0
    return dataclasses.replace(verdict, softened=softened)


def _earlier_samples(
    references: References, machine: str, tonight_s: float, speeds: Iterable[Speed]
) -> list[Sample]:
    """Return what the nights before tonight measured on a machine.

    A level holds for all machines of its kind, so the night that recorded it is a night of each. A
    machine that was never seen before is judged by the nights of all.
    """
    controls = {speed.case.id: speed.comparison.baselines.control for speed in speeds}
    samples = []
    for case_id, baseline in references.baselines.items():
        samples += samples_of(
            case_id,
            baseline.case.engine,
            baseline,
            references.history.of(case_id),
            controls.get(case_id),
        )

    # A run of the past may be judged by a baseline that was recorded since then.
    samples = [
        dataclasses.replace(sample, began_s=-math.inf)
        if sample.starts_level and sample.began_s >= tonight_s
        else sample
        for sample in samples
        if sample.starts_level or sample.began_s < tonight_s
    ]
    if machine and any(sample.machine == machine for sample in samples):
        return [
            sample for sample in samples if sample.starts_level or sample.machine in {machine, ""}
        ]

    return samples


def _render(speed: Speed, by_nights: SpeedVerdict) -> Verdict:
    """Return the verdict on a speed that the nights have judged.

    The change that is shown follows from the two values beside it: the mean of tonight's launches,
    and the level of the nights with what all cases have in common tonight.
    """
    metric = speed.metric
    comparison = speed.comparison
    evidence = by_nights.evidence
    value = geometric_mean(comparison.launch_values(metric))
    effect = Effect(
        estimate_frac=evidence.own, error_frac=evidence.error_frac, freedom=evidence.freedom
    )
    p_worse = effect.p_worse
    if metric.two_sided:
        p_worse = 2 * min(p_worse, 1 - p_worse)
    outcome, reason = _outcome_and_reason(metric, comparison, by_nights)
    verdict = Verdict(
        case_id=comparison.measurement.case.id,
        metric=metric.name,
        outcome=outcome,
        value=value,
        comparison=Comparison(
            expected=value * math.exp(-metric.sign * evidence.own),
            against=against_of(comparison.baselines),
            tolerance_frac=speed.tolerance_frac,
            two_sided=metric.two_sided,
            change_frac=to_frac(metric, evidence.own),
            low_frac=to_frac(metric, evidence.lowest),
            high_frac=to_frac(metric, evidence.highest),
            p_worse=p_worse,
            mde_frac=mde_frac(metric, effect, PASS_LEVEL),
            common_frac=to_frac(metric, evidence.shared),
        ),
        cause=_cause(metric, comparison, effect),
        reason=reason,
        launches=len(comparison.launches),
        nights=evidence.nights,
        since=_since(by_nights),
    )
    is_other_card = metric.family is Family.POWER and comparison.card_difference
    if is_other_card and outcome is not Outcome.PASS:
        reason = Reason.of(
            "other_card", difference=comparison.card_difference, allowed_frac=_OTHER_CARD_FRAC
        )
        return dataclasses.replace(verdict, outcome=Outcome.NOT_COMPARABLE, reason=reason)

    if outcome is Outcome.INCONCLUSIVE:
        verdict = _undecided(verdict, evidence)
    if outcome in {Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.IMPROVED}:
        verdict = _mention_common_change(metric, verdict)
    return verdict


def _outcome_and_reason(
    metric: Metric, comparison: BaselineComparison, by_nights: SpeedVerdict
) -> tuple[Outcome, Reason | None]:
    """Return the outcome of what the nights say, and why."""
    evidence = by_nights.evidence
    match by_nights.finding:
        case NightFinding.LOST:
            return Outcome.REGRESSED, _reason_of_loss(metric, by_nights)
        case NightFinding.ENGINE_LOST:
            slower = _describe_change(metric, evidence.shared)
            reason = Reason.of(
                "ENGINE_ALONE_SLOWER",
                engine=by_nights.figure.engine,
                change=f"{slower}{_duration(by_nights)}",
            )
            return Outcome.REGRESSED, reason
        case NightFinding.MACHINE_SLOW:
            slower = _describe_change(metric, evidence.shared)
            before, after = by_nights.software
            changes = changes_on_that_night((dict(before), dict(after)))
            finding = f"all that ran on the machine {slower}{_duration(by_nights)}{changes}"
            return Outcome.INVALID, Reason.of("MACHINE_MOVED", finding=finding)
        case NightFinding.KEPT:
            return Outcome.PASS, None
        case NightFinding.GAINED:
            options = comparison.baselines.options
            remedy = ""
            if not is_attached(options):
                command = record_command((comparison.measurement.case.id,), options)
                remedy = f"record it with\n  {command}"
            duration = _duration(by_nights)
            reason = Reason.of("gain_not_recorded", duration=duration, remedy=remedy)
            return Outcome.IMPROVED, reason
        case _:
            return Outcome.INCONCLUSIVE, None


def _reason_of_loss(metric: Metric, by_nights: SpeedVerdict) -> Reason | None:
    """Say since when a loss lasts; None if tonight alone proves it."""
    if by_nights.lasted <= 1:
        return None
    before, after = by_nights.software
    lasting = LastingLoss(
        change_frac=by_nights.evidence.size,
        since=_since(by_nights),
        nights=by_nights.lasted,
        software=(dict(before), dict(after)),
    )
    return lasting_reason(metric, lasting)


def _since(by_nights: SpeedVerdict) -> str:
    """Return the run of the first night of a loss, gain or slow machine; empty for tonight."""
    if by_nights.since_s is None or by_nights.lasted <= 1:
        return ""
    return datetime.fromtimestamp(by_nights.since_s, UTC).strftime(RUN_TIME)


def _duration(by_nights: SpeedVerdict) -> str:
    """Return `, since the night of 2026-11-21, over 4 nights`; empty if it is tonight's."""
    since = _since(by_nights)
    if not since:
        return ""
    return f" since the night of {date_of(since)}, over {counted(by_nights.lasted, 'night')},"


def _describe_change(metric: Metric, change: float) -> str:
    """Return a change that several figures share, as a clause: `changed by -7.1%`."""
    # A time that became better is smaller, so its change is shown with the opposite sign.
    return f"changed by {metric.sign * to_frac(metric, change):+.1%}"


def _undecided(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Add to an undecided verdict how many nights would decide it."""
    reason = with_outlook(
        undecided_reason(verdict.comparison, counted(verdict.launches, "launch")),
        "measure on a quieter machine",
        evidence.needed_nights,
        evidence.nights + 1,
    )
    # Further launches don't make a night, so no number of them would decide.
    return dataclasses.replace(
        verdict, reason=reason, needed_launches=0, needed_nights=evidence.needed_nights
    )


def _mention_common_change(metric: Metric, verdict: Verdict) -> Verdict:
    """Mention what a figure shares with others, if it is large enough to matter."""
    common_frac = verdict.comparison.common_frac or 0.0
    tolerance_frac = verdict.comparison.tolerance_frac or 0.0
    if abs(common_frac) < tolerance_frac / 2:
        return verdict
    shown = f"{metric.sign * common_frac:+.1%}"
    return with_remark(verdict, Reason.of("common_change", change=shown))


def _stands_still_once(speed: Speed) -> bool:
    """Return whether a speed is 0 on its only launch, which another launch has to confirm."""
    values = speed.comparison.launch_values(speed.metric)
    return len(values) < _FEWEST_LAUNCHES and max(values) <= 0


def _judge_standstill(speed: Speed) -> Verdict:
    """Judge a speed that is 0 in a launch, such as the goodput when no request met its limits.

    Such a value has no logarithm, so there is no interval. If two launches have 0 and no launch has
    more, the speed is REGRESSED, or IMPROVED if less is better.
    """
    comparison = speed.comparison
    values = comparison.launch_values(speed.metric)
    exact = comparison.baselines.exact
    recorded = exact.launch_values(speed.metric) if exact else ()
    outcome = Outcome.INCONCLUSIVE
    reason: Reason | None = Reason.of("zero_once")
    if max(values) <= 0:
        reason = Reason.of("zero_unconfirmed")
        if len(values) >= _FEWEST_LAUNCHES:
            outcome = Outcome.REGRESSED if speed.metric.sign > 0 else Outcome.IMPROVED
            reason = None

    change_frac = -1.0 * speed.metric.sign
    return Verdict(
        case_id=speed.case.id,
        metric=speed.metric.name,
        outcome=outcome,
        value=comparison.measurement.values.get(speed.metric.name),
        comparison=Comparison(
            expected=geometric_mean(recorded),
            against=against_of(comparison.baselines),
            tolerance_frac=speed.tolerance_frac,
            change_frac=change_frac,
            low_frac=change_frac,
            high_frac=change_frac,
            p_worse=0.0 if speed.metric.sign > 0 else 1.0,
        ),
        reason=reason,
        launches=len(comparison.launches),
        needed_nights=0,
    )


def _cause(metric: Metric, evidence: BaselineComparison, effect: Effect) -> Cause | None:
    """Split the change of an output speed into the parts of acceptance and of the step time.

    Output speed is tokens per step divided by the time of a step, so
    Δ log(output speed) = Δ log(tokens per step) - Δ log(step time).

    Returns:
        None if the metric isn't an output speed, if there is no acceptance to compare, or if some
        steps drafted nothing, because AL leaves those steps out.
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


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of values above 0."""
    # The geometric mean of a single value would differ from it by rounding.
    if len(values) == 1:
        return values[0]
    return statistics.geometric_mean(values)
