"""Read and write the history, which holds the nights that later verdicts are based on.

`.specreg/history/<environment>.jsonl` has one line for each case of each run. Like the baselines,
the history is an input of a run, and it can be copied to another checkout. Without it verdicts are
less sensitive, but never wrong. Recording a baseline takes the noise of identical runs from it.
"""

import contextlib
import datetime as dt
import hashlib
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from specreg.baselines.comparison import without_extension
from specreg.baselines.schema import Baseline, Noise
from specreg.core.errors import ReportError
from specreg.core.families import Family
from specreg.core.files import MIB, UNREADABLE, append_lines, read_regular
from specreg.core.names import ReportedCase
from specreg.core.readable import Label
from specreg.core.values import readable_values
from specreg.matrix.case import CaseSettings
from specreg.matrix.models import model_sha256
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric, acceptance_value
from specreg.stats.intervals import Spread
from specreg.verdicts.software import software_of_launch
from specreg.verdicts.verdict import GOOD, JUDGED, Outcome, Verdict

_FEWEST_RUNS = 5
"""The fewest identical runs from which their noise is estimated."""
_MOST_NIGHTS = 1_000
"""The most nights of a case that are read, the newest ones. They are three years of nights."""
_Word = Annotated[Label, msgspec.Meta(max_length=1024)]
_RunName = Annotated[str, msgspec.Meta(max_length=1024, pattern=r"^[0-9]{8}[\w.-]*$(?!\n)")]
"""The name of a run's folder, which begins with its date, so that nights are ordered by name."""
_LEAST_VALUE = 1e-12
_LARGEST_VALUE = 1e12
"""The smallest and the largest value of a metric above 0. No figure of a server is beyond them, and
the change from one to the other can still be calculated with."""
_Value = Annotated[float, msgspec.Meta(ge=0, le=_LARGEST_VALUE)]
_LaunchCount = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
_LaunchValues = Annotated[list[_Value], msgspec.Meta(max_length=10_000)]
_MAX_BYTES = 1024 * MIB
RUN_TIME = "%Y%m%dT%H%M%S"
"""A run's name begins with its start in UTC, `20261121T031500`, or at least with its date."""
_RUN_TIMES = ((RUN_TIME, 15), ("%Y%m%d", 8))
"""The formats of that beginning, and how many characters they have."""
_SPEED_DEFINITION = b"short turns, all over all"
"""How speeds are measured. It is part of the checksum of the settings, so that speeds which were
measured by an earlier definition aren't compared. Change it whenever the definition changes."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One case of one run, a line of the history. Mappings are keyed by the name of the metric.

    Attributes:
        run: the name of the run's folder, which begins with the time in UTC.
        case_id: the id of the case.
        settings_sha256: a checksum of all settings that must be equal for a comparison.
        engine_version: the version of the engine.
        commit: the commit of the repository; empty without one, and in a line that an older specreg
            wrote.
        engine: the name of the engine; empty in a line that an older specreg wrote.
        draft_sha256: a checksum of the draft's files; empty without a draft.
        values: for each metric with a verdict, its geometric mean over the launches in which it was
            above 0; 0 if it was 0 in all of them.
        outcomes: the outcome of each metric.
        baseline_sha256: a checksum of the baseline that the run was compared with, or that it
            recorded; empty without a baseline.
        launches: how many launches had a speed, or how many there were if none had one.
        launch_values: the value of each metric on each valid launch. The value of acceptance is
            over the prompts of the case, without those of an extension.
        control_values: the same of the server without speculation that ran beside the case.
        machine: the identity of the machine that measured the case; empty if unknown.
        software: what else the server ran with, see `software_of_launch`.
        recorded: whether the run recorded baselines instead of judging.
        accepted: whether the user gave a reason for recording. Later nights are then compared with
            this level only, and not with the levels before it.
        lost: whether this night alone proved that the case or its engine was worse or wrong. None
            of its figures then shows how much the machine varies.
    """

    run: _RunName
    case_id: ReportedCase
    settings_sha256: Label
    engine_version: str
    draft_sha256: Label
    values: dict[Label, _Value]
    outcomes: dict[Label, str]
    commit: _Word = ""
    engine: _Word = ""
    baseline_sha256: Label = ""
    launches: _LaunchCount = 1
    launch_values: dict[Label, _LaunchValues] = {}
    control_values: dict[Label, _LaunchValues] = {}
    machine: _Word = ""
    software: dict[Label, _Word] = {}
    recorded: bool = False
    accepted: bool = False
    lost: bool = False

    def values_per_launch(self, metric: str) -> list[float]:
        """Return a metric's value on each launch, or only their mean if the record has no more."""
        if metric in self.launch_values:
            return self.launch_values[metric]
        if metric in self.values:
            return [self.values[metric]]
        return []

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
        by_case: the records of each case, the oldest first, by the case's id.
        problem: a message about what isn't used of the file; empty if all of it is.
    """

    by_case: Mapping[str, tuple[RunRecord, ...]]
    problem: str = ""

    def of(self, case_id: str) -> tuple[RunRecord, ...]:
        """Return the records of a case, the oldest first; empty if it never ran."""
        return self.by_case.get(case_id, ())

    def without(self, *runs: str) -> "History":
        """Return the history without some runs, which may have been resumed or merged before."""
        left_out = frozenset(runs)
        by_case = {}
        for case_id, records in self.by_case.items():
            other_records = [record for record in records if record.run not in left_out]
            by_case[case_id] = tuple(other_records)
        return History(by_case, self.problem)


NO_HISTORY = History({})
"""The history of a machine on which nothing has run yet."""


def comparable(records: Sequence[RunRecord], metric: str) -> tuple[RunRecord, ...]:
    """Return the runs that judged a metric with the same settings as the last such run."""
    judged = [record for record in records if record.judged(metric)]
    if not judged:
        return ()
    last_sha256 = judged[-1].settings_sha256
    return tuple(record for record in judged if record.settings_sha256 == last_sha256)


def settings_sha256(settings: CaseSettings) -> str:
    """Return a checksum of all settings that must be equal for a comparison."""
    content = _SPEED_DEFINITION + msgspec.json.encode(settings)
    return hashlib.sha256(content).hexdigest()


def baseline_sha256(baseline: Baseline | None) -> str:
    """Return a checksum of what a baseline expects; empty without a baseline."""
    if baseline is None:
        return ""
    # The version of the format, the noise and the detectable losses don't change what is expected.
    expectation = msgspec.structs.replace(baseline, schema_version=0, noise={}, detects={})
    return hashlib.sha256(msgspec.json.encode(expectation)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRun:
    """The run that a record comes from.

    Attributes:
        run: the name of the run's folder.
        machine: the identity of the machine that measured the case; empty if unknown.
        driver_version: the version of the GPU's driver; empty without a GPU.
        commit: the commit of the repository; empty without one.
        recorded: whether the run recorded a baseline.
        accepted: whether the user gave a reason for recording it.
    """

    run: str
    machine: str = ""
    driver_version: str = ""
    commit: str = ""
    recorded: bool = False
    accepted: bool = False


def run_record(
    origin: SourceRun,
    launches: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    settings: CaseSettings,
    baseline: Baseline | None,
) -> RunRecord:
    """Return the record of one case of a run.

    It contains only the metrics with a verdict. Other speeds may have been measured without their
    control or on fewer prompts, so later runs can't be compared with them.

    Args:
        launches: the launches with a valid value, at least one.
        verdicts: the verdicts on the case.
        baseline: the baseline that the run recorded, or else the baseline of this machine that the
            case was compared with; None without one.
    """
    first = launches[0]
    values = {}
    launch_values = {}
    control_values = {}

    # A metric may have a verdict for each launch. A dictionary names it once, and keeps the order.
    judged_names = dict.fromkeys(verdict.metric for verdict in verdicts)
    for name in judged_names:
        measured = [launch.values[name] for launch in launches if launch.values.get(name, -1) >= 0]
        if measured:
            # A value of 0, which a goodput may have, has no logarithm, so the mean leaves it out.
            positive = [value for value in measured if value > 0]
            values[name] = 0.0
            if positive:
                values[name] = statistics.geometric_mean(positive)
        if name in METRICS:
            values_of_launches = night_values(METRICS[name], launches)
            if values_of_launches:
                launch_values[name] = values_of_launches
            values_of_control = night_control_values(METRICS[name], launches)
            if values_of_control:
                control_values[name] = values_of_control

    # Launches that measured only acceptance say nothing about the spread of speeds.
    timed_launches = [
        launch for launch in launches if any(METRICS[name].by_launch for name in launch.values)
    ]
    return RunRecord(
        run=origin.run,
        case_id=first.case.id,
        settings_sha256=settings_sha256(settings),
        engine_version=first.engine_version,
        commit=origin.commit,
        engine=first.case.server.engine,
        draft_sha256=model_sha256(first.draft) if first.draft else "",
        values=values,
        outcomes={verdict.metric: str(verdict.outcome) for verdict in verdicts},
        baseline_sha256=baseline_sha256(baseline),
        launches=len(timed_launches) or len(launches),
        launch_values=launch_values,
        control_values=control_values,
        machine=origin.machine,
        software=dict(software_of_launch(first, origin.driver_version)),
        recorded=origin.recorded,
        accepted=origin.accepted,
        lost=any(_is_lost(verdict) for verdict in verdicts),
    )


def _is_lost(verdict: Verdict) -> bool:
    """Return whether a night alone proved that the software was worse or wrong."""
    if verdict.outcome is Outcome.WRONG:
        return True
    is_power = verdict.metric in METRICS and METRICS[verdict.metric].family is Family.POWER
    if verdict.outcome is not Outcome.REGRESSED or is_power:
        # The power of a case says nothing about its other figures.
        return False

    # If all cases or the control moved, the machine may be the cause. And a loss that only several
    # nights together prove changes just one of the differences from which the spread is estimated.
    return not verdict.has_code("MACHINE_MOVED", "LASTING")


def night_values(metric: Metric, launches: Iterable[Measurement]) -> list[float]:
    """Return the value of a metric on each launch in which it is valid.

    The value of acceptance is over the prompts of the case, without those of an extension.
    """
    values = []
    for launch in launches:
        if metric.family in launch.invalid:
            continue
        value = launch.values.get(metric.name)
        if not metric.by_launch and launch.acceptance is not None:
            own_prompts = without_extension(launch.acceptance, launch.case.request.prompts)
            value = acceptance_value(metric, own_prompts)
        if value is not None:
            values.append(value)

    return values


def night_control_values(metric: Metric, launches: Iterable[Measurement]) -> list[float]:
    """Return the value of a metric of the control on each launch whose speedup is valid.

    A speedup may be invalid because of the rounds of the control.
    """
    if not metric.by_launch or metric.family is Family.SPEEDUP:
        return []
    values = []
    for launch in launches:
        if launch.replay is None or not launch.replay.control_rounds:
            continue
        if metric.family in launch.invalid or Family.SPEEDUP in launch.invalid:
            continue
        value = metric.value_of(launch.replay.control_replay)
        if value is not None and value > 0:
            values.append(value)

    return values


def record_history(path: Path, records: Iterable[RunRecord]) -> None:
    """Append records to a history.

    Raises:
        ReportError: the file can't be written.
    """
    readable = map(readable_values, records)
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in readable)
    try:
        append_lines(path, lines)
    except OSError as error:
        advice = "make room or repair its rights"
        message = f"history '{path}': this run isn't in it, {error.strerror}; {advice}"
        raise ReportError(message) from error


class _CaseOfLine(msgspec.Struct):
    """The part of a line that says whether the rest of it is needed."""

    case_id: str


def began_s(run: str) -> float:
    """Return when a run began, in seconds since 1970; infinity if its name doesn't say that.

    A run whose start is unknown counts as one of the future, and is left out.
    """
    for time_format, characters in _RUN_TIMES:
        with contextlib.suppress(ValueError):
            began = dt.datetime.strptime(run[:characters], time_format).replace(tzinfo=dt.UTC)
            return began.timestamp()
    return math.inf


def load_history(path: Path, now: dt.datetime, case_ids: Collection[str] | None = None) -> History:
    """Load a history file.

    A missing file is an empty history. Lines that can't be read are left out and counted in
    `problem`, and so are nights of the future, which would be the latest nights for years. If the
    whole file can't be read, the history is empty, and `problem` says why. If a run was resumed,
    the history has several lines for a case of this run, and the last one counts.

    Args:
        path: the file.
        now: the present time, in UTC.
        case_ids: the cases whose nights are needed; None for all cases.
    """
    try:
        lines = read_regular(path, _MAX_BYTES).splitlines()
    except FileNotFoundError:
        return History({})
    except OSError as error:
        return History(
            {}, f"history '{path}': {error.strerror}, so it isn't used; repair its rights"
        )

    case_decoder = msgspec.json.Decoder(_CaseOfLine)
    decoder = msgspec.json.Decoder(RunRecord)
    records_by_case: dict[str, dict[str, RunRecord]] = {}
    torn_lines = 0
    future_runs: list[str] = []
    for line in lines:
        try:
            if case_ids is not None and case_decoder.decode(line).case_id not in case_ids:
                continue
            record = decoder.decode(line)
            _check_record(record)
        except UNREADABLE:
            torn_lines += 1
            continue
        if began_s(record.run) > now.timestamp():
            future_runs.append(record.run)
            continue
        records_by_case.setdefault(record.case_id, {})[record.run] = record

    problems = []
    if torn_lines:
        problems.append(f"{torn_lines} line(s) can't be read")
    if future_runs:
        problems.append(f"{len(future_runs)} line(s) are of the future, such as {future_runs[0]}")
    problem = f"history '{path}': {', and '.join(problems)}; the rest is used" if problems else ""

    # The lines of another machine or branch may have been appended later than those after them.
    by_case = {
        case_id: tuple(records[run] for run in sorted(records)[-_MOST_NIGHTS:])
        for case_id, records in records_by_case.items()
    }
    return History(by_case, problem)


def _check_record(record: RunRecord) -> None:
    """Check that a record has a night, and that its logarithms can be calculated with.

    Raises:
        msgspec.ValidationError: the run began on no day of the calendar, or a value is above 0 and
            too small.
    """
    if began_s(record.run) == math.inf:
        raise msgspec.ValidationError("a run that began on no day of the calendar")
    lists = (*record.launch_values.values(), *record.control_values.values())
    for values in (record.values.values(), *lists):
        if any(0 < value < _LEAST_VALUE for value in values):
            raise msgspec.ValidationError("a value that is too small")


def noise_of(identical: Sequence[RunRecord], spreads: Mapping[str, Spread]) -> dict[str, Noise]:
    """Estimate how much identical runs vary beyond the variation of their launches.

    For runs with k launches each, the variance between runs is
    s_b² = var(ln x over the runs) - s_w² / k, and at least 0.

    Args:
        identical: the runs of one case with the same settings, engine and draft.
        spreads: how the launches of each metric vary within a run.

    Returns:
        The noise of each metric that has a spread and was measured in at least five runs.
    """
    noise_by_metric = {}
    for name, spread in spreads.items():
        runs = [record for record in identical if record.values.get(name, 0) > 0]
        if len(runs) >= _FEWEST_RUNS:
            # A run's value is a mean over its launches, so only 1/k of their variance is left.
            mean_inverse_launches = statistics.fmean(1 / record.launches for record in runs)
            within_variance = spread.within_frac**2 * mean_inverse_launches
            logs = [math.log(record.values[name]) for record in runs]
            total_variance = statistics.variance(logs)
            # The difference of two estimates may fall below 0 by chance.
            between_variance = max(total_variance - within_variance, 0.0)
            between_frac = math.sqrt(between_variance)
            noise_by_metric[name] = Noise(between_frac=between_frac, runs=len(runs))

    return noise_by_metric


def identical_to(
    records: Iterable[RunRecord], settings: CaseSettings, engine_version: str, draft_sha256: str
) -> list[RunRecord]:
    """Return the runs with the same settings, engine version and draft, but none with a loss."""
    identity = (settings_sha256(settings), engine_version, draft_sha256)
    identical = []
    for record in records:
        record_identity = (record.settings_sha256, record.engine_version, record.draft_sha256)
        if record_identity == identity and not record.lost:
            identical.append(record)
    return identical
