"""What is expected of a case: its settings and its baselines, looked up and written."""

import contextlib
import dataclasses
import datetime as dt
import functools
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

import specreg
from specreg.acceptance.record import AcceptanceRecord
from specreg.acceptance.table import counts_table
from specreg.baseline import (
    SCHEMA_VERSION,
    Baseline,
    CaseSettings,
    LaunchesOnly,
    Provenance,
    baseline_path,
    load_baseline,
    load_baselines,
    load_launches,
    load_replaceable,
    record_baseline,
    stored_acceptance,
)
from specreg.comparison import Known, differing_settings, spreads_of
from specreg.datasets import Prompt, dataset_named
from specreg.datasets._dataset import prompts_sha256
from specreg.errors import BaselineError, DatasetError
from specreg.history import Lived, noise_of
from specreg.identity import Environment, find_gpus
from specreg.intervals import FEWEST_PROMPTS, Spread, change_of_ratio
from specreg.matrix import Case
from specreg.measurement import Measurement
from specreg.metrics import METRICS, Metric, ratio_parts
from specreg.models import model_sha256, resolve_model
from specreg.protocols import Form
from specreg.published import Published, load_published, published_for
from specreg.sequential import Look
from specreg.verdict import own_tolerance_frac

_SAME_AL_FRAC = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A baseline that was written: its path, the one it replaced (None if new) and itself."""

    path: Path
    old: Baseline | None
    new: Baseline


def load_case_prompts(root: Path, case: Case) -> tuple[Prompt, ...]:
    """The prompts of a case and of its extension, as far as the dataset has them.

    Raises:
        DatasetError: the dataset can't be read, holds fewer than the case asks for, or token ids
            for a chat.
    """
    prompts = dataset_named(case.dataset).load_prompts(root)
    if len(prompts) < case.prompts:
        message = (
            f"dataset '{case.dataset}': has {len(prompts)} prompts, '{case.id}' asks for"
            f" {case.prompts}; lower prompts in the matrix"
        )
        raise DatasetError(message)
    check_form(case, prompts)
    return prompts[: 2 * case.prompts]


def check_form(case: Case, prompts: Iterable[Prompt]) -> None:
    """Token ids are no chat.

    Raises:
        DatasetError: the case puts them into one.
    """
    if case.form is Form.CHAT and any(prompt.token_ids for prompt in prompts):
        message = (
            f"dataset '{case.dataset}': its prompts are token ids, which are no chat;"
            f" set form = \"completions\" for '{case.id}' in the matrix"
        )
        raise DatasetError(message)


def settings_in(root: Path, case: Case) -> CaseSettings:
    """The settings of a case, with the files of a repository."""
    spec = case.server
    target = resolve_model(root, spec.target, padding_layers=spec.padding_layers)
    return settings_of(case, target, load_case_prompts(root, case))


def settings_of(case: Case, target: str, prompts: Sequence[Prompt]) -> CaseSettings:
    """What must be equal for another measurement of a case to be compared with one of this.

    Args:
        case: what is measured.
        target: the folder or hub id that is served.
        prompts: of the dataset, in its order; those of a run and of its extension count.
    """
    server = case.server
    target_sha256 = model_sha256(target)
    return CaseSettings(
        engine=server.engine,
        method=server.method,
        draft_tokens=server.draft_tokens,
        target_sha256=target_sha256,
        # A folder's place on the disk says nothing; a hub id is all there is.
        target="" if target_sha256 else server.target,
        prompts_sha256=prompts_sha256(prompts[: 2 * case.prompts]),
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


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """The baselines that apply to one machine; what all cases share is read once.

    Attributes:
        folder: of all baselines.
        environment: where is measured.
    """

    folder: Path
    environment: Environment

    @functools.cached_property
    def spreads(self) -> Mapping[str, Spread]:
        """By metric, how launches of this machine differ."""
        return spreads_of(load_launches(self.folder / self.environment.name))

    @functools.cached_property
    def published(self) -> tuple[Published, ...]:
        """The published figures.

        Raises:
            BaselineError: one of them can't be read.
        """
        return load_published(self.folder)

    def path(self, case_id: str) -> Path:
        """Where a case's baseline lies."""
        return baseline_path(self.folder, self.environment.name, case_id)

    def look_up(self, case: Case, settings: CaseSettings) -> Known:
        """What is known of a case.

        Raises:
            BaselineError: its baseline can't be read.
        """
        exact = self._exact(case)
        nearest = None if exact else self._nearest(case, settings)
        known = exact is not None or nearest is not None
        return Known(
            environment=self.environment,
            settings=settings,
            exact=exact,
            nearest=nearest,
            published=None if known else published_for(case, self.published),
            control=self._control(case, settings),
            spreads=self.spreads,
        )

    def unused(self, case_ids: Iterable[str]) -> tuple[Path, ...]:
        """The files of this machine that none of the cases asks for."""
        wanted = {self.path(case_id) for case_id in case_ids}
        return tuple(sorted(set(self.path("any").parent.glob("*.json")) - wanted))

    def _exact(self, case: Case) -> Baseline | None:
        found = load_baseline(self.path(case.id))
        return found if found is not None and found.environment == self.environment else None

    def _nearest(self, case: Case, settings: CaseSettings) -> Baseline | None:
        """Of the other machines' baselines with the same settings, the likest machine's."""
        alike = [
            baseline
            for baseline in load_baselines(self.folder, f"*/{case.id}.json")
            if not differing_settings(baseline.case, settings)
        ]
        return max(
            alike, key=lambda other: _likeness(other.environment, self.environment), default=None
        )

    def _control(self, case: Case, settings: CaseSettings) -> Baseline | None:
        """The baseline of the same load without speculation, with the same settings else."""
        if case.control is None:
            return None
        with contextlib.suppress(BaselineError):  # it turns its own case red
            found = self._exact(dataclasses.replace(case, server=case.control, control=None))
            wanted = msgspec.structs.replace(settings, method="none", draft_tokens=0)
            if found is not None and not differing_settings(found.case, wanted):
                return found
        return None


