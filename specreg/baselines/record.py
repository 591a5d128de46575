"""Record a baseline from the launches of a case, if they agree."""

import datetime as dt
import itertools
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import specreg
from specreg.baselines import schema
from specreg.baselines.comparison import change_of_acceptance, devices_of, why_held_back
from specreg.baselines.schema import Baseline, load_baseline
from specreg.baselines.store import BaselineStore
from specreg.core.errors import BaselineError, InvalidMeasurementError
from specreg.core.files import replace_file
from specreg.core.reasons import Invalidity
from specreg.core.values import readable_values
from specreg.matrix.case import Case, CaseSettings
from specreg.matrix.models import model_sha256
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, SPOILS, Family, Invalid, render_invalid
from specreg.stats.intervals import LEVELS, Look
from specreg.telemetry.sensor import SCRIPTED

COMMIT = "SPECREG_COMMIT"
_SAME_AL_FRAC = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBaseline:
    """A baseline that was written, and what it replaced; `left_out`: what isn't in it, and why."""

    path: Path
    old: Baseline | None
    new: Baseline
    left_out: str = ""


def record_measurements(
    measurements: Sequence[Measurement],
    settings: CaseSettings,
    store: BaselineStore,
    *,
    reason: str,
    torch_version: str = "",
    driver_version: str = "",
    complete: Callable[[Baseline], Baseline] = lambda baseline: baseline,
) -> RecordedBaseline:
    """Write the baseline of one case from the measurements of its launches.

    Of metrics that mean nothing in a launch what was recorded before is kept; of the acceptances
    that with the most prompts. `reason` may be empty, for the engine, its version and the commit;
    `complete` adds how identical runs differed, and what a run can tell against such a baseline.

    Raises:
        BaselineError: nothing of a measurement may be recorded, the launches disagree, the file
            that is there can't be read, or the disk refuses. Nothing is written then.
    """
    first = measurements[0]
    path = store.path(first.case.id)
    old = load_baseline(path)
    invalid = _invalid_of(measurements, old)
    alone = first.acceptance is None and invalid.keys() - {Family.POWER}
    if Family.ACCEPTANCE in invalid or alone:
        raise _refusal(first.case, str(next(iter(invalid.values()))))
    for name in (*store.environment.gpus, *(one.name for one in devices_of(measurements))):
        if name.startswith(SCRIPTED):
            why = f"'{name}' is a device that a test made up; measure on a real one"
            raise _refusal(first.case, why)
    _check_acceptance_agrees(measurements)
    speeds = _speeds_of(measurements, invalid)
    kept = old if old is not None and old.case == settings else None
    launches = _beside_kept(speeds, kept.launches, invalid) if kept is not None else speeds
    acceptances = [one.acceptance for one in measurements if one.acceptance]
    fullest = max(acceptances, key=lambda one: len(one.prompts), default=None)
    devices = kept.devices if kept is not None else ()
    if speeds and Family.POWER not in invalid:
        devices = devices_of(measurements)
    commit = commit_of(store.folder.parent)
    of_engine = f"{settings.engine} {first.engine_version}"
    baseline = Baseline(
        schema_version=schema.SCHEMA_VERSION,
        case=settings,
        environment=store.environment,
        provenance=schema.Provenance(
            engine_version=first.engine_version,
            draft_sha256=model_sha256(first.draft) if first.draft else "",
            specreg_version=specreg.__version__,
            commit=commit,
            recorded_on=dt.datetime.now(tz=dt.UTC).date().isoformat(),
            reason=reason or (f"{of_engine} at {commit[:7]}" if commit else of_engine),
            driver_version=driver_version,
            torch_version=torch_version,
        ),
        acceptance=schema.stored_acceptance(fullest),
        launches=launches,
        devices=devices,
        # How hours differ is the machine's: what is known of it outlives an engine's version.
        noise=kept.noise if kept else {},
    )
    baseline = complete(baseline)
    record_baseline(path, baseline)
    why = render_invalid(invalid)
    left_out = f"baseline of '{first.case.id}': written without {why}" if why else ""
    return RecordedBaseline(path=path, old=old, new=baseline, left_out=left_out)


