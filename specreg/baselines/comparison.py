"""Compare a case's launches with the baselines that apply to it."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    Counts,
    PromptAcceptance,
    StepCounts,
)
from specreg.baselines.schema import (
    Baseline,
    Noise,
    PublishedFigure,
    RecordedDevice,
    load_acceptance,
)
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
from specreg.telemetry.identity import Environment
from specreg.telemetry.power_record import DeviceRecord

_LEAST_CLOCK_FRAC = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseBaselines:
    """The baselines that apply to a case, before it is judged.

    Attributes:
        exact: the baseline of this environment; nearest: one of another, with the same settings.
        control: the baseline of the same load without speculation.
        spreads: by metric, how launches of this environment differ.
        options: with which pytest runs the case, the tier among them.
    """

    environment: Environment
    settings: CaseSettings
    exact: Baseline | None = None
    nearest: Baseline | None = None
    published: PublishedFigure | None = None
    control: Baseline | None = None
    spreads: Mapping[str, Spread]
    options: tuple[str, ...] = ()

    @property
    def baseline(self) -> Baseline | None:
        """The one to compare with: of this machine, else of another."""
        return self.exact or self.nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsTable(Counts[Column]):
    """The counts of each prompt, turns added up: prompts are independent draws, turns aren't.

    The columns are of shape (n,), as long as `prompt_ids`, of which each is there once.
    """

    prompt_ids: tuple[str, ...]


def common_tables(*sides: Iterable[PromptAcceptance]) -> Sequence[CountsTable]:
    """A table of each side, of the prompts that all of them have, in the order of the first."""
    sums: list[dict[str, StepCounts]] = []
    for side in sides:
        rows: dict[str, StepCounts] = {}
        for prompt in side:
            rows[prompt.prompt_id] = rows.get(prompt.prompt_id, NO_STEPS) + prompt.counts
        sums.append(rows)
    common = tuple(one for one in sums[0] if all(one in rows for rows in sums)) if sums else ()
    return [_table(common, [rows[one] for one in common]) for rows in sums]


def _table(prompt_ids: tuple[str, ...], rows: Sequence[StepCounts]) -> CountsTable:
    proposed = [one.proposed for one in rows]
    positions = itertools.zip_longest(*(one.position_counts for one in rows), fillvalue=0)
    return CountsTable(
        prompt_ids=prompt_ids,
        steps=np.array([one.steps for one in rows], np.float64),
        accepted=np.array([one.accepted for one in rows], np.float64),
        proposed=None if None in proposed else np.array(proposed, np.float64),
        position_counts=tuple(np.array(column, np.float64) for column in positions),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A case's launches beside what is known of it; the last one is judged by prompt.

    `ours` and `theirs` are what each prompt did that both have; None where there are no prompts.
    """

    launches: tuple[Measurement, ...]
    known: CaseBaselines
    ours: CountsTable | None
    theirs: CountsTable | None

    @property
    def without_extension(self) -> "Comparison":
        """The comparison without the extension's prompts."""
        return compare(self.launches, self.known, extended=False)

    @property
    def measurement(self) -> Measurement:
        """The last launch."""
        return self.launches[-1]

    @property
    def unlike_devices(self) -> str:
        """Why the power of the baseline's devices can't be compared with ours; empty if it can."""
        return self._difference(_kind, "power measured as", "recorded as")

    @property
    def other_card(self) -> str:
        """A sentence if the last launch ran on another card than the baseline's, else empty."""
        return self._difference(lambda one: one.id, "measured on", "recorded on")

    def _difference(self, name: Callable[[RecordedDevice], str], now: str, then: str) -> str:
        ours = list(map(name, devices_of([self.measurement])))
        theirs = list(map(name, self.known.exact.devices if self.known.exact else ()))
        if not theirs or sorted(ours) == sorted(theirs):
            return ""
        return f"{now} {', '.join(ours)}, {then} {', '.join(theirs)}"

    def launch_values(self, metric: Metric) -> tuple[float, ...]:
        """The metric's value in each launch that has it."""
        return tuple(m.values[metric.name] for m in self.launches if metric.name in m.values)

    def ratio_change(self, metric: Metric) -> tuple[float, float, Effect] | str:
        """Value, expected value and change of an acceptance metric, or why it can't be told."""
        if self.ours is None:
            return (
                "the source knows the sum of all requests only, so there is no telling how they"
                " spread; use an engine whose answers carry their own counts"
            )
        if len(self.ours.prompt_ids) < FEWEST_PROMPTS:
            return (
                f"{len(self.ours.prompt_ids)} prompts to compare by, {FEWEST_PROMPTS} are needed;"
                " raise prompts in the matrix"
            )
        ours, expected = ratio_parts(metric, self.ours), self.expected_ratio(metric)
        value = _quotient(ours)
        if ours is None or value is None or expected is None:
            return f"the prompts to compare by hold no {metric.name}"
        if expected:
            theirs = ratio_parts(metric, self.theirs) if self.theirs is not None else None
            change = change_of_ratio(ours, theirs, expected)
        else:  # a baseline of 0 (no draft ever accepted) can only be kept or improved
            change = Effect(estimate_frac=float(value > 0), error_frac=0.0, freedom=1)
        return metric.origin + value, metric.origin + expected, change

    def speed_change(self, metric: Metric) -> Effect | None:
        """The change of a speed, better being positive.

        None without a spread or a baseline, and of a speed that is 0 in a launch.
        """
        ours = self.launch_values(metric)
        return _change_of_speed(metric, ours, self.known.exact, self.known.spreads)

    def control_change(self, metric: Metric) -> Effect | None:
        """`speed_change` of the server without speculation beside the last launch.

        Held against its own case's baseline: whatever moved it didn't come from speculation.
        """
        replay = self.measurement.replay
        # An invalid speedup may mean that the control's rounds are invalid.
        if Family.SPEEDUP in self.measurement.invalid or not replay or not replay.control_rounds:
            return None
        ours = (metric.function(replay.of_control) or 0.0,)
        return _change_of_speed(metric, ours, self.known.control, self.known.spreads)

    def expected_ratio(self, metric: Metric) -> float | None:
        """The expected ratio: of the prompts that both have, else of the sum of all."""
        if self.theirs is not None:
            return _quotient(ratio_parts(metric, self.theirs))
        if self.known.baseline is not None:
            value = self.known.baseline.expected_value(metric)
        else:
            value = self.known.published.value(metric.name) if self.known.published else None
        return None if value is None else value - metric.origin


