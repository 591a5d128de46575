"""Compare a case's launches with the baselines that apply to it."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from specreg.core.reasons import Invalidity, Reason
from specreg.matrix.case import CaseSettings
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Family, Metric, ratio_parts
from specreg.stats.intervals import (
    FEWEST_PROMPTS,
    Column,
    Effect,
    Spread,
    change_of_launches,
    change_of_ratio,
)
from specreg.stats.variance import NOTHING_KNOWN, Variance, shrunk, variance_of
from specreg.telemetry.identity import Environment
from specreg.telemetry.power_record import DeviceRecord

NOTHING_ACCEPTED_ADVICE = "choose prompts or settings with which drafts are accepted"
_LEAST_CLOCK_FRAC = 0.95
"""A GPU that runs below this share of the recorded clock was held back."""
_MAX_SHARE_OF_PROMPT = 0.99
"""With a prompt that has more of all steps, the others can't tell how prompts differ."""
_FEW_PROMPTS = Reason(
    text=f"fewer than {FEWEST_PROMPTS} prompts have a step, or one has nearly all of them",
    remedy="give more prompts, whose answers are of similar length",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseBaselines:
    """The baselines that apply to a case, before it is judged.

    Attributes:
        exact: the baseline of this environment.
        nearest: a baseline of another environment, with the same settings.
        published: figures from a paper or a blog, for acceptance only.
        control: the baseline of the same load without speculation.
        control_spreads: by metric, how launches of the control differ.
        options: the options with which pytest runs the case, the tier among them.
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
        """The baseline to compare with: that of this machine, or else of another."""
        return self.exact or self.nearest


@dataclass(frozen=True, slots=True)
class CaseSpreads:
    """How a speed of a case differs, by metric, as variances of logarithms.

    Logarithms are taken because a slow machine slows by a factor.

    Attributes:
        within: from launch to launch, of metrics with two launches or more.
        between: from run to run, beyond that, of metrics that identical runs have shown.
    """

    within: Mapping[str, Variance]
    between: Mapping[str, Variance]

    @classmethod
    def of(
        cls,
        launches: Sequence[Mapping[str, float]],
        noise: Mapping[str, Noise] = MappingProxyType({}),
    ) -> "CaseSpreads":
        """Return how launches of a case differ.

        Args:
            launches: the speeds of each launch, by metric.
            noise: what is known of how identical runs differ, by metric.
        """
        within = {}
        for name in dict.fromkeys(name for launch in launches for name in launch):
            logs = [math.log(launch[name]) for launch in launches if launch.get(name, 0) > 0]
            variance = variance_of(logs)
            if variance is not None:
                within[name] = variance
        between = {
            name: Variance(value=known.between_frac**2, freedom=known.runs - 1)
            for name, known in noise.items()
            if known.runs > 1
        }
        return cls(within, between)


class RatioChange(NamedTuple):
    """How an acceptance metric changed over the prompts that run and baseline share."""

    value: float
    expected: float
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineComparison:
    """A case's launches beside the baselines that apply to the case.

    Speeds are compared over all launches. The acceptance of the last one is compared prompt by
    prompt with that of all launches of the baseline.

    Attributes:
        launches: one at least.
        measured: what the prompts did that run and baseline share; None if the source of the
            run's acceptance doesn't know single prompts.
        recorded: what the same prompts did in the baseline; None without such a baseline.
    """

    launches: tuple[Measurement, ...]
    baselines: CaseBaselines
    measured: CountsTable | None
    recorded: CountsTable | None

    @property
    def without_extension(self) -> "BaselineComparison":
        """The comparison without the prompts of the extension."""
        return compare(self.launches, self.baselines, extended=False)

    @property
    def length_changes(self) -> tuple[LengthChange, ...]:
        """The prompts whose answers are of another length than in the baseline."""
        if self.measured is None or self.recorded is None:
            return ()
        return changed_lengths(self.measured, self.recorded)

    def without(self, prompt_ids: Container[str]) -> "BaselineComparison":
        """Return the comparison without some prompts."""
        return dataclasses.replace(
            self,
            measured=self.measured.without(prompt_ids) if self.measured else None,
            recorded=self.recorded.without(prompt_ids) if self.recorded else None,
        )

    @property
    def measurement(self) -> Measurement:
        """The last launch."""
        return self.launches[-1]

    @property
    def counted_otherwise(self) -> bool:
        """True if run and baseline count different steps, so that all steps are compared."""
        measured = self.measurement.acceptance
        recorded = self.baselines.baseline.acceptance if self.baselines.baseline else None
        return (
            measured is not None
            and recorded is not None
            and measured.counted is not recorded.counted
        )

    @property
    def unlike_devices(self) -> str:
        """Why the power of the baseline's devices can't be compared with ours; empty if it can."""
        return self._difference(_kind, "power measured as", "recorded as")

    @property
    def other_card(self) -> str:
        """A sentence if the last launch ran on another card than the baseline's, else empty."""
        return self._difference(lambda device: device.id, "measured on", "recorded on")

    def _difference(self, name: Callable[[RecordedDevice], str], now: str, then: str) -> str:
        recorded_devices = self.baselines.exact.devices if self.baselines.exact else ()
        names = [name(device) for device in devices_of([self.measurement])]
        recorded_names = [name(device) for device in recorded_devices]
        if not recorded_names or sorted(names) == sorted(recorded_names):
            return ""
        return f"{now} {', '.join(names)}, {then} {', '.join(recorded_names)}"

    def launch_values(self, metric: Metric) -> tuple[float, ...]:
        """Return the metric's value in each launch that has one."""
        return tuple(
            launch.values[metric.name] for launch in self.launches if metric.name in launch.values
        )

    def ratio_change(self, metric: Metric) -> RatioChange | Reason:
        """Return how an acceptance metric changed, or why that can't be known."""
        if self.measured is None:
            return Reason(
                text="the source knows the sum of all requests only, so there is no telling how"
                " they spread",
                remedy="use an engine whose answers carry their own counts",
            )
        prompts = len(self.measured.prompt_ids)
        if prompts < FEWEST_PROMPTS:
            return Reason(
                text=f"{prompts} prompts to compare by, {FEWEST_PROMPTS} are needed",
                remedy="raise prompts in the matrix",
            )
        parts = ratio_parts(metric, self.measured)
        ratio = _quotient(parts)
        expected = self.expected_ratio(metric)
        if parts is None or ratio is None or expected is None:
            return Reason(text=f"the prompts to compare by hold no {metric.name}")
        if not expected:
            return Reason(
                text="the baseline accepted no draft on the prompts to compare by, so no loss could"
                " show"
            )
        recorded_parts = ratio_parts(metric, self.recorded) if self.recorded else None
        for known_parts in (parts, recorded_parts):
            if known_parts is not None and _is_of_few_prompts(known_parts[1]):
                return _FEW_PROMPTS
        effect = change_of_ratio(parts, recorded_parts, expected)
        return RatioChange(metric.origin + ratio, metric.origin + expected, effect)

    def control_change(self, metric: Metric) -> Effect | None:
        """Return how a speed of the control beside the last launch changed, better being positive.

        The control is compared with the baseline of its own case. What moved it didn't come from
        speculation.
        """
        replay = self.measurement.replay
        # An invalid speedup may mean that the control's rounds are invalid.
        if Family.SPEEDUP in self.measurement.invalid:
            return None
        if replay is None or not replay.control_rounds:
            return None
        value = metric.value_of(replay.control_replay) or 0.0
        return _change_of_speed(
            metric, (value,), self.baselines.control, self.baselines.control_spreads
        )

    def expected_ratio(self, metric: Metric) -> float | None:
        """Return the expected ratio: of the shared prompts, or else of the sum of all prompts."""
        if self.recorded is not None:
            return _quotient(ratio_parts(metric, self.recorded))
        value: float | None = None
        if self.baselines.baseline is not None:
            value = self.baselines.baseline.expected_value(metric)
        elif self.baselines.published is not None:
            value = self.baselines.published.value(metric.name)
        return None if value is None else value - metric.origin


def compare(
    launches: Sequence[Measurement], baselines: CaseBaselines, *, extended: bool = True
) -> BaselineComparison:
    """Compare a case's launches with what the baselines know of it.

    Args:
        launches: one at least.
        baselines: the baselines that apply to the case.
        extended: whether the prompts of the extension take part.
    """
    measured = launches[-1].acceptance
    recorded = load_acceptance(baselines.baseline.acceptance) if baselines.baseline else None
    if measured and not extended:
        measured = without_extension(measured, launches[-1].case.prompts)
    if measured and recorded and measured.counted is not recorded.counted:
        measured = measured.over_all_steps
        recorded = recorded.over_all_steps
    has_measured = measured is not None and bool(measured.prompt_ids)
    has_recorded = recorded is not None and bool(recorded.prompt_ids)
    sides = [[record] for record in (measured, recorded) if record and record.prompt_ids]
    tables = common_tables(*answers_in_common(*sides))
    return BaselineComparison(
        launches=tuple(launches),
        baselines=baselines,
        measured=tables[0] if has_measured else None,
        recorded=tables[-1] if has_recorded else None,
    )


def counted_equally(
    first: Sequence[Measurement], second: Sequence[Measurement]
) -> tuple[Sequence[Measurement], Sequence[Measurement]]:
    """Return the measurements of two arms, with acceptance over all steps if they count others."""
    records = [launch.acceptance for launch in (*first, *second)]
    if len({record.counted for record in records if record is not None}) <= 1:
        return first, second
    return [*map(_over_all_steps, first)], [*map(_over_all_steps, second)]


def _over_all_steps(measurement: Measurement) -> Measurement:
    replay = measurement.replay
    if replay is None or replay.acceptance is None:
        return measurement
    replay = dataclasses.replace(replay, acceptance=replay.acceptance.over_all_steps)
    return dataclasses.replace(measurement, replay=replay)


def accepted_nothing(counts: StepCounts) -> str:
    """Say that no draft was accepted, such as `none of 36 drafts`; empty if one was."""
    if counts.accepted:
        return ""
    if counts.proposed is None:
        return f"no draft in {counts.steps} steps"
    return f"none of {counts.proposed} drafts"


def without_extension(record: AcceptanceRecord, prompts: int | None) -> AcceptanceRecord:
    """Return what a record says of a case's own prompts, which come first in it."""
    if not record.prompt_ids or prompts is None:
        return record
    return record.only(set(record.prompt_ids[:prompts]))


class PairedCounts(NamedTuple):
    """What the prompts did that both arms of a comparison have."""

    now: CountsTable
    before: CountsTable

    def without(self, prompt_ids: Container[str]) -> "PairedCounts":
        """Return the counts without some prompts."""
        return PairedCounts(self.now.without(prompt_ids), self.before.without(prompt_ids))


def paired_counts(
    measured: Sequence[Measurement], before: Sequence[Measurement]
) -> PairedCounts | Reason:
    """Return what the prompts of two arms did in their launches, or why that can't be compared.

    Where greedy answers repeat, further launches say nothing new; where they don't, each launch is
    another draw of the prompt's text, and the mean of several is less uncertain.
    """
    records = [
        [launch.acceptance for launch in arm if launch.acceptance] for arm in (measured, before)
    ]
    all_records = list(itertools.chain(*records))
    for record in all_records:
        first = all_records[0]
        if not record.counts_as(first.source, first.view):
            tags = sorted({f"{each.source} {each.view}" for each in all_records})
            return Reason(
                text=f"the sides tell their acceptance differently ({', '.join(tags)}), so they"
                " can't be compared"
            )
    return PairedCounts(*common_tables(*answers_in_common(*records)))


def paired_ratio_change(metric: Metric, counts: PairedCounts) -> Effect | Reason:
    """Return the change of an acceptance metric between the launches of two arms, or why not."""
    prompts = len(counts.now.prompt_ids)
    if prompts < FEWEST_PROMPTS:
        return Reason(
            text=f"{prompts} prompts to compare by, {FEWEST_PROMPTS} are needed",
            remedy="give more prompts, and an engine whose answers carry their own counts",
        )
    effect = _change_of_tables(metric, counts.now, counts.before)
    if effect is None:
        return Reason(
            text="side A accepted nothing, B took no step, or one prompt has nearly all steps: no"
            " ratio can be compared"
        )
    return effect


def _change_of_tables(metric: Metric, now: CountsTable, then: CountsTable) -> Effect | None:
    """Return the change of a ratio between tables of the same prompts; None if one has no ratio."""
    parts = ratio_parts(metric, now)
    parts_before = ratio_parts(metric, then)
    expected = _quotient(parts_before)
    if parts is None or parts_before is None or _quotient(parts) is None or not expected:
        return None
    if _is_of_few_prompts(parts[1]) or _is_of_few_prompts(parts_before[1]):
        return None
    return change_of_ratio(parts, parts_before, expected)


def _is_of_few_prompts(denominators: Column) -> bool:
    """Return whether too few prompts have a step, or one has nearly all of them."""
    with_steps = int(np.count_nonzero(denominators))
    largest_share = float(denominators.max()) / float(denominators.sum())
    return with_steps < FEWEST_PROMPTS or largest_share > _MAX_SHARE_OF_PROMPT


def _change_of_speed(
    metric: Metric,
    values: Sequence[float],
    baseline: Baseline | None,
    spreads: Mapping[str, Spread],
) -> Effect | None:
    spread = spreads.get(metric.name)
    recorded = baseline.launch_values(metric) if baseline else ()
    if spread is None or not recorded or min(values, default=0.0) <= 0:
        return None
    return change_of_launches(values, recorded, spread, metric.sign)


def change_of_baseline(metric: Metric, old: Baseline, new: Baseline) -> Effect | None:
    """Return what a new baseline changes; None without a spread or anything to compare."""
    if metric.by_launch:
        spreads = spreads_of(CaseSpreads.of(new.launches, new.noise))
        return _change_of_speed(metric, new.launch_values(metric), old, spreads)
    before = load_acceptance(old.acceptance)
    now = load_acceptance(new.acceptance)
    if before is None or now is None:
        return None
    return change_of_acceptance(metric, before, now)


def change_of_acceptance(
    metric: Metric, old: AcceptanceRecord, new: AcceptanceRecord
) -> Effect | None:
    """Return the change over the prompts that both records have.

    Returns:
        None if they share too few prompts, or have no ratio.
    """
    now, then = common_tables(*answers_in_common([new], [old]))
    if len(now.prompt_ids) < FEWEST_PROMPTS:
        return None
    return _change_of_tables(metric, now, then)


def spreads_of(own: CaseSpreads, others: Sequence[CaseSpreads] = ()) -> Mapping[str, Spread]:
    """Return by metric how the launches of a case differ, moderated by those of other cases.

    Three launches of one case say little, and unlike loads have unlike spreads, so a case's own
    spread is shrunk towards the typical one. A metric without any spread is left out.

    Args:
        own: how the case's launches differ.
        others: how those of other cases of the machine differ.
    """
    spreads = {}
    names = (name for case in (own, *others) for name in case.within)
    for name in dict.fromkeys(names):
        within = _moderated(name, own.within, [case.within for case in others])
        between = _moderated(name, own.between, [case.between for case in others])
        spreads[name] = Spread(
            within_frac=math.sqrt(within.value),
            between_frac=math.sqrt(between.value),
            freedom=within.freedom,
            between_freedom=between.freedom,
        )
    return spreads


def _moderated(
    name: str, own: Mapping[str, Variance], others: Iterable[Mapping[str, Variance]]
) -> Variance:
    """Return the variance of a metric of a case; its freedom is 0 if nothing is known."""
    known = [case[name] for case in others if name in case]
    return shrunk(own.get(name), known, NOTHING_KNOWN)


def differing_settings(recorded: CaseSettings, current: CaseSettings) -> str:
    """Return the settings that differ, as `name: recorded -> current`; empty when none does."""
    names = [field.name for field in dataclasses.fields(CaseSettings)]
    return ", ".join(
        f"{name}: {getattr(recorded, name)} -> {getattr(current, name)}"
        for name in names
        if getattr(recorded, name) != getattr(current, name)
    )


def without_num_prompts(settings: CaseSettings) -> CaseSettings:
    """Return the settings without `num_prompts`, by which a run overrides the matrix.

    Acceptance is compared prompt by prompt, so that another number of them doesn't matter.
    """
    return dataclasses.replace(settings, num_prompts=None)


def why_held_back(launches: Iterable[Measurement], baseline: Baseline | None) -> Invalidity | None:
    """Return why no speed of some launches counts: a GPU ran slower than when it was recorded.

    Returns:
        None if no GPU did, or that isn't known.
    """
    recorded_devices = baseline.devices if baseline else ()
    for launch in launches:
        # Launches of one machine list their devices in the same order.
        for now, then in zip(devices_of([launch]), recorded_devices, strict=False):
            if now.sm_clock_mhz is None or then.sm_clock_mhz is None:
                continue
            if now.sm_clock_mhz < _LEAST_CLOCK_FRAC * then.sm_clock_mhz:
                return Invalidity(
                    "CLOCK_LOW",
                    f"{now.name} ran at {now.sm_clock_mhz:.0f} MHz, it was recorded at"
                    f" {then.sm_clock_mhz:.0f}; reset its clocks (nvidia-smi -rgc), cool it, or"
                    " look who limits its power",
                )
    return None


def devices_of(launches: Iterable[Measurement]) -> tuple[RecordedDevice, ...]:
    """Return the devices whose power some launches measured, each at the median of its clocks."""
    records_by_device: dict[str, list[DeviceRecord]] = {}
    for launch in launches:
        power = launch.replay.power if launch.replay else None
        for record in power.case.devices if power and power.case else ():
            records_by_device.setdefault(record.device.id, []).append(record)
    devices = []
    for records in records_by_device.values():
        last = records[-1]
        clocks_mhz = [record.sm_clock_mhz for record in records if record.sm_clock_mhz is not None]
        devices.append(
            RecordedDevice(
                id=last.device.id,
                name=last.device.name,
                scope=last.device.scope,
                from_counter=last.from_counter,
                sm_clock_mhz=statistics.median(clocks_mhz) if clocks_mhz else None,
            )
        )
    return tuple(devices)


def _kind(device: RecordedDevice) -> str:
    return f"{device.scope} by {'counter' if device.from_counter else 'power'}"


def _quotient(parts: tuple[Column, Column] | None) -> float | None:
    if parts is None or not parts[1].any():
        return None
    return float(parts[0].sum() / parts[1].sum())
