"""Record the baseline of a case from its launches, if they agree with each other."""

import datetime as dt
import itertools
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import specreg
from specreg.acceptance.record import NO_STEPS, AcceptanceRecord
from specreg.baselines import schema
from specreg.baselines.comparison import (
    change_of_acceptance,
    clock_invalidity,
    describe_nothing_accepted,
    recorded_devices_of,
)
from specreg.baselines.packages import record_packages
from specreg.baselines.schema import Baseline, load_baseline
from specreg.baselines.store import BaselineStore
from specreg.core.catalogue import CATALOGUE
from specreg.core.errors import BaselineError, InvalidMeasurementError
from specreg.core.families import Family
from specreg.core.files import MIB, replace_file
from specreg.core.reasons import Reason
from specreg.core.values import readable_values
from specreg.matrix.case import Case, CaseSettings
from specreg.matrix.models import model_sha256
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Invalid, metrics_of, render_invalid
from specreg.servers.installer import packages_sha256
from specreg.stats.intervals import LEVELS, Look
from specreg.telemetry.identity import Environment
from specreg.telemetry.sensor import SCRIPTED

COMMIT = "SPECREG_COMMIT"
"""The environment variable that names the commit of a copy without its repository."""
_SAME_AL_FRAC = 0.005
"""Two acceptance lengths count as equal if they differ by no more than this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBaseline:
    """A baseline that was written.

    Attributes:
        path: the file.
        old: the baseline that it replaced; None for a new file.
        new: the baseline that it contains.
        left_out: a sentence that says which invalid metric families have no new values, and why;
            empty if none is invalid.
    """

    path: Path
    old: Baseline | None
    new: Baseline
    left_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingNotes:
    """Notes about a recording that the measurements don't contain.

    Attributes:
        reason: the text of `--reason`. If it is empty, the baseline names the engine, its version
            and the commit instead.
        torch_version: the version of torch in the engine's environment; empty if unknown.
        driver_version: the version of the GPU's driver; empty without a GPU.
    """

    reason: str = ""
    torch_version: str = ""
    driver_version: str = ""


def record_measurements(
    measurements: Sequence[Measurement],
    settings: CaseSettings,
    store: BaselineStore,
    notes: RecordingNotes,
    complete: Callable[[Baseline], Baseline] = lambda baseline: baseline,
) -> RecordedBaseline:
    """Write the baseline of one case from the measurements of its launches.

    A metric family that is invalid in a launch keeps the values of the earlier baseline, if the
    settings are still the same.

    Args:
        measurements: the measurement of each launch of the case, at least one.
        settings: the settings that a run must share to be compared.
        store: the baselines of this machine, among which the file is written.
        notes: the reason for the recording, and versions that the measurements don't contain.
        complete: adds the noise of identical runs, and the minimum detectable effects.

    Raises:
        BaselineError: nothing may be recorded, the launches disagree, the existing file can't be
            read, or the new one can't be written. The existing file is then unchanged.
    """
    # Check that the measurements may become a baseline.
    case = measurements[0].case
    path = store.path(case.id)
    old = load_baseline(path)
    invalid = _invalid_of(measurements, old)
    _check_recordable(measurements, invalid, store.environment)

    # Take over the valid speeds, and the earlier values of the other families if the settings
    # are the same.
    comparable_old = old if old is not None and old.case == settings else None
    speeds = _speeds_of(measurements, invalid)
    launches = speeds
    devices: tuple[schema.RecordedDevice, ...] = ()
    if comparable_old is not None:
        launches = _with_earlier_speeds(speeds, comparable_old.launches, invalid)
        devices = comparable_old.devices
    if speeds and Family.POWER not in invalid:
        devices = recorded_devices_of(measurements)

    # Build the baseline and write it.
    noise: dict[str, schema.Noise] = {}
    if comparable_old is not None:
        # The noise comes from the machine, so it remains valid when the engine changes.
        noise = comparable_old.noise
    measured_baseline = Baseline(
        schema_version=schema.BASELINE_SCHEMA_VERSION,
        case=settings,
        environment=store.environment,
        provenance=_provenance_of(measurements[0], settings, store, notes),
        acceptance=_stored_acceptance(measurements),
        launches=launches,
        devices=devices,
        noise=noise,
    )
    baseline = complete(measured_baseline)
    record_packages(path.parent, measurements[0].packages)
    record_baseline(path, baseline)
    left_out = ""
    if invalid:
        left_out = (
            f"baseline of '{case.id}': written without new values of {render_invalid(invalid)}"
        )

    return RecordedBaseline(path=path, old=old, new=baseline, left_out=left_out)


def _check_recordable(
    measurements: Sequence[Measurement], invalid: Invalid, environment: Environment
) -> None:
    """Check that the measurements of a case may be recorded.

    Raises:
        BaselineError: acceptance is invalid; there is no acceptance, and a speed is invalid; a test
            made up a device; the launches disagree; or no draft was accepted.
    """
    first = measurements[0]

    # Without acceptance, the speeds are all there is to record. Power may be missing, because it is
    # recorded separately.
    indispensable = {Family.ACCEPTANCE}
    if first.acceptance is None:
        indispensable = set(Family) - {Family.POWER}
    for family, invalidity in invalid.items():
        if family in indispensable:
            raise _refusal(first.case, str(invalidity))
    device_names = [device.name for device in recorded_devices_of(measurements)]
    for name in (*environment.gpus, *device_names):
        if name.startswith(SCRIPTED):
            problem = f"'{name}' is a device that a test made up; measure on a real one"
            raise _refusal(first.case, problem)

    _check_acceptance_agrees(measurements)
    _check_accepted(measurements)


def _provenance_of(
    measurement: Measurement, settings: CaseSettings, store: BaselineStore, notes: RecordingNotes
) -> schema.Provenance:
    """Return where a baseline comes from. Without a reason, it names the engine and the commit."""
    commit = commit_of(store.folder.parent)
    usual_reason = f"{settings.engine} {measurement.engine_version}"
    if commit:
        usual_reason += f" at {commit[:7]}"
    draft_sha256 = ""
    if measurement.draft:
        draft_sha256 = model_sha256(measurement.draft)

    # The date in UTC doesn't depend on where the machine is.
    today = dt.datetime.now(tz=dt.UTC).date()
    return schema.Provenance(
        engine_version=measurement.engine_version,
        draft_sha256=draft_sha256,
        specreg_version=specreg.__version__,
        commit=commit,
        recorded_on=today.isoformat(),
        reason=notes.reason or usual_reason,
        driver_version=notes.driver_version,
        torch_version=notes.torch_version,
        packages_sha256=packages_sha256(measurement.packages),
        facts=measurement.facts,
    )


def _stored_acceptance(measurements: Sequence[Measurement]) -> schema.StoredAcceptance | None:
    """Return the acceptance of all launches, beginning with the one with the most prompts."""
    records = [launch.acceptance for launch in measurements if launch.acceptance is not None]
    if not records:
        return None
    fullest = max(records, key=lambda record: len(record.prompt_ids))
    further = [record for record in records if record is not fullest]
    return schema.stored_acceptance(fullest, *further)


def record_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline, whole or not at all.

    Raises:
        BaselineError: the existing file can't be read, so it isn't overwritten. Or the new one
            couldn't be read again, because a figure is impossible or the file would be too large.
            Or the file can't be written.
    """
    # This raises if the existing file can't be read.
    load_baseline(path)
    try:
        schema.check_figures(baseline)
        content = schema.render_baseline(readable_values(baseline)).encode()
        if len(content) > schema.MAX_BASELINE_BYTES:
            limit_mib = schema.MAX_BASELINE_BYTES / MIB
            size = f"{len(content) / MIB:.1f} MiB, and {limit_mib:g} are read at most"
            advice = "record it with fewer launches, or fewer prompts"
            raise BaselineError(f"baseline '{path}': not written, it has {size}; {advice}")
        replace_file(path, content)
    except (InvalidMeasurementError, OSError) as error:
        # A goodput is 0 if no request kept the limits of the case.
        advice = "raise the limits of the case, or look at the figures of the run"
        if isinstance(error, OSError):
            advice = "make room or repair its rights"
        message = f"baseline '{path}': not written, {schema.why_unusable(b'', error)}; {advice}"
        raise BaselineError(message) from error