def compare(
    launches: Sequence[Measurement], known: CaseBaselines, *, extended: bool = True
) -> Comparison:
    """Compare a case's launches, one at least, with what the baselines know of it."""
    ours = launches[-1].acceptance
    theirs = load_acceptance(known.baseline.acceptance) if known.baseline else None
    if ours and not extended:
        ids = list(dict.fromkeys(prompt.prompt_id for prompt in ours.prompts))
        ours = ours.only(ids[: launches[-1].case.prompts])
    tables = common_tables(*(one.prompts for one in (ours, theirs) if one and one.prompts))
    return Comparison(
        launches=tuple(launches),
        known=known,
        ours=tables[0] if ours and ours.prompts else None,
        theirs=tables[-1] if theirs and theirs.prompts else None,
    )


def paired_ratio_change(
    metric: Metric, measured: Sequence[Measurement], before: Sequence[Measurement]
) -> Effect | str:
    """The change of an acceptance metric between the launches of two arms, prompt by prompt.

    A prompt's launches are added up: where greedy answers repeat they tell nothing new, and where
    they don't each launch is another draw of its text. A sentence where there is no telling.
    """
    records = [[one.acceptance for one in arm if one.acceptance] for arm in (measured, before)]
    tags = sorted({f"{one.source} {one.view}" for one in itertools.chain(*records)})
    if len(tags) > 1:
        said = ", ".join(tags)
        return f"the sides tell their acceptance differently ({said}), so they can't be compared"
    ours, theirs = common_tables(
        *([each for one in arm for each in one.prompts] for arm in records)
    )
    if len(ours.prompt_ids) < FEWEST_PROMPTS:
        return (
            f"{len(ours.prompt_ids)} prompts to compare by, {FEWEST_PROMPTS} are needed; give more"
            " prompts, and an engine whose answers carry their own counts"
        )
    change = _change_of_tables(metric, ours, theirs)
    return change or "side A accepted nothing, or B took no step: there is no ratio to compare"


def _change_of_tables(metric: Metric, ours: CountsTable, theirs: CountsTable) -> Effect | None:
    """The change of a ratio between tables of the same prompts; None where one of them has none."""
    now, before = ratio_parts(metric, ours), ratio_parts(metric, theirs)
    expected = _quotient(before)
    if now is None or _quotient(now) is None or not expected:
        return None
    return change_of_ratio(now, before, expected)


def _change_of_speed(
    metric: Metric, ours: Sequence[float], recorded: Baseline | None, spreads: Mapping[str, Spread]
) -> Effect | None:
    spread, theirs = spreads.get(metric.name), recorded.launch_values(metric) if recorded else ()
    if spread is None or not theirs or min(ours, default=0.0) <= 0:
        return None
    return change_of_launches(ours, theirs, spread, metric.sign)


def change_of_baseline(metric: Metric, old: Baseline, new: Baseline) -> Effect | None:
    """What a new baseline changes; None where there is nothing to compare or no spread."""
    if metric.by_launch:
        return _change_of_speed(metric, new.launch_values(metric), old, spreads_of((new,)))
    before, now = load_acceptance(old.acceptance), load_acceptance(new.acceptance)
    return change_of_acceptance(metric, before, now) if before and now else None


