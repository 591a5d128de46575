"""Compare the launches of a case with the baselines that apply to it, or with another arm."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from specreg.acceptance.record import AcceptanceRecord, StepCounts
from specreg.baselines.answer_lengths import LengthChange, changed_lengths
from specreg.baselines.prompt_counts import CountsTable, answers_in_common, common_tables
from specreg.baselines.schema import (
    Baseline,
    Noise,
    PublishedFigure,
    RecordedDevice,
    load_acceptance,
)
from specreg.core.counted import counted
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.matrix.case import CaseSettings
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Metric, ratio_parts
from specreg.stats.intervals import (
    FEWEST_PROMPTS,
    Column,
    Effect,
    Spread,
    change_of_launches,
    change_of_ratio,
)
from specreg.stats.variance import NO_PRIOR, Variance, shrunk, variance_of
from specreg.telemetry.identity import Environment
from specreg.telemetry.power_record import DeviceRecord

_LEAST_CLOCK_FRAC = 0.95
"""If a GPU runs below this share of its recorded clock, heat or a power limit slows it down."""
_MAX_SHARE_OF_PROMPT = 0.99
"""The largest share of all steps that one prompt may have. Beyond it, the other prompts are too few
to estimate how prompts vary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseBaselines:
    """The baselines that apply to a case.

    Attributes:
        environment: the environment of this machine.
        settings: the settings of the case, which a baseline must share.
        exact: the baseline of this environment; None without one.
        nearest: a baseline of another environment with the same settings, looked up only without an
            exact one; None without one.
        published: figures from a paper or a blog, looked up only without an exact or a nearest
            baseline; None without them.
        control: the baseline of the same load without speculation; None without one.
        control_spreads: how the launches of the control vary, by metric.
        options: the options with which pytest runs the case, including its tier.
    """

    environment: Environment
    settings: CaseSettings
    exact: Baseline | None = None
    nearest: Baseline | None = None
    published: PublishedFigure | None = None
    control: Baseline | None = None
    control_spreads: Mapping[str, Spread] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    @property
    def baseline(self) -> Baseline | None:
        """The baseline to compare with: the one of this machine, or else of another machine."""
        return self.exact or self.nearest

    @property
    def prompts_setting(self) -> str:
        """Where the user sets the number of prompts, for advice to raise it."""
        if self.settings.num_prompts is not None:
            return "--num-prompts"
        return "'prompts' in the tier's file"


@dataclass(frozen=True, slots=True)
class CaseSpreads:
    """How the speeds of a case vary, as variances of logarithms by metric.

    Logarithms are used because a slow machine changes a speed by a factor.

    Attributes:
        launches: the variance from launch to launch, of metrics with two launches or more.
        runs: the additional variance from run to run, of metrics with a recorded noise.
    """

    launches: Mapping[str, Variance]
    runs: Mapping[str, Variance]

    @classmethod
    def of(
        cls,
        launches: Sequence[Mapping[str, float]],
        noise: Mapping[str, Noise] = MappingProxyType({}),
    ) -> "CaseSpreads":
        """Return how the launches and runs of a case vary.

        Args:
            launches: the speeds of each launch, by metric.
            noise: how identical runs varied, by metric.
        """
        launch_variances = {}
        names = itertools.chain.from_iterable(launches)
        for name in dict.fromkeys(names):
            # A speed of 0 has no logarithm. It is judged without an interval, by a rule of its own.
            values = [launch.get(name, 0) for launch in launches]
            logs = [math.log(value) for value in values if value > 0]
            variance = variance_of(logs)
            if variance is not None:
                launch_variances[name] = variance

        run_variances = {
            name: Variance(value=metric_noise.between_frac**2, freedom=metric_noise.runs - 1)
            for name, metric_noise in noise.items()
            if metric_noise.runs > 1
        }
        return cls(launch_variances, run_variances)


