"""Find a lasting loss of acceptance that no single night proves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specreg.baselines.comparison import without_extension
from specreg.baselines.schema import Baseline, load_acceptance
from specreg.judging.fold import LOST, Fold, Night
from specreg.judging.samples import level_of
from specreg.judging.spread import SpreadEstimator
from specreg.measurement.metrics import Metric, acceptance_value
from specreg.verdicts.history import RunRecord, baseline_sha256
from specreg.verdicts.night_samples import runs_of_level
from specreg.verdicts.software import Software, software_of_baseline, whole_software
from specreg.verdicts.verdict import Outcome

_MOST_NIGHTS = 40
"""The most nights before tonight that are gone through, the newest ones."""
_LEAST_SPREAD = 1e-4
"""The spread of nights that is assumed at least, for answers that repeat exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingLoss:
    """A loss that the nights prove together.

    Attributes:
        change_frac: the difference of logarithms, below 0.
        since: the run of its first night.
        nights: how many nights it has lasted, including tonight.
        software: what ran before it and on its first night.
    """

    change_frac: float
    since: str
    nights: int
    software: tuple[Software, Software]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceNights:
    """What the nights show about an acceptance metric of a case.

    Attributes:
        nights: how many nights before tonight are known, besides the baseline.
        needed_nights: how many nights would prove that no more than the tolerance was lost; 0 if no
            number would.
        lasting: a proven loss that lasts until tonight; None without one.
    """

    nights: int
    needed_nights: int
    lasting: LastingLoss | None = None


def go_through_nights(  # noqa: PLR0913 - the nights, and how they are judged
    metric: Metric,
    tonight: float,
    baseline: Baseline,
    records: Sequence[RunRecord],
    *,
    error_frac: float,
    tolerance_frac: float,
    decisions: int,
) -> AcceptanceNights | None:
    """Return what the nights of an acceptance metric show; None if one has no level.

    Args:
        tonight: the value of tonight.
        baseline: the baseline of this machine.
        records: the history of the case.
        error_frac: the standard error of the change between the baseline and tonight, which shows
            how much nights differ.
        tolerance_frac: the tolerated loss, as a share.
        decisions: how many decisions share the probability of a false loss.
    """
    runs = [""]
    software = [software_of_baseline(baseline)]
    levels = [_level(metric, _recorded_values(metric, baseline))]
    recorded = baseline_sha256(baseline)
    for record in runs_of_level(baseline, records):
        if record.recorded and record.baseline_sha256 == recorded:
            # The baseline is this night.
            continue
        runs.append(record.run)
        is_wrong = record.outcomes.get(metric.name) == Outcome.WRONG
        levels.append(
            math.nan if is_wrong else _level(metric, record.values_per_launch(metric.name))
        )
        software.append(whole_software(record.engine_version, record.draft_sha256, record.software))

    level_tonight = _level(metric, [tonight])
    if math.isnan(levels[0]) or math.isnan(level_tonight):
        return None

    # The baseline and tonight differ by the error of both.
    night_frac = max(error_frac / math.sqrt(2), _LEAST_SPREAD)
    fold = Fold(
        SpreadEstimator([np.array([0])], night_frac, 0.0),
        np.array([tolerance_frac]),
        fewest_decisions=decisions,
    )
    fold.add(_night(levels[0], is_first=True))
    skipped = max(len(levels) - 1 - _MOST_NIGHTS, 0)
    for level in (*levels[1 + skipped :], level_tonight):
        fold.add(_night(level))
    lasting = None
    if fold.state[0] == LOST:
        first = int(fold.since[0])
        row = first + skipped
        names = [*runs, ""]
        lasting = LastingLoss(
            change_frac=float(fold.size_of_change()[0]),
            since=names[row],
            nights=len(names) - row,
            software=(software[row - 1], (*software, {})[row]),
        )

    return AcceptanceNights(
        nights=int(fold.nights[0]), needed_nights=int(fold.needed_nights()[0]), lasting=lasting
    )


def _night(level: float, *, is_first: bool = False) -> Night:
    return Night.of_levels(np.array([level]), np.array([is_first]))


def _level(metric: Metric, values: Sequence[float]) -> float:
    """Return the mean logarithm of a metric; NaN if there is none."""
    logs = level_of(values, sign=metric.sign, origin=metric.origin)
    return math.fsum(logs) / len(logs) if logs else math.nan


def _recorded_values(metric: Metric, baseline: Baseline) -> Sequence[float]:
    """Return a baseline's value of an acceptance metric, over the case's own prompts."""
    record = load_acceptance(baseline.acceptance)
    if record is None:
        return ()
    # A run replays the extension only if the case's own prompts don't decide.
    value = acceptance_value(metric, without_extension(record, baseline.case.prompts))
    return () if value is None else (value,)
