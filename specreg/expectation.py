"""What is expected of a case: its settings and its baselines, looked up and written."""

import datetime as dt
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import specreg
from specreg.baseline import (
    SCHEMA_VERSION,
    Baseline,
    CaseSettings,
    Provenance,
    baseline_path,
    load_baseline,
    load_baselines,
    record_baseline,
    stored_acceptance,
)
from specreg.datasets import Prompt
from specreg.datasets._dataset import prompts_sha256
from specreg.errors import BaselineError
from specreg.identity import Environment
from specreg.matrix import Case
from specreg.measurement import Measurement
from specreg.metrics import METRICS
from specreg.models import model_sha256
from specreg.verdict import Known, differing_settings

_SAME_AL_FRAC = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A baseline that was written: its path, the one it replaced (None if new) and itself."""

    path: Path
    old: Baseline | None
    new: Baseline


def settings_of(measurement: Measurement, prompts: Sequence[Prompt]) -> CaseSettings:
    """What must be equal for another measurement to be compared with this one."""
    case, server = measurement.case, measurement.case.server
    target_sha256 = model_sha256(measurement.target)
    return CaseSettings(
        engine=server.engine,
        method=server.method,
        draft_tokens=server.draft_tokens,
        target_sha256=target_sha256,
        # A folder's place on the disk says nothing; a hub id is all there is.
        target="" if target_sha256 else server.target,
        prompts_sha256=prompts_sha256(prompts[: case.prompts]),
        output_cap_tokens=case.output_cap_tokens,
        temperature=case.temperature,
        concurrency=case.load.concurrency,
        rounds=case.rounds,
        dtype=server.dtype,
        max_model_len_tokens=server.max_model_len_tokens,
        max_sequences=server.max_sequences,
        engine_args=server.engine_args,
        engine_env=server.engine_env,
        arrivals=case.load.arrivals,
        requests_per_s=case.load.requests_per_s,
        burstiness=case.load.burstiness,
        ramp_up_s=case.load.ramp_up_s,
        duration_s=case.load.duration_s,
        turns=case.turns,
        form=case.form,
        chat_template_args=case.chat_template_args,
        ignore_eos=case.ignore_eos,
        limits=case.limits,
    )


def look_up(folder: Path, case: Case, settings: CaseSettings, environment: Environment) -> Known:
    """What the baselines in `folder` know of a case.

    Raises:
        BaselineError: one of them can't be read.
    """
    exact = load_baseline(baseline_path(folder, environment.name, case.id))
    if exact is not None and exact.environment != environment:
        exact = None
    others = [
        baseline
        for baseline in load_baselines(folder, f"*/{case.id}.json")
        if not differing_settings(baseline.case, settings)
    ]
    return Known(
        environment=environment,
        settings=settings,
        exact=exact,
        nearest=max(others, key=lambda other: _likeness(other.environment, environment))
        if others
        else None,
        neighbours=load_baselines(folder, f"{environment.name}/*.json"),
    )


def record_measurements(
    folder: Path,
    measurements: Sequence[Measurement],
    settings: CaseSettings,
    environment: Environment,
    *,
    reason: str,
) -> Recorded:
    """Writes the baseline of one case from the measurements of its launches.

    Args:
        folder: of all baselines.
        measurements: one at least, of one case, one for each launch.
        settings: of that case.
        environment: where it was measured.
        reason: why it is recorded.

    Raises:
        BaselineError: a measurement is invalid, the launches disagree on acceptance, or the file
            that is there can't be read. Nothing is written then.
    """
    first = measurements[0]
    _check_agreement(measurements)
    baseline = Baseline(
        schema_version=SCHEMA_VERSION,
        case=settings,
        environment=environment,
        provenance=Provenance(
            engine_version=first.engine_version,
            draft_sha256=model_sha256(first.draft) if first.draft else "",
            specreg_version=specreg.__version__,
            commit=_commit(folder.parent),
            recorded_on=dt.datetime.now(tz=dt.UTC).date().isoformat(),
            reason=reason,
        ),
        acceptance=stored_acceptance(first.acceptance),
        launches=tuple(
            {name: v for name, v in launch.values.items() if METRICS[name].by_launch}
            for launch in measurements
        ),
    )
    path = baseline_path(folder, environment.name, first.case.id)
    old = load_baseline(path)
    record_baseline(path, baseline)
    return Recorded(path=path, old=old, new=baseline)


def _check_agreement(measurements: Sequence[Measurement]) -> None:
    case_id = measurements[0].case.id
    for measurement in measurements:
        if measurement.invalid is not None:
            message = f"baseline of '{case_id}': not written, {measurement.invalid}"
            raise BaselineError(message)
    lengths = [m.values.get("acceptance_length_tokens", 1.0) for m in measurements]
    if max(lengths) - min(lengths) > _SAME_AL_FRAC * min(lengths):
        message = (
            f"baseline of '{case_id}': not written, its launches disagree on the acceptance"
            f" length ({', '.join(f'{length:.4f}' for length in lengths)}); find out why first"
        )
        raise BaselineError(message)


def _likeness(one: Environment, other: Environment) -> int:
    """How many facts two environments share."""
    return sum(
        getattr(one, field) == getattr(other, field) for field in Environment.__struct_fields__
    )


def _commit(folder: Path) -> str:
    """The commit that a folder is at, empty outside a repository or without git."""
    command = ("git", "-C", str(folder), "rev-parse", "--short=12", "HEAD")
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    except OSError:
        return ""
    return done.stdout.strip()