class CountingDifference(StrEnum):
    """How two sides that did the same count it differently."""

    STEPS = "steps"
    """One counts the steps that found a draft, the other all steps."""
    DRAFTS = "drafts"
    """Each answer has as many tokens and took as many steps, but not as many accepted drafts. For
    instance, one counts the accepted drafts that the end of an answer cut off, the other doesn't
    (vllm-project/vllm#56101). Or a drafter changed in drafts that come after the end."""

    @property
    def description(self) -> str:
        """What differs, as a clause, and what is compared in spite of that."""
        clauses = {
            CountingDifference.STEPS: (
                "one counts the steps that found a draft, the other all steps"
            ),
            CountingDifference.DRAFTS: (
                "the answers have equally many tokens and steps, but other numbers of accepted"
                " drafts: the engine counts drafts differently, or the answers ended before the"
                " drafts that differ"
            ),
        }
        return (
            f"{clauses[self]}; so the tokens per step of all steps are compared, which mean the"
            " same for both"
        )


class RatioChange(NamedTuple):
    """How an acceptance metric changed over the prompts that run and baseline share.

    Attributes:
        value: the value of the run.
        expected: the value of the baseline, or else of the publication.
        effect: the change between them.
    """

    value: float
    expected: float
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineComparison:
    """The launches of a case together with the baselines that apply to it.

    Speeds are compared over all launches. Acceptance is compared prompt by prompt, between the last
    launch and all launches of the baseline.

    Attributes:
        launches: the launches, at least one.
        baselines: the baselines that apply to the case.
        measured: the run's counts for the prompts (or rounds of prompts) that run and baseline
            share, or for all of its prompts if the baseline has only a total; None if the run
            itself has only a total.
        recorded: the baseline's counts for the same prompts; None if it has only a total.
        counting_difference: how run and baseline count differently; None if they count alike. If
            they don't, their acceptance over all steps is compared.
    """

    launches: tuple[Measurement, ...]
    baselines: CaseBaselines
    measured: CountsTable | None
    recorded: CountsTable | None
    counting_difference: CountingDifference | None = None

    @property
    def without_extension(self) -> "BaselineComparison":
        """The comparison without the extension, which are the prompts beyond the case's own."""
        return compare(self.launches, self.baselines, extended=False)

    @property
    def length_changes(self) -> tuple[LengthChange, ...]:
        """The prompts whose answers became much longer or shorter than in the baseline."""
        if self.measured is None or self.recorded is None:
            return ()
        return changed_lengths(self.measured, self.recorded)

    def without(self, prompt_ids: Container[str]) -> "BaselineComparison":
        """Return the comparison without these prompts."""
        measured = self.measured.without(prompt_ids) if self.measured else None
        recorded = self.recorded.without(prompt_ids) if self.recorded else None
        return dataclasses.replace(self, measured=measured, recorded=recorded)

    @property
    def measurement(self) -> Measurement:
        """The last launch."""
        return self.launches[-1]

    @property
    def device_difference(self) -> str:
        """Why the power of run and baseline can't be compared; empty if it can."""
        return self._difference(_kind, "power measured as", "recorded as")

    @property
    def card_difference(self) -> str:
        """A note that run and baseline were measured on different cards; empty if they weren't."""
        return self._difference(lambda device: device.id, "measured on", "recorded on")

    def _difference(
        self, name_of: Callable[[RecordedDevice], str], measured_verb: str, recorded_verb: str
    ) -> str:
        """Describe how the devices of run and baseline differ; empty if they don't.

        Args:
            name_of: returns a name for what the devices must have in common.
            measured_verb: the words before the devices of the run.
            recorded_verb: the words before the devices of the baseline.
        """
        recorded_devices = self.baselines.exact.devices if self.baselines.exact else ()
        names = [name_of(device) for device in recorded_devices_of([self.measurement])]
        recorded_names = [name_of(device) for device in recorded_devices]
        if not recorded_names or sorted(names) == sorted(recorded_names):
            return ""
        measured = f"{measured_verb} {', '.join(names)}"
        return f"{measured}, {recorded_verb} {', '.join(recorded_names)}"

    def launch_values(self, metric: Metric) -> tuple[float, ...]:
        """Return the value of a metric in each launch that has it."""
        return tuple(
            launch.values[metric.name] for launch in self.launches if metric.name in launch.values
        )

    def ratio_change(self, metric: Metric) -> RatioChange | Reason:
        """Return how an acceptance metric changed, or the reason why that is unknown."""
        # With only a total, there is no estimate of the error.
        if self.measured is None:
            return Reason.of("sum_only")
        prompts = len(self.measured.prompt_ids)
        if prompts < FEWEST_PROMPTS:
            remedy = f"raise {self.baselines.prompts_setting}"
            return Reason.of(
                "few_shared_prompts", prompts=prompts, needed=FEWEST_PROMPTS, remedy=remedy
            )

        parts = ratio_parts(metric, self.measured)
        ratio = _quotient(parts)
        expected = self.expected_ratio(metric)
        if parts is None or ratio is None or expected is None:
            return Reason.of("no_shared_value", metric=metric.name)
        if not expected:
            return Reason.of("nothing_shared_accepted")

        # Neither side may depend on a few prompts.
        recorded_parts = ratio_parts(metric, self.recorded) if self.recorded else None
        for side_parts in (parts, recorded_parts):
            if side_parts is None:
                continue
            _, denominators = side_parts
            if _depends_on_few_prompts(denominators):
                return Reason.of("few_stepping_prompts", needed=FEWEST_PROMPTS)

        effect = change_of_ratio(parts, recorded_parts, expected)

        # The ratio of AL is AL - 1, so the values are shown with the origin added again.
        return RatioChange(metric.origin + ratio, metric.origin + expected, effect)

    def control_change(self, metric: Metric) -> Effect | None:
        """Return how a speed of the control changed from its own baseline; better is positive.

        The control doesn't speculate, so the machine or the engine caused its change.

        Returns:
            None if the control wasn't measured or may be invalid, or if its value, its baseline or
            its spread is missing.
        """
        replay = self.measurement.replay

        # If the speedup is invalid, the rounds of the control may be the reason.
        if Family.SPEEDUP in self.measurement.invalid:
            return None
        if replay is None or not replay.control_rounds:
            return None
        value = metric.value_of(replay.control_replay) or 0.0
        baselines = self.baselines
        return _change_of_speed(metric, (value,), baselines.control, baselines.control_spreads)

    def expected_ratio(self, metric: Metric) -> float | None:
        """Return the ratio that the baseline, or else the published figure, expects.

        Returns:
            The ratio over the shared prompts, or over all prompts if the baseline has only a total
            or the figure is published; None if neither source has this ratio.
        """
        if self.recorded is not None:
            return _quotient(ratio_parts(metric, self.recorded))
        value: float | None = None
        if self.baselines.baseline is not None:
            value = self.baselines.baseline.expected_value(metric)
        elif self.baselines.published is not None:
            value = self.baselines.published.value(metric.name)

        if value is None:
            return None
        return value - metric.origin