def record_measurements(
    measurements: Sequence[Measurement],
    settings: CaseSettings,
    shelf: Shelf,
    *,
    reason: str,
    torch_version: str = "",
    identical: Sequence[Lived] = (),
) -> Recorded:
    """Writes the baseline of one case from the measurements of its launches.

    Args:
        measurements: one at least, of one case, one for each launch; the acceptance of the one
            with the most prompts is kept.
        settings: of that case.
        shelf: where to put it.
        reason: why it is recorded.
        torch_version: what the engine ran with, as far as is known.
        identical: earlier runs with the same settings, engine and draft.

    Raises:
        BaselineError: a measurement is invalid, the launches disagree, or the file that is there
            can't be read. Nothing is written then.
    """
    first = measurements[0]
    _check_valid(measurements)
    _check_acceptance_agrees(measurements)
    _check_speeds_agree(measurements)
    path = shelf.path(first.case.id)
    old = load_replaceable(path)
    kept = old if old is not None and old.case == settings else None
    launches = _launches_of(measurements, kept)
    fullest = max(measurements, key=_prompts_measured)
    noise = noise_of(identical, spreads_of((LaunchesOnly(launches=launches),)))
    baseline = Baseline(
        schema_version=SCHEMA_VERSION,
        case=settings,
        environment=shelf.environment,
        provenance=Provenance(
            engine_version=first.engine_version,
            draft_sha256=model_sha256(first.draft) if first.draft else "",
            specreg_version=specreg.__version__,
            commit=_commit(shelf.folder.parent),
            recorded_on=dt.datetime.now(tz=dt.UTC).date().isoformat(),
            reason=reason,
            driver_version=find_gpus().driver_version,
            torch_version=torch_version,
        ),
        acceptance=stored_acceptance(fullest.acceptance),
        launches=launches,
        # How hours differ is the machine's: what is known of it outlives an engine's version.
        noise={**(kept.noise if kept else {}), **noise},
    )
    record_baseline(path, baseline)
    return Recorded(path=path, old=old, new=baseline)


