"""Decide which metrics and checks of which cases a run judges, and what it leaves out."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from specreg.core.errors import BaselineError
from specreg.core.families import Family
from specreg.correctness.checks import CorrectnessCheck, checks_of
from specreg.matrix.case import Case, Tier
from specreg.matrix.models import why_no_models
from specreg.measurement.metrics import BENCHMARK_METRIC, METRICS, Metric, metrics_of
from specreg.runs.goals import CaseLaunch
from specreg.suite.configure import why_unfit
from specreg.suite.context import RunContext

Subject: TypeAlias = Metric | CorrectnessCheck
"""The metric that a test of the suite judges, or the check that it makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the collected tests need of each case. The mappings are by case id.

    Attributes:
        names: the metrics and checks that are judged. A case that isn't in it isn't measured.
        skipped: why a case is skipped, for example what it needs and this machine lacks.
        unfetched: why the models of a case can't be fetched, which fails its tests.
        unpowered: why the power of a case can't be measured, although a test would judge it.
        no_power: all reasons of `unpowered` in one text; empty if there are none.
        is_recording: True if baselines are recorded, and nothing is judged.
        covers_tier: True if all metrics of all cases of the tier that can be judged on this machine
            are judged, on all prompts.
        shard_cases: the number of cases in all shards of the run; 0 if the run isn't sharded.
    """

    names: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    unfetched: Mapping[str, str] = field(default_factory=dict)
    unpowered: Mapping[str, str] = field(default_factory=dict)
    no_power: str = ""
    is_recording: bool = False
    covers_tier: bool = False
    shard_cases: int = 0

    @property
    def run_cases(self) -> int:
        """The number of cases that the run judges in all its shards, at least 1."""
        return max(len(self.names), self.shard_cases, 1)

    @property
    def measured_ids(self) -> AbstractSet[str]:
        """The cases that the run will measure."""
        return self.names.keys() - self.unfetched.keys()

    def cases_of(self, tier: Tier) -> list[Case]:
        """Return the selected cases of a tier, in its order."""
        return [case for case in tier.cases if case.id in self.names]

    def metrics_of(self, case: Case) -> tuple[Metric, ...]:
        """Return the metrics of a case that the run judges."""
        names = self.names.get(case.id, frozenset())
        # In the order of the table, because `names` is a set without order.
        named = [metric for metric in METRICS.values() if metric.name in names]
        return tuple(metric for metric in named if metric.is_judged(case))

    def checks_of(self, case: Case) -> tuple[CorrectnessCheck, ...]:
        """Return the correctness checks of a case, which are made on its first launch."""
        names = self.names.get(case.id, frozenset())
        return tuple(check for check in checks_of(case, with_torch=True) if check.name in names)

    def needs_speed(self, case: Case) -> bool:
        """Return whether the run has to measure the speed of a case."""
        # A case whose speeds are shown but never judged is timed whenever it is measured.
        speeds = [
            metric for metric in METRICS.values() if metric.by_launch and metric.applies_to(case)
        ]
        are_only_shown = bool(speeds) and not any(metric.is_judged(case) for metric in speeds)
        is_recorded = self.is_recording and case.judging.speed
        is_benchmark = BENCHMARK_METRIC.name in self.names.get(case.id, frozenset())
        is_judged = any(metric.by_launch for metric in self.metrics_of(case))
        return are_only_shown or is_recorded or is_benchmark or is_judged

    def needs_power(self, case: Case) -> bool:
        """Return whether the run has to measure the power that a case draws."""
        if self.is_recording:
            return True
        return any(metric.family is Family.POWER for metric in self.metrics_of(case))

    def why_skipped(self, case: Case, subject: Subject) -> str:
        """Return why a test is skipped; empty if it runs."""
        if case.id in self.skipped:
            return self.skipped[case.id]
        if _is_power(subject):
            return self.unpowered.get(case.id, "")
        return ""


def subjects_of(
    marker: str, name: str, case_launch: CaseLaunch, *, with_torch: bool
) -> Sequence[Subject]:
    """Return the metrics or checks of a case that a test judges.

    Args:
        marker: the pytest marker of the test, `"family"` or `"correctness"`.
        name: the family or the check that the marker names.
        case_launch: the case on one launch of its server.
        with_torch: True to make checks that need torch.
    """
    case = case_launch.case
    is_first_launch = case_launch.server.number == 1
    if name == BENCHMARK_METRIC.name:
        # pytest-benchmark gets each case once, if the run can measure its speed.
        is_judged = any(metric.is_judged(case) for metric in METRICS.values())
        if is_first_launch and case.judging.speed and is_judged:
            return [BENCHMARK_METRIC]
        return []

    if marker == "family":
        return metrics_of(case, Family(name))
    if not is_first_launch:
        return []
    return [check for check in checks_of(case, with_torch=with_torch) if check.name == name]


def select(
    tests: Sequence[tuple[Case, Subject]], context: RunContext, *, asks_hub: bool = True
) -> Selection:
    """Return what the collected tests need, without the cases that are skipped.

    Unless `context.skips_unfetched`, cases whose models can't be fetched stay, so that their tests
    fail.

    Args:
        tests: the case of each test, and the metric or check that the test judges.
        asks_hub: True to ask the hub whether it has the models of the cases.
    """
    # Find the cases that can't be measured here.
    cases = {case.id: case for case, _ in tests}
    unfetched = _unfetched(cases, context) if asks_hub else {}
    skipped = dict(why_unfit(context))

    # If the tier is required, a model that can't be fetched is an error, not a reason to skip. But
    # with HF_HUB_OFFLINE its case is always skipped.
    if context.skips_unfetched:
        skipped = {**unfetched, **skipped}
        unfetched = {}
    skipped = {case_id: reason for case_id, reason in skipped.items() if case_id in cases}

    # Collect the metrics and checks of the others.
    unpowered: dict[str, str] = {}
    names: dict[str, set[str]] = {}
    for case, subject in tests:
        if case.id in skipped:
            continue
        if _is_power(subject):
            why_not = context.provision.why_no_power(case.server)
            if why_not:
                unpowered[case.id] = why_not
                continue
        names.setdefault(case.id, set()).add(subject.name)

    return Selection(
        names=names,
        skipped=skipped,
        unfetched=unfetched,
        unpowered=unpowered,
        no_power="; ".join(dict.fromkeys(unpowered.values())),
        is_recording=context.is_recording,
        covers_tier=covers_tier(names, context),
    )


def _is_power(subject: Subject) -> bool:
    return isinstance(subject, Metric) and subject.family is Family.POWER


def _unfetched(cases: Mapping[str, Case], context: RunContext) -> Mapping[str, str]:
    """Return why the models of cases can't be fetched, by case id.

    Cases whose models can be fetched aren't in it.
    """
    if context.provision.attached is not None:
        # A server that is attached to has loaded its models already.
        return {}
    reasons = {case_id: why_no_models(case.server) for case_id, case in cases.items()}
    return {case_id: reason for case_id, reason in reasons.items() if reason}


def covers_tier(names: Mapping[str, AbstractSet[str]], context: RunContext) -> bool:
    """Return whether a run judges all metrics that can be judged on this machine in the tier.

    A run that changed the number of prompts of a case doesn't cover the tier.

    Args:
        names: the metrics and checks that the run judges, by case id.
    """
    for case in context.tier.cases:
        metrics = [metric for metric in METRICS.values() if metric.is_judged(case)]
        if context.provision.why_no_power(case.server):
            metrics = [metric for metric in metrics if metric.family is not Family.POWER]
        possible_names = {metric.name for metric in metrics}
        judged_names = names.get(case.id, frozenset())
        has_other_prompts = case.request.matrix_prompts is not None
        if has_other_prompts or not judged_names >= possible_names:
            return False
    return True


def least_time_s(case: Case, selection: Selection, context: RunContext) -> float:
    """Return how long the servers of a case must be under load at least, in seconds.

    The time is 0 unless a speed is recorded, or is compared with a recorded speed of this machine.

    Raises:
        SpecregError: the models or the prompts of the case can't be read.
    """
    if not selection.needs_speed(case):
        return 0.0
    if selection.is_recording:
        return case.judging.least_s
    try:
        exact = context.baselines_of(case).exact
    except BaselineError:
        # No speed is compared with a baseline that can't be read.
        return 0.0

    if exact is None or not exact.launches:
        return 0.0
    return case.judging.least_s