def compare(
    launches: Sequence[Measurement], baselines: CaseBaselines, *, extended: bool = True
) -> BaselineComparison:
    """Compare the launches of a case with its baselines.

    Args:
        launches: the launches, at least one.
        baselines: the baselines that apply to the case.
        extended: whether the prompts of an extension are included.
    """
    # Bring the acceptance of both sides to the same prompts and the same steps.
    measured = launches[-1].acceptance
    recorded = load_acceptance(baselines.baseline.acceptance) if baselines.baseline else None
    if measured and not extended:
        measured = without_extension(measured, launches[-1].case.request.prompts)
    difference = None
    if measured and recorded:
        difference = counting_difference([measured], [recorded])
        if difference is not None:
            measured = measured.over_all_steps
            recorded = recorded.over_all_steps

    # Tabulate the prompts that both sides share. A side that has only a total has no table.
    has_measured = measured is not None and bool(measured.prompt_ids)
    has_recorded = recorded is not None and bool(recorded.prompt_ids)
    sides = [[record] for record in (measured, recorded) if record and record.prompt_ids]

    # The table of the run comes first, and the one of the baseline last.
    tables = common_tables(*answers_in_common(*sides))
    return BaselineComparison(
        launches=tuple(launches),
        baselines=baselines,
        measured=tables[0] if has_measured else None,
        recorded=tables[-1] if has_recorded else None,
        counting_difference=difference,
    )