def _launches_of(
    measurements: Sequence[Measurement], kept: Baseline | None
) -> tuple[dict[str, float], ...]:
    """The speeds of the launches. One launch alone tells none: acceptance is recorded then.

    Raises:
        BaselineError: there is no acceptance to record either.
    """
    if len(measurements) > 1:
        return tuple(
            {name: v for name, v in one.values.items() if METRICS[name].by_launch}
            for one in measurements
        )
    if measurements[0].acceptance is None:
        message = (
            f"baseline of '{measurements[0].case.id}': not written, one launch tells no speed, and"
            " there is no acceptance; leave out --specreg-launches"
        )
        raise BaselineError(message)
    return kept.launches if kept is not None else ()


def _prompts_measured(measurement: Measurement) -> int:
    return len(measurement.acceptance.prompts) if measurement.acceptance else 0


def _check_valid(measurements: Sequence[Measurement]) -> None:
    for measurement in measurements:
        if measurement.invalid is not None:
            case_id = measurement.case.id
            raise BaselineError(f"baseline of '{case_id}': not written, {measurement.invalid}")


def _check_acceptance_agrees(measurements: Sequence[Measurement]) -> None:
    """No launch's AL differs from the first's by more than 0.5 % and than chance allows.

    Over the prompts that both replayed; of a source that knows the sum only, by more than 0.5 %.
    """
    metric = METRICS["acceptance_length_tokens"]
    records = [one.acceptance for one in measurements if one.acceptance is not None]
    for other in records[1:]:
        first, second = _lengths(metric, records[0], other)
        if abs(first - second) > _SAME_AL_FRAC * min(first, second):
            message = (
                f"baseline of '{measurements[0].case.id}': not written, its launches disagree on"
                f" the acceptance length ({first:.4f}, {second:.4f}); find out why first"
            )
            raise BaselineError(message)


def _lengths(
    metric: Metric, first: AcceptanceRecord, second: AcceptanceRecord
) -> tuple[float, float]:
    """AL of two launches over the same prompts; twice the same where chance explains them."""
    if not first.prompts or not second.prompts:
        return first.total.acceptance_length or 1.0, second.total.acceptance_length or 1.0
    tables = [counts_table(record.prompts) for record in (first, second)]
    common = [one for one in tables[0].prompt_ids if one in set(tables[1].prompt_ids)]
    parts = [ratio_parts(metric, table.only(common)) for table in tables]
    ours, theirs = parts
    if ours is None or theirs is None or not ours[1].any() or not theirs[1].any():
        return first.total.acceptance_length or 1.0, second.total.acceptance_length or 1.0
    accepted = [float(above.sum() / below.sum()) for above, below in (ours, theirs)]
    if accepted[1] and len(common) >= FEWEST_PROMPTS:
        low, high = change_of_ratio(ours, theirs, accepted[1]).bounds(Look.FULL.value)
        if low <= 0 <= high:
            return 1 + accepted[1], 1 + accepted[1]
    return 1 + accepted[0], 1 + accepted[1]


def _check_speeds_agree(measurements: Sequence[Measurement]) -> None:
    """The launches lie no further apart than the tolerance: else they could not keep it."""
    case = measurements[0].case
    for metric in (metric for metric in METRICS.values() if metric.by_launch):
        values = [one.values[metric.name] for one in measurements if metric.name in one.values]
        if min(values, default=1.0) <= 0:
            message = f"{metric.name} is 0 in a launch; such a baseline could never be missed"
            raise BaselineError(
                f"baseline of '{case.id}': not written, {message}; raise the limits"
            )
        apart_frac = max(values) / min(values) - 1 if values else 0.0
        tolerance_frac = own_tolerance_frac(metric, case)
        if apart_frac > tolerance_frac:
            shown = ", ".join(f"{value:.4g}" for value in values)
            message = (
                f"baseline of '{case.id}': not written, its launches lie {apart_frac:.1%} apart in"
                f" {metric.name} ({shown}), its tolerance is {tolerance_frac:.1%}; quieten the"
                " machine, or raise the tolerance in the matrix"
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