def record_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline; the file is the old or the new one at any moment, never a torn one.

    Raises:
        BaselineError: the file that is there can't be read, and so isn't overwritten; this one
            couldn't be read either; or the disk refuses.
    """
    load_baseline(path)
    try:
        schema.check_figures(baseline)
        replace_file(path, schema.render_baseline(readable_values(baseline)).encode())
    except (InvalidMeasurementError, OSError) as error:
        advice = "raise the limits, or look at the figures of the run"
        if isinstance(error, OSError):
            advice = "make room or mend its rights"
        message = f"baseline '{path}': not written, {schema.why_unusable(b'', error)}; {advice}"
        raise BaselineError(message) from error


def _invalid_of(measurements: Sequence[Measurement], old: Baseline | None) -> Invalid:
    """Say by family why nothing of it is recorded: it is invalid in one launch or more."""
    invalid: dict[Family, Invalidity] = {}
    held_back = why_held_back(measurements, old)
    if held_back is not None:
        advice = "if it is to run so from now on, remove the baseline first"
        invalidity = Invalidity(held_back.code, f"{held_back.text}; {advice}")
        invalid.update(dict.fromkeys(SPOILS[held_back.code], invalidity))
    for measurement in measurements:
        power = measurement.replay.power if measurement.replay else None
        if power is not None and power.invalid is not None:
            invalid[Family.POWER] = power.invalid
    for measurement in measurements:
        invalid.update(measurement.invalid)
    return invalid


def _speeds_of(
    measurements: Sequence[Measurement], invalid: Invalid
) -> tuple[dict[str, float], ...]:
    """Return the speeds of the launches; none where one launch has no valid speed.

    One launch alone tells none: acceptance is recorded then.
    """
    if len(measurements) == 1:
        if measurements[0].acceptance is not None:
            return ()
        why = "one launch tells no speed, and there is no acceptance; leave out --specreg-launches"
        raise _refusal(measurements[0].case, why)
    rows = [
        {
            name: value
            for name, value in one.values.items()
            if METRICS[name].by_launch and METRICS[name].family not in invalid
        }
        for one in measurements
    ]
    return tuple(rows) if all(rows) or not invalid else ()


def _beside_kept(
    speeds: Sequence[Mapping[str, float]], kept: Sequence[Mapping[str, float]], invalid: Invalid
) -> tuple[dict[str, float], ...]:
    """Return the launches; metrics that aren't recorded now keep their earlier values."""
    if not speeds:
        return tuple(map(dict, kept))
    left = [
        {name: row[name] for name in row if name in METRICS and METRICS[name].family in invalid}
        for row in kept
    ]
    none: Mapping[str, float] = {}
    pairs = itertools.zip_longest(left if any(left) else [], speeds, fillvalue=none)
    return tuple({**before, **now} for before, now in pairs)


def _check_acceptance_agrees(measurements: Sequence[Measurement]) -> None:
    """Check that no launch's AL differs from the first's by more than 0.5 % and chance allows.

    Over the prompts that both replayed; of a source that knows the sum only, by more than 0.5 %.
    """
    records = [one.acceptance for one in measurements if one.acceptance is not None]
    for other in records[1:]:
        change = change_of_acceptance(METRICS["acceptance_length_tokens"], other, records[0])
        low, high = change.bounds(LEVELS[Look.FULL]) if change else (1.0, 1.0)
        ids = {one.prompt_id for one in other.prompts}
        ids &= {one.prompt_id for one in records[0].prompts}
        alike = [one.only(ids) if ids else one for one in (records[0], other)]
        both = [one.total.acceptance_length or 1.0 for one in alike]
        if not low <= 0 <= high and abs(both[0] - both[1]) > _SAME_AL_FRAC * min(both):
            lengths = ", ".join(f"{one:.4f}" for one in both)
            why = f"its launches disagree on the acceptance length ({lengths}); find out why first"
            raise _refusal(measurements[0].case, why)


def _refusal(case: Case, why: str) -> BaselineError:
    return BaselineError(f"baseline of '{case.id}': not written, {why}")


def commit_of(folder: Path) -> str:
    """The commit that a folder is at, empty outside a repository or without git.

    Of a copy without its repository it is what the variable SPECREG_COMMIT says.
    """
    if (told := os.environ.get(COMMIT)) is not None:
        return told
    command = ("git", "-C", str(folder), "rev-parse", "--short=12", "HEAD")
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    except OSError:
        return ""
    return done.stdout.strip()
