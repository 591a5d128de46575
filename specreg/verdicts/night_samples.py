"""Turn a machine's baselines and its history into the samples by which its speeds are judged."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from specreg.baselines.schema import Baseline
from specreg.core.families import Family
from specreg.judging.samples import Sample, level_of
from specreg.measurement.metrics import METRICS, Metric
from specreg.verdicts.history import RunRecord, baseline_sha256, began_s, settings_sha256
from specreg.verdicts.software import software_of_baseline, whole_software
from specreg.verdicts.verdict import Outcome

SPEEDS = tuple(metric for metric in METRICS.values() if metric.by_launch)
"""The metrics that are judged by nights."""


def samples_of(
    case_id: str,
    engine: str,
    baseline: Baseline,
    records: Iterable[RunRecord],
    control: Baseline | None = None,
) -> list[Sample]:
    """Return the samples of a case: its baseline, and all comparable runs since then.

    Args:
        engine: the name of its engine.
        baseline: the baseline of this machine.
        records: the history of the case, in any order.
        control: the baseline of its control; None without one.
    """
    comparable = runs_of_level(baseline, records)
    recorded = baseline_sha256(baseline)
    samples = []
    for metric in SPEEDS:
        of_baseline = _sample_of_baseline(metric, case_id, engine, baseline, control)
        of_metric: list[Sample | None] = []
        has_recording = False
        for record in comparable:
            sample = _sample_of_run(metric, engine, record)
            if record.recorded and record.baseline_sha256 == recorded:
                has_recording = True
                # The run has the figures of the selected tests only, and its baseline has all.
                if sample is None and of_baseline is not None:
                    sample = dataclasses.replace(of_baseline, began_s=began_s(record.run))
            of_metric.append(sample)
        if not has_recording:
            # The history lacks the run that recorded the baseline.
            of_metric.insert(0, of_baseline)
        known = [sample for sample in of_metric if sample is not None]
        # The first night of a figure is its level. A baseline that was recorded elsewhere without a
        # reason continues the nights before it.
        known.sort(key=lambda sample: sample.began_s)
        known[:1] = [dataclasses.replace(sample, starts_level=True) for sample in known[:1]]
        samples += known

    return samples


def runs_of_level(baseline: Baseline, records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the runs with the settings of a baseline, since the last level that was accepted.

    A baseline that was recorded without a reason continues the nights before it; otherwise it would
    hide a slow loss.
    """
    settings = settings_sha256(baseline.case)
    comparable = [record for record in records if record.settings_sha256 == settings]
    comparable.sort(key=lambda record: began_s(record.run))
    accepted = [row for row, record in enumerate(comparable) if record.accepted]
    if accepted:
        return comparable[accepted[-1] :]
    if any(record.recorded for record in comparable):
        return comparable
    recorded_s = _date_s(baseline)
    return [record for record in comparable if began_s(record.run) >= recorded_s]


def _sample_of_run(metric: Metric, engine: str, record: RunRecord) -> Sample | None:
    """Return what a run measured of a metric; None if it has no valid value, or is WRONG.

    A speed that is INVALID because the whole machine was slow has a value. The night is used as a
    whole, because what its figures have in common is subtracted.
    """
    if record.outcomes.get(metric.name) == Outcome.WRONG:
        return None
    sample = sample_of(
        metric,
        record.case_id,
        record.engine or engine,
        began_s=began_s(record.run),
        values=record.values_per_launch(metric.name),
        control_values=record.control_values.get(metric.name, ()),
    )
    if not sample.logs:
        return None
    return dataclasses.replace(
        sample,
        machine=record.machine,
        # A recording plans all of its launches. Another run takes more where a loss is suspected.
        planned=len(sample.logs) if record.recorded else 1,
        software=tuple(
            whole_software(record.engine_version, record.draft_sha256, record.software).items()
        ),
    )


def sample_of(  # noqa: PLR0913 - what a sample consists of
    metric: Metric,
    case_id: str,
    engine: str,
    *,
    began_s: float,
    values: Sequence[float],
    control_values: Sequence[float] = (),
) -> Sample:
    """Return what a night measured of a metric. It has no logarithms if a value has none.

    Args:
        engine: the name of its engine.
        began_s: when the night began, in seconds since 1970, UTC.
        values: the value on each launch.
        control_values: the value of the control on each launch; empty without one.
    """
    controls: tuple[float, ...] = ()

    # A speedup is a ratio to the control, in which a change of the machine cancels out.
    if metric.family is not Family.SPEEDUP:
        controls = level_of(control_values, sign=metric.sign, origin=metric.origin)
    return Sample(
        case=case_id,
        engine=engine,
        machine="",
        metric=metric.name,
        began_s=began_s,
        logs=level_of(values, sign=metric.sign, origin=metric.origin),
        control_logs=controls,
        two_sided=metric.two_sided,
        decides=not metric.follows,
    )


def _sample_of_baseline(
    metric: Metric, case_id: str, engine: str, baseline: Baseline, control: Baseline | None
) -> Sample | None:
    sample = sample_of(
        metric,
        case_id,
        engine,
        began_s=_date_s(baseline),
        values=baseline.launch_values(metric),
        control_values=control.launch_values(metric) if control is not None else (),
    )
    if not sample.logs:
        return None
    software = tuple(software_of_baseline(baseline).items())
    return dataclasses.replace(sample, planned=len(sample.logs), software=software)


def _date_s(baseline: Baseline) -> float:
    """Return the day on which a baseline was recorded, in seconds since 1970."""
    recorded_on = baseline.provenance.recorded_on
    try:
        return datetime.fromisoformat(recorded_on).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return -math.inf