def change_of_acceptance(
    metric: Metric, old: AcceptanceRecord, new: AcceptanceRecord
) -> Effect | None:
    """The change over the prompts that both have; None where they are too few, or have no ratio."""
    ours, theirs = common_tables(new.prompts, old.prompts)
    few = len(ours.prompt_ids) < FEWEST_PROMPTS
    return None if few else _change_of_tables(metric, ours, theirs)


def spreads_of(baselines: Iterable[Baseline]) -> Mapping[str, Spread]:
    """By metric, how the launches of one environment differ, pooled over its baselines.

    s_w² = Σ (ln x - mean ln x)² / Σ (n - 1) over those with two launches or more; s_b² the mean of
    what their histories say, weighed by runs. Logarithms, because a slow machine slows by a factor.
    Pooled, because three launches of one case say little.
    """
    baselines = tuple(baselines)
    return pooled_spreads(
        [one.launches for one in baselines], [one.noise for one in baselines if one.noise]
    )


def pooled_spreads(
    cases: Sequence[Sequence[Mapping[str, float]]], noise: Sequence[Mapping[str, Noise]] = ()
) -> Mapping[str, Spread]:
    """Pool by metric how the launches of some cases differ, and the noise known of their runs."""
    found = {}
    for name in dict.fromkeys(name for launches in cases for row in launches for name in row):
        squares, freedom = 0.0, 0
        for launches in cases:
            logs = [math.log(row[name]) for row in launches if row.get(name, 0) > 0]
            if len(logs) > 1:
                squares += statistics.variance(logs) * (len(logs) - 1)
                freedom += len(logs) - 1
        noises = [one[name] for one in noise if name in one and one[name].runs > 1]
        runs = sum(noise.runs - 1 for noise in noises)
        between = sum(noise.between_frac**2 * (noise.runs - 1) for noise in noises)
        if freedom:
            found[name] = Spread(
                within_frac=math.sqrt(squares / freedom),
                between_frac=math.sqrt(between / runs) if runs else 0.0,
                freedom=min(freedom, runs) if runs else freedom,
            )
    return found


def differing_settings(recorded: CaseSettings, current: CaseSettings) -> str:
    """The settings that differ, as `name: recorded -> current`; empty when none does."""
    return ", ".join(
        f"{name}: {getattr(recorded, name)} -> {getattr(current, name)}"
        for name in (field.name for field in dataclasses.fields(CaseSettings))
        if getattr(recorded, name) != getattr(current, name)
    )


def of_any_number(settings: CaseSettings) -> CaseSettings:
    """Return the settings without `num_prompts`, by which a run overrides the matrix.

    Acceptance is compared prompt by prompt, so that it bears another number of them.
    """
    return dataclasses.replace(settings, num_prompts=None)


def why_held_back(launches: Iterable[Measurement], recorded: Baseline | None) -> str:
    """Why no speed of some launches counts: a GPU ran slower than when it was recorded.

    Empty where none did, or it isn't known.
    """
    theirs = recorded.devices if recorded else ()
    pairs = (zip(devices_of([launch]), theirs, strict=False) for launch in launches)
    for now, then in itertools.chain.from_iterable(pairs):
        if now.sm_clock_mhz is None or then.sm_clock_mhz is None:
            continue
        if now.sm_clock_mhz < _LEAST_CLOCK_FRAC * then.sm_clock_mhz:
            return (
                f"CLOCK_LOW: {now.name} ran at {now.sm_clock_mhz:.0f} MHz, it was"
                f" recorded at {then.sm_clock_mhz:.0f}; reset its clocks (nvidia-smi -rgc),"
                " cool it, or look who limits its power"
            )
    return ""


def devices_of(launches: Iterable[Measurement]) -> tuple[RecordedDevice, ...]:
    """The devices whose power some launches measured, each at the median of its clocks."""
    found: dict[str, list[DeviceRecord]] = {}
    for launch in launches:
        power = launch.replay.power if launch.replay else None
        for one in power.case.devices if power and power.case else ():
            found.setdefault(one.device.id, []).append(one)
    merged = []
    for same in found.values():
        last = same[-1]
        clocks = [one.sm_clock_mhz for one in same if one.sm_clock_mhz is not None]
        merged.append(
            RecordedDevice(
                id=last.device.id,
                name=last.device.name,
                scope=last.device.scope,
                from_counter=last.from_counter,
                sm_clock_mhz=statistics.median(clocks) if clocks else None,
            )
        )
    return tuple(merged)


def _kind(device: RecordedDevice) -> str:
    return f"{device.scope} by {'counter' if device.from_counter else 'power'}"


def _quotient(parts: tuple[Column, Column] | None) -> float | None:
    if parts is None or not parts[1].any():
        return None
    return float(parts[0].sum() / parts[1].sum())
