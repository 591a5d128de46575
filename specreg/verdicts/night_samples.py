"""Turn a machine's baselines and its history into the samples by which its speeds are judged."""

import dataclasses
import math
from collections.abc import Iterable
from datetime import UTC, datetime

from specreg.baselines.schema import Baseline
from specreg.judging.samples import Sample, level_of
from specreg.measurement.metrics import METRICS, Metric
from specreg.verdicts.history import RunRecord, baseline_sha256, settings_sha256
from specreg.verdicts.verdict import Outcome

SPEEDS = tuple(metric for metric in METRICS.values() if metric.by_launch and not metric.follows)
"""The metrics that are judged by nights and decided by themselves."""
_RUN_TIME = "%Y%m%dT%H%M%S"
_RUN_TIME_DIGITS = 15
"""A run's name begins with its start in UTC, such as `20261121T031500`."""
_SPOILED = frozenset({Outcome.INVALID, Outcome.WRONG})


def samples_of(
    case_id: str, engine: str, baseline: Baseline, records: Iterable[RunRecord]
) -> list[Sample]:
    """Return the samples of a case: its baseline, and all comparable runs since then.

    Args:
        case_id: the id of the case.
        engine: the name of its engine.
        baseline: the baseline of this machine.
        records: the history of the case, in any order.
    """
    comparable = _runs_of_level(baseline, records)
    recorded = baseline_sha256(baseline)
    has_recording = any(
        record.recorded and record.baseline_sha256 == recorded for record in comparable
    )
    samples = []
    for metric in SPEEDS:
        of_metric = [_sample_of_run(metric, engine, record) for record in comparable]
        if not has_recording:
            # The history lacks the run that recorded the baseline.
            of_metric.insert(0, _sample_of_baseline(metric, case_id, engine, baseline))
        known = [sample for sample in of_metric if sample is not None]
        # The first night of a figure is its level.
        known[:1] = [dataclasses.replace(sample, starts_level=True) for sample in known[:1]]
        samples += known
    return samples


def _runs_of_level(baseline: Baseline, records: Iterable[RunRecord]) -> list[RunRecord]:
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
    """Return what a run measured of a metric; None if it has no value, or is INVALID or WRONG."""
    logs = level_of(record.values_of(metric.name), sign=metric.sign, origin=metric.origin)
    if not logs or record.outcomes.get(metric.name) in _SPOILED:
        return None
    return Sample(
        case=record.case_id,
        engine=record.engine or engine,
        machine=record.host,
        metric=metric.name,
        began_s=began_s(record.run),
        logs=logs,
        # A recording plans all of its launches. Another run takes more where a loss is suspected.
        planned=len(logs) if record.recorded else 1,
        software=f"{record.engine_version} {record.draft_sha256}",
    )


def _sample_of_baseline(
    metric: Metric, case_id: str, engine: str, baseline: Baseline
) -> Sample | None:
    logs = level_of(baseline.launch_values(metric), sign=metric.sign, origin=metric.origin)
    if not logs:
        return None
    provenance = baseline.provenance
    return Sample(
        case=case_id,
        engine=engine,
        machine="",
        metric=metric.name,
        began_s=_date_s(baseline),
        logs=logs,
        planned=len(logs),
        software=f"{provenance.engine_version} {provenance.draft_sha256}",
    )


def began_s(run: str) -> float:
    """Return when a run began, in seconds since 1970; infinity if its name doesn't say that.

    A run whose start is unknown counts as one of the future, and is left out.
    """
    try:
        began = datetime.strptime(run[:_RUN_TIME_DIGITS], _RUN_TIME).replace(tzinfo=UTC)
    except ValueError:
        return math.inf
    return began.timestamp()


def _date_s(baseline: Baseline) -> float:
    """Return the day on which a baseline was recorded, in seconds since 1970."""
    recorded_on = baseline.provenance.recorded_on
    try:
        return datetime.fromisoformat(recorded_on).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return -math.inf