def _invalid_of(measurements: Sequence[Measurement], old: Baseline | None) -> Invalid:
    """Return, for each family that was invalid in any launch, why it isn't recorded."""
    invalid: dict[Family, Reason] = {}
    low_clock = clock_invalidity(measurements, old)
    if low_clock is not None:
        invalid.update(dict.fromkeys(CATALOGUE[low_clock.code].spoils, low_clock))
    for measurement in measurements:
        power = measurement.replay.power if measurement.replay else None
        if power is not None and power.invalid is not None:
            invalid[Family.POWER] = power.invalid

    # These reasons take precedence, so they come last.
    for measurement in measurements:
        invalid.update(measurement.invalid)
    return invalid


def _speeds_of(
    measurements: Sequence[Measurement], invalid: Invalid
) -> tuple[dict[str, float], ...]:
    """Return the speeds of each launch; empty if an invalidity leaves a launch without speeds.

    A single launch doesn't show how launches vary, so only its acceptance is recorded, and the
    result is empty.

    Raises:
        BaselineError: there is a single launch, and it has no acceptance.
    """
    first = measurements[0]
    if len(measurements) == 1:
        if first.acceptance is not None:
            return ()
        problem = (
            "one launch gives no speed to record, and there is no acceptance; leave out"
            " --specreg-launches"
        )
        raise _refusal(first.case, problem)

    launches = tuple(_valid_speeds(measurement, invalid) for measurement in measurements)
    has_launch_without_speed = not all(launches)
    if invalid and has_launch_without_speed:
        return ()
    return launches


