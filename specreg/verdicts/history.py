"""Keep a record of each run: the nights that the verdicts of later runs stand on.

`.specreg/history/<environment>.jsonl` has a line for each case of a run. It is an input of a run
like the baselines, and travels as a file: a lost history costs sensitivity, never a right verdict.
A baseline that is recorded takes its noise from it.
"""

import hashlib
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from specreg.baselines.comparison import without_extension
from specreg.baselines.schema import Baseline, Noise
from specreg.core.errors import ReportError
from specreg.core.files import MIB, UNREADABLE, append_lines, read_regular
from specreg.core.names import ReportedCase
from specreg.core.values import readable_values
from specreg.matrix.case import CaseSettings
from specreg.matrix.models import model_sha256
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric, acceptance_value
from specreg.stats.intervals import Spread
from specreg.verdicts.verdict import GOOD, JUDGED, Verdict

_FEWEST_RUNS = 5
_Text = Annotated[str, msgspec.Meta(max_length=1024)]
_MAX_BYTES = 1024 * MIB
_SPEED_DEFINITION = b"short turns, all over all"
"""How speeds are measured; a record of speeds that were measured otherwise isn't compared."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A case of one run.

    Attributes:
        run: the name of its folder, which begins with the time in UTC.
        case_id: the id of the case.
        settings_sha256: a checksum of all that must be equal to compare.
        engine_version: the version of the engine.
        draft_sha256: a checksum of the draft's files; empty without a draft.
        values: by metric that was judged, the geometric mean over the launches whose value is
            above 0; 0 if there is none.
        outcomes: by metric, its outcome.
        baseline_sha256: a checksum of that baseline, or of the one that the run recorded; empty
            without one.
        launches: how many launches had a speed, or were measured without any.
        launch_values: by metric, the value on each launch that counted; of acceptance the value
            over the prompts of the case, without those of an extension.
        host: the machine that measured it, where several measured one run.
        recorded: whether the run recorded a baseline, and judged nothing.
        accepted: whether the user gave a reason for recording, so that its level is the one that
            later nights are held against, whatever it was before.
    """

    run: _Text
    case_id: ReportedCase
    settings_sha256: str
    engine_version: str
    draft_sha256: str
    values: dict[str, float]
    outcomes: dict[str, str]
    baseline_sha256: str = ""
    launches: Annotated[int, msgspec.Meta(ge=1)] = 1
    launch_values: dict[str, list[float]] = {}
    host: _Text = ""
    recorded: bool = False
    accepted: bool = False

    @property
    def night(self) -> str:
        """What the nights of all cases that were measured together have in common."""
        return f"{self.run} {self.host}" if self.host else self.run

    def values_of(self, metric: str) -> list[float]:
        """Return a metric's value on each launch; their mean where the launches aren't kept."""
        if metric in self.launch_values:
            return self.launch_values[metric]
        return [self.values[metric]] if metric in self.values else []

    def launches_of(self, metric: str) -> int:
        """Return how many launches the level of a metric is the mean of."""
        return len(self.launch_values.get(metric, ())) or self.launches

    def judged(self, metric: str) -> bool:
        """Return whether the run compared a valid metric with a baseline."""
        return self.outcomes.get(metric) in JUDGED

    def fine(self, metric: str) -> bool:
        """Return whether the run judged a metric and found it no worse than tolerated."""
        return self.outcomes.get(metric) in GOOD


@dataclass(frozen=True, slots=True)
class History:
    """The records of a history file.

    Attributes:
        by_case: by case's id, its records with the oldest first.
        problem: what couldn't be read of the file; empty if all could.
    """

    by_case: Mapping[str, tuple[RunRecord, ...]]
    problem: str = ""

    def of(self, case_id: str) -> tuple[RunRecord, ...]:
        """Return the records of a case; none if it never ran."""
        return self.by_case.get(case_id, ())

    def without(self, run: str) -> "History":
        """Return the records of all other runs: a run that is merged or made again isn't one."""
        by_case = {
            case_id: tuple(record for record in records if record.run != run)
            for case_id, records in self.by_case.items()
        }
        return History(by_case, self.problem)


NO_HISTORY = History({})
"""That of a machine on which nothing has run yet."""


def comparable(records: Sequence[RunRecord], metric: str) -> tuple[RunRecord, ...]:
    """Return the runs that judged a metric with the settings of the last run that did."""
    judged = [record for record in records if record.judged(metric)]
    return tuple(
        record for record in judged if record.settings_sha256 == judged[-1].settings_sha256
    )


def settings_sha256(settings: CaseSettings) -> str:
    """Return a checksum of all that must be equal to compare."""
    return hashlib.sha256(_SPEED_DEFINITION + msgspec.json.encode(settings)).hexdigest()


