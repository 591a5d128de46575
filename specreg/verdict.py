"""Judging: a measurement and what is known of its case in, one verdict per metric out."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from specreg.acceptance.record import AcceptanceRecord
from specreg.baseline import Baseline, CaseSettings, load_acceptance
from specreg.identity import Environment
from specreg.measurement import Measurement
from specreg.metrics import Direction, Metric, acceptance_value

_SPREADS = 3.0
"""How many standard deviations of a launch a speed may be off before it is called changed."""


class Outcome(StrEnum):
    """What a verdict says."""

    PASS = "PASS"  # noqa: S105 - a word, not a password
    IMPROVED = "IMPROVED"
    REGRESSED = "REGRESSED"
    INVALID = "INVALID"
    NO_BASELINE = "NO_BASELINE"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    MEASURED = "MEASURED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be thought of one metric of one case.

    Attributes:
        case_id, metric: whose.
        outcome: in a word; `reason`: in a sentence, empty where the figures say it all.
        value, expected: measured and baseline, None where there is none.
        change_frac: (value - expected) / (expected - origin), better is positive.
        tolerance_frac: what would still have been fine.
        against: the environment of the baseline, empty without one.
    """

    case_id: str
    metric: str
    outcome: Outcome
    reason: str = ""
    value: float | None = None
    expected: float | None = None
    change_frac: float | None = None
    tolerance_frac: float | None = None
    against: str = ""

    def __str__(self) -> str:
        parts = [f"{self.outcome}: {self.metric} of '{self.case_id}'"]
        if self.value is not None:
            parts.append(f"measured {self.value:.4g}")
        if self.change_frac is not None and self.tolerance_frac is not None:
            better = "better" if self.change_frac >= 0 else "worse"
            parts.append(f"baseline {self.expected:.4g}")
            parts.append(f"{abs(self.change_frac):.1%} {better}")
            parts.append(f"tolerance {self.tolerance_frac:.1%}")
        return "; ".join(filter(None, (", ".join(parts), self.reason)))

    @property
    def holds(self) -> bool:
        """Whether the test of this verdict passes."""
        return self.outcome in {Outcome.PASS, Outcome.IMPROVED, Outcome.MEASURED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a case before it is judged.

    Attributes:
        environment: where it was measured; `settings`: with what.
        exact: the baseline of this environment, None if there is none.
        nearest: one of another environment with the same settings, None if there is none.
        neighbours: all baselines of this environment; their launches tell its spread.
    """

    environment: Environment
    settings: CaseSettings
    exact: Baseline | None
    nearest: Baseline | None
    neighbours: tuple[Baseline, ...]


def judge(metric: Metric, measurement: Measurement, known: Known) -> Verdict:
    """The verdict on one metric of a measurement."""
    case_id = measurement.case.id
    value = measurement.values.get(metric.name)
    say = functools.partial(Verdict, case_id=case_id, metric=metric.name, value=value)
    if measurement.invalid is not None:
        return say(outcome=Outcome.INVALID, reason=measurement.invalid)
    if value is None:
        reason = "METRIC_ABSENT: it has no value, though the case should have one"
        return say(outcome=Outcome.INVALID, reason=reason)
    baseline = known.exact or known.nearest
    if baseline is None:
        reason = f"nothing recorded in '{known.environment.name}'; {record_hint(case_id)}"
        return say(outcome=Outcome.NO_BASELINE, reason=reason)
    differing = differing_settings(baseline.case, known.settings)
    if differing:
        reason = f"it was recorded with other settings: {differing}; {record_hint(case_id)}"
        return say(outcome=Outcome.NO_BASELINE, reason=reason)
    say = functools.partial(say, against=baseline.environment.name)
    if not metric.by_launch:
        return _judge_acceptance(metric, measurement, baseline, say, exact=bool(known.exact))
    if known.exact is None:
        reason = (
            f"nothing recorded in '{known.environment.name}', and speed doesn't carry over from"
            f" '{baseline.environment.name}'; {record_hint(case_id)}"
        )
        return say(outcome=Outcome.NOT_COMPARABLE, reason=reason)
    return _judge_speed(metric, measurement, baseline, say, known.neighbours)


def confirm(first: Verdict, second: Verdict) -> Verdict:
    """What a second measurement makes of a speed that looked worse in the first.

    Something else on the machine slows a measurement now and then; a regression is there twice.
    """
    looked = f"a first look had {first.value:.4g}"
    if second.outcome is Outcome.REGRESSED:
        return dataclasses.replace(second, reason=f"seen twice, {looked}")
    words = (second.reason, f"{looked}, which a second didn't confirm")
    return dataclasses.replace(second, reason="; ".join(filter(None, words)))


def better_frac(metric: Metric, value: float, expected: float) -> float:
    """The relative change, positive when better: ±(value - expected) / (expected - origin)."""
    base = expected - metric.origin
    # A baseline of nothing (no draft ever accepted) can only be kept or improved.
    relative = (value - expected) / base if base else float(value != expected)
    return metric.direction.value * relative


def expected_value(metric: Metric, baseline: Baseline) -> float | None:
    """What a baseline expects: of its counts, or the geometric mean over its launches."""
    if not metric.by_launch:
        return baseline.acceptance_value(metric)
    launches = baseline.launch_values(metric)
    return statistics.geometric_mean(launches) if launches else None


def record_hint(case_id: str) -> str:
    """What to type to record a case's baseline."""
    return f'record one with\n  pytest -k {case_id}- --update-baselines --reason "…"'


def differing_settings(recorded: CaseSettings, current: CaseSettings) -> str:
    """The settings that differ, as `name: recorded -> current`; empty when none does."""
    return ", ".join(
        f"{name}: {getattr(recorded, name)} -> {getattr(current, name)}"
        for name in recorded.__struct_fields__
        if getattr(recorded, name) != getattr(current, name)
    )


def launch_spread_frac(metric: Metric, baselines: Sequence[Baseline]) -> float | None:
    """The standard deviation from launch to launch, relative, pooled over baselines.

    sqrt(Σ (ln x - mean ln x)² / Σ (n - 1)) over the baselines with two launches or more; None
    where there is none. Logarithms, because a slow machine slows by a factor.
    """
    squares, freedom = 0.0, 0
    for baseline in baselines:
        logs = [math.log(value) for value in baseline.launch_values(metric) if value > 0]
        if len(logs) > 1:
            squares += statistics.variance(logs) * (len(logs) - 1)
            freedom += len(logs) - 1
    return math.sqrt(squares / freedom) if freedom else None


def _judge_acceptance(
    metric: Metric,
    measurement: Measurement,
    baseline: Baseline,
    say: Callable[..., Verdict],
    *,
    exact: bool,
) -> Verdict:
    ours, theirs = measurement.acceptance, baseline.acceptance
    expected = expected_value(metric, baseline)
    if ours is None or theirs is None or expected is None:
        reason = f"the baseline holds no {metric.name}; {record_hint(measurement.case.id)}"
        return say(outcome=Outcome.NO_BASELINE, reason=reason)
    tags = (ours.source, ours.view, ours.weighting)
    recorded_tags = (theirs.source, theirs.view, theirs.weighting)
    if tags != recorded_tags:
        reason = (
            f"measured as {', '.join(tags)}, recorded as {', '.join(recorded_tags)};"
            f" {record_hint(measurement.case.id)}"
        )
        return say(outcome=Outcome.NOT_COMPARABLE, reason=reason)
    tolerance_frac = _tolerance_frac(metric, measurement)
    if not exact:
        tolerance_frac = max(metric.portable_tolerance_frac or 0, tolerance_frac)
    verdict = _compare(metric, measurement, expected, tolerance_frac, say)
    if verdict.outcome is not Outcome.REGRESSED:
        return verdict
    reason = _by_category(metric, ours, load_acceptance(theirs))
    return dataclasses.replace(verdict, reason=reason)


def _by_category(metric: Metric, ours: AcceptanceRecord, theirs: AcceptanceRecord | None) -> str:
    """Where acceptance was lost: `by category: coding 3.12 -> 1.85, math 2.74 -> 2.73`."""
    recorded = theirs.by_category if theirs else {}
    parts = []
    for category, record in ours.by_category.items():
        old = acceptance_value(metric, recorded.get(category))
        new = acceptance_value(metric, record)
        if old is not None and new is not None:
            parts.append(f"{category} {old:.3g} -> {new:.3g}")
    return f"by category: {', '.join(parts)}" if parts else ""


def _judge_speed(
    metric: Metric,
    measurement: Measurement,
    baseline: Baseline,
    say: Callable[..., Verdict],
    neighbours: Sequence[Baseline],
) -> Verdict:
    launches = baseline.launch_values(metric)
    expected = expected_value(metric, baseline)
    spread_frac = launch_spread_frac(metric, neighbours)
    if expected is None or spread_frac is None:
        reason = f"its spread takes two launches or more; {record_hint(measurement.case.id)}"
        return say(outcome=Outcome.NO_BASELINE, reason=reason)
    noise = _SPREADS * spread_frac * math.sqrt(1 + 1 / len(launches))
    seen_frac = 1 - math.exp(-noise) if metric.direction is Direction.UP else math.exp(noise) - 1
    tolerance_frac = max(_tolerance_frac(metric, measurement), seen_frac)
    return _compare(metric, measurement, expected, tolerance_frac, say)


def _tolerance_frac(metric: Metric, measurement: Measurement) -> float:
    return dict(measurement.case.tolerances).get(metric.name, metric.tolerance_frac)


def _compare(
    metric: Metric,
    measurement: Measurement,
    expected: float,
    tolerance_frac: float,
    say: Callable[..., Verdict],
) -> Verdict:
    change_frac = better_frac(metric, measurement.values[metric.name], expected)
    if change_frac < -tolerance_frac:
        outcome = Outcome.REGRESSED
    else:
        outcome = Outcome.IMPROVED if change_frac > tolerance_frac else Outcome.PASS
    return say(
        outcome=outcome,
        expected=expected,
        change_frac=change_frac,
        tolerance_frac=tolerance_frac,
    )