def _valid_speeds(measurement: Measurement, invalid: Invalid) -> dict[str, float]:
    """Return those speeds of a launch whose families are valid in all launches."""
    speeds = {}
    for name, value in measurement.values.items():
        metric = METRICS[name]
        is_valid = metric.by_launch and metric.family not in invalid
        if is_valid and metric.is_recordable(value):
            speeds[name] = value
    return speeds


def _with_earlier_speeds(
    speeds: Sequence[Mapping[str, float]],
    earlier_launches: Sequence[Mapping[str, float]],
    invalid: Invalid,
) -> tuple[dict[str, float], ...]:
    """Return the new launches, with the earlier values of the families that are invalid now.

    Without new speeds, these are all launches of the earlier baseline.

    Args:
        speeds: the valid speeds of each new launch; empty if there are none.
        earlier_launches: the speeds of each launch of the earlier baseline.
        invalid: the families that are invalid now.
    """
    if not speeds:
        return tuple(dict(launch) for launch in earlier_launches)
    earlier_speeds = [_speeds_in(invalid.keys(), launch) for launch in earlier_launches]

    # Without earlier values of these families, nothing is added to the new launches. (If there
    # were more earlier launches than new ones, the pairs below would add launches without speeds.)
    if not any(earlier_speeds):
        return tuple(dict(launch) for launch in speeds)
    no_speeds: Mapping[str, float] = {}
    pairs = itertools.zip_longest(earlier_speeds, speeds, fillvalue=no_speeds)
    return tuple({**earlier, **measured} for earlier, measured in pairs)


def _speeds_in(families: AbstractSet[Family], launch: Mapping[str, float]) -> dict[str, float]:
    """Return the speeds of a launch that belong to these families."""
    return {
        name: value
        for name, value in launch.items()
        if name in METRICS and METRICS[name].family in families
    }


def _check_acceptance_agrees(measurements: Sequence[Measurement]) -> None:
    """Check that the launches of a case have the same acceptance length (AL).

    The AL of a launch may differ from the first one by 0.5 %, or by as much as chance explains over
    the prompts that both replayed. If only a total is known, no more than 0.5 % is allowed.

    Raises:
        BaselineError: two launches disagree.
    """
    records = [launch.acceptance for launch in measurements if launch.acceptance is not None]
    for record in records[1:]:
        if _differs_by_chance(records[0], record):
            continue
        first_length, length = _common_lengths(records[0], record)
        allowed_tokens = _SAME_AL_FRAC * min(first_length, length)
        if abs(first_length - length) > allowed_tokens:
            problem = (
                f"its launches disagree on the acceptance length ({first_length:.4f},"
                f" {length:.4f}); find the cause first"
            )
            raise _refusal(measurements[0].case, problem)


def _check_accepted(measurements: Sequence[Measurement]) -> None:
    """Check that some draft was accepted, if the acceptance of the case is judged.

    Against a baseline in which nothing was accepted, no loss could ever show.

    Raises:
        BaselineError: no launch accepted a draft.
    """
    case = measurements[0].case
    judged = metrics_of(case, Family.ACCEPTANCE)
    records = [launch.acceptance for launch in measurements if launch.acceptance is not None]
    if not judged or not records:
        return
    counts = sum((record.total for record in records), NO_STEPS)
    nothing = describe_nothing_accepted(counts)
    if not nothing:
        return
    problem = "nothing was drafted"
    if counts.steps:
        problem = f"{nothing} was accepted"
    names = ", ".join(metric.name for metric in judged)
    raise _refusal(
        case,
        f"{problem}, so no loss of acceptance could ever show;"
        f" {CATALOGUE['nothing_accepted'].remedy}, or add {names} to 'shown' in the tier",
    )


def _differs_by_chance(first: AcceptanceRecord, record: AcceptanceRecord) -> bool:
    """Return whether chance explains the difference between two acceptance lengths."""
    change = change_of_acceptance(METRICS["acceptance_length_tokens"], record, first)
    if change is None:
        return False
    low, high = change.bounds(LEVELS[Look.FULL])
    return low <= 0 <= high


def _common_lengths(first: AcceptanceRecord, record: AcceptanceRecord) -> tuple[float, float]:
    """Return the AL of two records, over their common prompts if they have any."""
    common_ids = {*first.prompt_ids} & {*record.prompt_ids}
    if common_ids:
        first = first.only(common_ids)
        record = record.only(common_ids)
    return first.total.acceptance_length or 1.0, record.total.acceptance_length or 1.0


def _refusal(case: Case, problem: str) -> BaselineError:
    """Return the error that the baseline of a case isn't written."""
    return BaselineError(f"baseline of '{case.id}': not written, {problem}")


def commit_of(folder: Path) -> str:
    """Return the commit of the repository that a folder is in; empty without a repository or git.

    The environment variable SPECREG_COMMIT overrides it, for a copy without its repository.
    """
    commit = os.environ.get(COMMIT)
    if commit is not None:
        return commit

    command = ("git", "-C", str(folder), "rev-parse", "--short=12", "HEAD")
    try:
        completed = subprocess.run(  # noqa: S603
            command, check=False, capture_output=True, text=True
        )
    except OSError:
        return ""

    return completed.stdout.strip()