def counting_difference(
    first: Sequence[AcceptanceRecord], second: Sequence[AcceptanceRecord]
) -> CountingDifference | None:
    """Return how two sides count differently what they did; None if they count alike.

    Args:
        first: the records of the launches of a side.
        second: those of the other side.
    """
    if len({record.counted for record in (*first, *second)}) > 1:
        return CountingDifference.STEPS
    table, second_table = common_tables(*answers_in_common(first, second))
    is_same_answer = table.answer_tokens == second_table.answer_tokens
    if is_same_answer.sum() < max(FEWEST_PROMPTS, len(is_same_answer) / 2):
        return None

    # With other steps without a draft, an answer took other steps, and not only other counts.
    over_all_steps = common_tables(
        *answers_in_common(
            [record.over_all_steps for record in first],
            [record.over_all_steps for record in second],
        )
    )
    all_steps, second_all_steps = (side.steps for side in over_all_steps)
    is_same_work = is_same_answer & (table.steps == second_table.steps)
    is_same_work &= all_steps == second_all_steps

    counts = (table.accepted, *table.position_counts)
    second_counts = (second_table.accepted, *second_table.position_counts)

    # A side that drafts fewer tokens has fewer positions.
    is_same_count = np.all(list(map(np.equal, counts, second_counts)), axis=0)

    # On a GPU some answers take other steps although nothing has changed. If a drafter changes,
    # nearly all that count otherwise do.
    counted_otherwise = (is_same_work & ~is_same_count).sum()
    worked_otherwise = (is_same_answer & ~is_same_work).sum()
    return CountingDifference.DRAFTS if counted_otherwise > worked_otherwise else None


def over_common_steps(
    first: Sequence[Measurement], second: Sequence[Measurement]
) -> tuple[Sequence[Measurement], Sequence[Measurement]]:
    """Return the measurements of two arms, over all steps if the arms count differently."""
    if difference_of_arms(first, second) is None:
        return first, second
    return [*map(_over_all_steps, first)], [*map(_over_all_steps, second)]


def difference_of_arms(
    first: Sequence[Measurement], second: Sequence[Measurement]
) -> CountingDifference | None:
    """Return how two arms count differently what they did; None if they count alike."""
    records = [launch.acceptance for launch in first if launch.acceptance]
    second_records = [launch.acceptance for launch in second if launch.acceptance]
    if not records or not second_records:
        return None
    return counting_difference(records, second_records)


def _over_all_steps(measurement: Measurement) -> Measurement:
    replay = measurement.replay
    if replay is None or replay.acceptance is None:
        return measurement
    replay = dataclasses.replace(replay, acceptance=replay.acceptance.over_all_steps)
    return dataclasses.replace(measurement, replay=replay)


def describe_nothing_accepted(counts: StepCounts) -> str:
    """Describe that no draft was accepted, such as `none of 36 drafts`; empty if one was."""
    if counts.accepted:
        return ""
    if counts.proposed is None:
        return f"no draft in {counted(counts.steps, 'step')}"
    return f"none of {counts.proposed} drafts"


def without_extension(record: AcceptanceRecord, prompts: int | None) -> AcceptanceRecord:
    """Return the acceptance over the first `prompts` prompts of a record.

    A case's own prompts come first, and the prompts of an extension follow. None stands for all
    prompts.
    """
    if not record.prompt_ids or prompts is None:
        return record
    first_ids = record.prompt_ids[:prompts]
    return record.only(set(first_ids))


class PairedCounts(NamedTuple):
    """The counts of the prompts that both arms of a comparison have.

    Attributes:
        measured: the counts of the arm that is judged.
        reference: the counts of the arm that it is compared with.
    """

    measured: CountsTable
    reference: CountsTable

    def without(self, prompt_ids: Container[str]) -> "PairedCounts":
        """Return the counts without these prompts."""
        measured = self.measured.without(prompt_ids)
        reference = self.reference.without(prompt_ids)
        return PairedCounts(measured, reference)


def paired_counts(
    measured: Sequence[Measurement], reference: Sequence[Measurement]
) -> PairedCounts | Reason:
    """Return the counts of two arms for their common prompts, or why they can't be compared.

    All launches of an arm count. If its greedy answers repeat, further launches add nothing. If
    they don't, each launch draws another answer, and the mean over the launches is more precise.

    Args:
        measured: the launches of the arm that is judged.
        reference: the launches of the arm that it is compared with.
    """
    measured_records = [launch.acceptance for launch in measured if launch.acceptance]
    reference_records = [launch.acceptance for launch in reference if launch.acceptance]
    all_records = [*measured_records, *reference_records]

    # Records of different sources or views count different things.
    for record in all_records:
        first = all_records[0]
        if not record.counts_as(first.source, first.view):
            tags = sorted({f"{record.source} {record.view}" for record in all_records})
            return Reason.of("sources_differ", ways=", ".join(tags))

    answers = answers_in_common(measured_records, reference_records)
    measured_table, reference_table = common_tables(*answers)
    return PairedCounts(measured_table, reference_table)