def baseline_sha256(baseline: Baseline | None) -> str:
    """Return a checksum of what a baseline expects; empty without a baseline."""
    if baseline is None:
        return ""
    # What is derived from other runs may change without another recording.
    expectation = msgspec.structs.replace(baseline, schema_version=0, noise={}, detects={})
    return hashlib.sha256(msgspec.json.encode(expectation)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """Which run a record is of.

    Attributes:
        run: the name of the run's folder.
        host: the machine that measured the case, where several measured the run.
        recorded: whether the run recorded a baseline.
        accepted: whether the user gave a reason for that.
    """

    run: str
    host: str = ""
    recorded: bool = False
    accepted: bool = False


def run_record(
    origin: RunOrigin,
    launches: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    settings: CaseSettings,
    baseline: Baseline | None,
) -> RunRecord:
    """Return the record of a case of one run.

    Only what was judged is kept: other speeds were measured without their control, or on fewer
    prompts.

    Args:
        origin: the run.
        launches: those that have a valid value, one at least.
        verdicts: those on the case.
        settings: the settings of the case.
        baseline: what the case was compared with, if it is this machine's; what was recorded, if
            the run recorded one.
    """
    first = launches[0]
    values = {}
    launch_values = {}
    for name in dict.fromkeys(verdict.metric for verdict in verdicts):
        measured = [launch.values[name] for launch in launches if launch.values.get(name, -1) >= 0]
        if measured:
            positive = [value for value in measured if value > 0]  # 0 has no logarithm
            values[name] = statistics.geometric_mean(positive) if positive else 0.0
        if name in METRICS:
            launch_values[name] = night_values(METRICS[name], launches)
    timed_launches = [
        launch for launch in launches if any(METRICS[name].by_launch for name in launch.values)
    ]
    return RunRecord(
        run=origin.run,
        case_id=first.case.id,
        settings_sha256=settings_sha256(settings),
        engine_version=first.engine_version,
        draft_sha256=model_sha256(first.draft) if first.draft else "",
        values=values,
        outcomes={verdict.metric: str(verdict.outcome) for verdict in verdicts},
        baseline_sha256=baseline_sha256(baseline),
        launches=len(timed_launches) or len(launches),
        launch_values={name: levels for name, levels in launch_values.items() if levels},
        host=origin.host,
        recorded=origin.recorded,
        accepted=origin.accepted,
    )


def night_values(metric: Metric, launches: Iterable[Measurement]) -> list[float]:
    """Return a metric's value on each launch where it is valid, over the prompts of its case."""
    values = []
    for launch in launches:
        if metric.family in launch.invalid:
            continue
        value = launch.values.get(metric.name)
        if not metric.by_launch and launch.acceptance is not None:
            own_prompts = without_extension(launch.acceptance, launch.case.prompts)
            value = acceptance_value(metric, own_prompts)
        if value is not None:
            values.append(value)
    return values


def record_history(path: Path, records: Iterable[RunRecord]) -> None:
    """Add records to a history.

    Raises:
        ReportError: the disk refuses.
    """
    readable = map(readable_values, records)
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in readable)
    try:
        append_lines(path, lines)
    except OSError as error:
        advice = "make room or mend its rights"
        message = f"history '{path}': this run isn't in it, {error.strerror}; {advice}"
        raise ReportError(message) from error


def load_history(path: Path) -> History:
    """Load a history file. A line that can't be read is left out, and `problem` says so.

    If a run was resumed, only its last line for a case counts, because it measured the case once.
    """
    try:
        lines = read_regular(path, _MAX_BYTES).splitlines()
    except FileNotFoundError:
        return History({})
    except OSError as error:
        return History({}, f"history '{path}': {error.strerror}; mend its rights to have it shown")
    records_by_case: dict[str, dict[str, RunRecord]] = {}
    torn_lines = 0
    for line in lines:
        try:
            record = msgspec.json.decode(line, type=RunRecord)
        except UNREADABLE:
            torn_lines += 1
        else:
            records_by_case.setdefault(record.case_id, {})[record.run] = record
    problem = ""
    if torn_lines:
        problem = f"history '{path}': {torn_lines} line(s) can't be read; the rest is shown"
    by_case = {case_id: tuple(records.values()) for case_id, records in records_by_case.items()}
    return History(by_case, problem)


def noise_of(identical: Sequence[RunRecord], spreads: Mapping[str, Spread]) -> dict[str, Noise]:
    """Estimate by metric how identical runs differ, beyond what the launches of one run do.

    s_b² = var(ln x over the runs) - s_w² / k for runs of k launches, no less than 0. A metric that
    fewer than five runs saw, or whose launches have no spread, has no estimate.

    Args:
        identical: runs of one case with the same settings, engine and draft.
        spreads: by metric, how launches differ within a run.
    """
    noise_by_metric = {}
    for name, spread in spreads.items():
        runs = [record for record in identical if record.values.get(name, 0) > 0]
        if len(runs) >= _FEWEST_RUNS:
            mean_inverse_launches = statistics.fmean(1 / record.launches for record in runs)
            within_variance = spread.within_frac**2 * mean_inverse_launches
            total_variance = statistics.variance(math.log(record.values[name]) for record in runs)
            between_variance = max(total_variance - within_variance, 0.0)
            noise_by_metric[name] = Noise(between_frac=math.sqrt(between_variance), runs=len(runs))
    return noise_by_metric


def identical_to(
    records: Iterable[RunRecord], settings: CaseSettings, engine_version: str, draft_sha256: str
) -> list[RunRecord]:
    """Return the runs with some settings, some engine and some draft."""
    identity = (settings_sha256(settings), engine_version, draft_sha256)
    return [
        record
        for record in records
        if (record.settings_sha256, record.engine_version, record.draft_sha256) == identity
    ]