def paired_ratio_change(metric: Metric, counts: PairedCounts) -> Effect | Reason:
    """Return the change of an acceptance metric between two arms, or why it is unknown."""
    prompts = len(counts.measured.prompt_ids)
    if prompts < FEWEST_PROMPTS:
        remedy = "give more prompts, and an engine whose answers carry their own counts"
        return Reason.of(
            "few_shared_prompts", prompts=prompts, needed=FEWEST_PROMPTS, remedy=remedy
        )

    effect = _change_of_tables(metric, counts.measured, counts.reference)
    if effect is None:
        return Reason.of("no_ratio")
    return effect


def _change_of_tables(
    metric: Metric, measured: CountsTable, reference: CountsTable
) -> Effect | None:
    """Return the change of a ratio between two tables of the same prompts.

    Returns:
        None if a table has no ratio, if the reference accepted nothing, or if a table depends on
        too few prompts.
    """
    parts = ratio_parts(metric, measured)
    reference_parts = ratio_parts(metric, reference)
    expected = _quotient(reference_parts)
    if parts is None or reference_parts is None or _quotient(parts) is None or not expected:
        return None
    _, denominators = parts
    _, reference_denominators = reference_parts
    if _depends_on_few_prompts(denominators) or _depends_on_few_prompts(reference_denominators):
        return None
    return change_of_ratio(parts, reference_parts, expected)


def _depends_on_few_prompts(denominators: Column) -> bool:
    """Return whether too few prompts have a step, or one prompt has nearly all steps."""
    with_steps = int(np.count_nonzero(denominators))
    largest_share = float(denominators.max()) / float(denominators.sum())
    return with_steps < FEWEST_PROMPTS or largest_share > _MAX_SHARE_OF_PROMPT


def _change_of_speed(
    metric: Metric,
    values: Sequence[float],
    baseline: Baseline | None,
    spreads: Mapping[str, Spread],
) -> Effect | None:
    """Return the change of a speed from a baseline.

    Returns:
        None if a value is missing or 0, or if the spread is unknown.
    """
    spread = spreads.get(metric.name)
    recorded = baseline.launch_values(metric) if baseline else ()
    if spread is None or not recorded or min(values, default=0.0) <= 0:
        return None
    return change_of_launches(values, recorded, spread, metric.sign)


def change_of_baseline(metric: Metric, old: Baseline, new: Baseline) -> Effect | None:
    """Return how a metric differs between an old and a new baseline.

    Returns:
        None if one of them lacks the metric, if the spread of a speed is unknown, or if an
        acceptance can't be compared (see `change_of_acceptance`).
    """
    if metric.by_launch:
        spreads = spreads_of(CaseSpreads.of(new.launches, new.noise))
        return _change_of_speed(metric, new.launch_values(metric), old, spreads)
    old_acceptance = load_acceptance(old.acceptance)
    new_acceptance = load_acceptance(new.acceptance)
    if old_acceptance is None or new_acceptance is None:
        return None
    return change_of_acceptance(metric, old_acceptance, new_acceptance)


def change_of_acceptance(
    metric: Metric, old: AcceptanceRecord, new: AcceptanceRecord
) -> Effect | None:
    """Return the change of an acceptance metric over the prompts that both records have.

    Returns:
        None if they share too few prompts, if one has no ratio or depends on a few prompts, or if
        the old one accepted nothing.
    """
    answers = answers_in_common([new], [old])
    new_table, old_table = common_tables(*answers)
    if len(new_table.prompt_ids) < FEWEST_PROMPTS:
        return None
    return _change_of_tables(metric, new_table, old_table)


def spreads_of(own: CaseSpreads, others: Sequence[CaseSpreads] = ()) -> Mapping[str, Spread]:
    """Return how the launches of a case vary, by metric, moderated by how other cases vary.

    Three launches show a spread badly, and different loads have different spreads. So a case's own
    spread is moved towards the typical one. A metric without any spread is left out.

    Args:
        own: how the launches of the case vary.
        others: how the launches of the other cases on the machine vary.
    """
    launches_of_others = [case.launches for case in others]
    runs_of_others = [case.runs for case in others]
    spreads = {}
    names = itertools.chain(own.launches, *launches_of_others)
    for name in dict.fromkeys(names):
        launch_variance = _moderated(name, own.launches, launches_of_others)
        run_variance = _moderated(name, own.runs, runs_of_others)
        spreads[name] = Spread(
            within_frac=math.sqrt(launch_variance.value),
            between_frac=math.sqrt(run_variance.value),
            freedom=launch_variance.freedom,
            between_freedom=run_variance.freedom,
        )

    return spreads


def _moderated(
    name: str, own: Mapping[str, Variance], others: Iterable[Mapping[str, Variance]]
) -> Variance:
    """Return the variance of a metric, moved towards the variances of other cases.

    An unknown variance has 0 degrees of freedom.
    """
    variances_of_others = [variances[name] for variances in others if name in variances]
    return shrunk(own.get(name), variances_of_others, NO_PRIOR)


def differing_settings(recorded: CaseSettings, current: CaseSettings) -> str:
    """Return the settings that differ, as `name: recorded -> current`; empty if none does."""
    differences = []
    for settings_field in dataclasses.fields(CaseSettings):
        name = settings_field.name
        recorded_value = getattr(recorded, name)
        current_value = getattr(current, name)
        if recorded_value != current_value:
            differences.append(f"{name}: {recorded_value} -> {current_value}")

    return ", ".join(differences)


def without_num_prompts(settings: CaseSettings) -> CaseSettings:
    """Return the settings without `num_prompts`, with which a run overrides the tier.

    Acceptance is compared prompt by prompt, so the number of prompts may differ.
    """
    return dataclasses.replace(settings, num_prompts=None)


def clock_invalidity(launches: Iterable[Measurement], baseline: Baseline | None) -> Reason | None:
    """Return why the speeds of launches are invalid if a GPU ran far below its recorded clock.

    Returns:
        None if all GPUs reached 95 % of their recorded clocks, or if the clocks are unknown.
    """
    recorded_devices = baseline.devices if baseline else ()
    for launch in launches:
        # Launches of one machine list their devices in the same order.
        for device, recorded in zip(recorded_devices_of([launch]), recorded_devices, strict=False):
            if device.sm_clock_mhz is None or recorded.sm_clock_mhz is None:
                continue
            if device.sm_clock_mhz < _LEAST_CLOCK_FRAC * recorded.sm_clock_mhz:
                return Reason.of(
                    "CLOCK_LOW",
                    device=device.name,
                    clock_mhz=device.sm_clock_mhz,
                    recorded_mhz=recorded.sm_clock_mhz,
                )

    return None


def recorded_devices_of(launches: Iterable[Measurement]) -> tuple[RecordedDevice, ...]:
    """Return the devices whose power was measured, each with the median of its clocks."""
    # Each launch has a record of each device. Collect the records of a device from all launches.
    records_by_device: dict[str, list[DeviceRecord]] = {}
    for launch in launches:
        power = launch.replay.power if launch.replay else None
        for record in power.case.devices if power and power.case else ():
            records_by_device.setdefault(record.device.id, []).append(record)

    devices = []
    for records in records_by_device.values():
        last = records[-1]
        clocks_mhz = [record.sm_clock_mhz for record in records if record.sm_clock_mhz is not None]
        median_mhz = None
        if clocks_mhz:
            median_mhz = statistics.median(clocks_mhz)
        device = RecordedDevice(
            id=last.device.id,
            name=last.device.name,
            scope=last.device.scope,
            from_counter=last.from_counter,
            sm_clock_mhz=median_mhz,
        )
        devices.append(device)

    return tuple(devices)


def _kind(device: RecordedDevice) -> str:
    """Return what a device measures and how, which must be equal to compare power."""
    # A counter adds up energy by itself. Power is sampled, and what lies between is estimated.
    meter = "counter" if device.from_counter else "power"
    return f"{device.scope} by {meter}"


def _quotient(parts: tuple[Column, Column] | None) -> float | None:
    """Return Σ numerators / Σ denominators; None without parts, or if all denominators are 0."""
    if parts is None:
        return None
    numerators, denominators = parts
    if not denominators.any():
        return None
    return float(numerators.sum() / denominators.sum())
