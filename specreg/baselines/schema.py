"""The file formats of baselines and published figures, and how they are read and checked.

A baseline is `baselines/<environment>/<case-id>.json`. Each prompt has a line of its own, so that
reviewers can see what changed.
"""

import dataclasses
import inspect
import itertools
import json
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

import msgspec

from specreg.acceptance.checks import check_counts
from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    CountedSteps,
    PromptAcceptance,
    RoundAcceptance,
    Source,
    StepCounts,
    View,
)
from specreg.core.errors import BaselineError, InvalidMeasurementError
from specreg.core.files import MIB, UNREADABLE, cause_of, read_regular
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts
from specreg.matrix.case import Case, CaseSettings
from specreg.measurement.metrics import Metric, acceptance_value
from specreg.telemetry.identity import Environment
from specreg.telemetry.sensor import Scope

BASELINE_SCHEMA_VERSION = 5
"""The version of the format in which baselines are written."""
_OLDEST_VERSION = 4
"""The oldest version that can be read. Its files have no `further_launches`."""
_FEWEST_RUNS = 2
"""The fewest runs that show a spread."""
MAX_BASELINE_BYTES = 4 * MIB
"""The largest baseline, of some 50,000 answers. Each metric of a case adds up all of them, so
judging by a file of 19 MiB took 46 s."""
_ADVICE = "restore it with git, or remove it and record it anew"
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_MAX_ROUNDING_TOKENS = 0.02
"""How far a published AL may be from 1 + Σ of its positions, because both are rounded."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a baseline comes from. It doesn't decide whether a run can be compared with it.

    Attributes:
        engine_version: the version of the engine.
        draft_sha256: the checksum of the draft's files; empty without a draft.
        specreg_version: the version of specreg.
        commit: the commit of the repository that recorded it; empty if unknown.
        recorded_on: the date of the recording, in UTC.
        reason: the text of `--reason`, or else the engine, its version and the commit.
        driver_version: the version of the GPU driver; empty without a GPU.
        torch_version: the version of PyTorch in the engine's environment; empty if unknown.
        packages_sha256: the checksum of all packages in the engine's environment; empty if unknown.
            The folder `packages` has their list under the first 16 characters.
        facts: what the engine reported about the first launch, and the variables of its shell.
    """

    engine_version: str
    draft_sha256: str
    specreg_version: str
    commit: str
    recorded_on: str
    reason: str
    driver_version: str = ""
    torch_version: str = ""
    packages_sha256: str = ""
    facts: LaunchFacts = NOTHING_KNOWN


class Noise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much identical runs of a case varied, in addition to the variation of their launches.

    Attributes:
        between_frac: the standard deviation, between runs, of the logarithm of the metric.
        runs: the number of runs it was estimated from, 2 or more.
    """

    between_frac: float
    runs: int


class Detectable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How small a loss of a metric a run can detect, estimated from how launches varied.

    Attributes:
        decides: whether a run detects a loss as large as the tolerance. For a speed, a run has up
            to four launches; for acceptance, it has the prompts of one launch.
        mde_frac: the minimum detectable effect of such a run, a loss that is proven 99 times out of
            100.
        tolerance_frac: the tolerance at the time of the recording.
        launches: how many launches a run would need to decide; 0 if no reasonable number would.
        nights: how many nights together would decide; 0 if no number would.
    """

    decides: bool
    mde_frac: float
    tolerance_frac: float
    launches: int
    nights: int = 0

    @classmethod
    def of(
        cls,
        mde_frac_by_launches: Mapping[int, float],
        tolerance_frac: float,
        run_launches: int,
        nights: int,
    ) -> "Detectable":
        """Return what a run can detect of a speed.

        Args:
            mde_frac_by_launches: the minimum detectable effect with 1, 2, 3, … launches.
            tolerance_frac: the tolerated loss, as a share.
            run_launches: the most launches that a run takes.
            nights: how many nights together would decide; 0 if no number would.
        """
        enough = [
            launches
            for launches, mde_frac in mde_frac_by_launches.items()
            if mde_frac <= tolerance_frac
        ]
        launches = min(enough, default=0)
        return cls(
            decides=1 <= launches <= run_launches,
            mde_frac=mde_frac_by_launches[run_launches],
            tolerance_frac=tolerance_frac,
            launches=launches,
            nights=nights,
        )

    def __str__(self) -> str:
        """Return the tolerance, the loss that a run detects, and how many nights would decide."""
        outlook = "no number of nights would decide"
        if self.nights:
            outlook = f"about {self.nights} nights together would decide"
        tolerance = f"{100 * self.tolerance_frac:.3g} %"
        return f"{tolerance} (one run detects {100 * self.mde_frac:.1f} %; {outlook})"


class StoredPrompt(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`[id, category, accepted, steps, proposed, completion_tokens, position_counts, turn]`.

    `proposed` is null if the source doesn't report it. `turn` may be left out and is then 1.
    """

    prompt_id: str
    category: str
    accepted: int
    steps: int
    proposed: int | None
    completion_tokens: int
    position_counts: tuple[int, ...]
    turn: int = 1

    @property
    def counts(self) -> StepCounts:
        """The fields that count steps and tokens."""
        return msgspec.convert(self, StepCounts, from_attributes=True)


class StoredRound(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`[prompt_ids, accepted, steps, proposed, completion_tokens, requests, position_counts]`.

    The number of the launch may follow. The launches are counted as in `further_launches`, and 1 is
    the default.
    """

    prompt_ids: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    accepted: int
    steps: int
    proposed: int | None
    completion_tokens: int
    requests: int
    position_counts: tuple[int, ...]
    launch: int = 1

    @property
    def counts(self) -> StepCounts:
        """The fields that count steps and tokens."""
        return msgspec.convert(self, StepCounts, from_attributes=True)


class StoredAcceptance(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """An acceptance record in the form in which it is stored.

    Attributes:
        source: where the counts come from.
        view: whose tokens are counted.
        weighting: how steps are weighted; each step counts once.
        prompts: the counts of each prompt in the launch with the most prompts.
        further_launches: the counts of each prompt in the other launches. The keys count these
            launches from 2, in the order of the run; the launch in `prompts` counts as the first.
            Left out if all launches gave the same answers.
        total: the sum of all counts if those of single prompts are unknown; otherwise null.
        rounds: the counts of each round of prompts in each launch. They are stored if the counts of
            single prompts are unknown, and the counters were read after each round.
        counted: which steps are counted. Some methods have steps without a draft.
        undrafted_steps: not used and not written. Files of an earlier specreg may have it.
    """

    source: Source
    view: View
    weighting: Literal["step"]
    prompts: tuple[StoredPrompt, ...]
    further_launches: dict[str, tuple[StoredPrompt, ...]] = {}
    total: StepCounts | None = None
    rounds: tuple[StoredRound, ...] = ()
    counted: CountedSteps = CountedSteps.DRAFTED
    undrafted_steps: tuple[int, ...] = ()

    @property
    def all_prompts(self) -> Sequence[StoredPrompt]:
        """The counts of each prompt in all launches, in the order of the launches."""
        # A file has its keys sorted as texts, in which "10" comes before "2".
        numbers = sorted(self.further_launches, key=lambda number: (len(number), number))
        further = itertools.chain.from_iterable(self.further_launches[number] for number in numbers)
        return (*self.prompts, *further)


class RecordedDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device whose power was recorded.

    Attributes:
        id: the unique id of the device, such as a GPU's UUID.
        name: the name of its model, or of a RAPL counter.
        scope: what its sensor covers: a GPU, a module of GPU and processor, or a processor package.
        from_counter: True if its energy was read from a counter, False if power was summed up.
        sm_clock_mhz: the median clock of its multiprocessors under load; null if unknown.
    """

    id: str
    name: str
    scope: Scope
    from_counter: bool
    sm_clock_mhz: float | None


class Baseline(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The baseline of one case on one kind of machine, which is one file.

    Attributes:
        schema_version: the version of this format.
        case: the settings that a run must share to be compared, see the table `case`.
        environment: the kind of machine, see the table `environment`.
        provenance: where the baseline comes from, see the table `provenance`.
        acceptance: the counts of accepted drafts; null for a case that doesn't speculate.
        launches: the metrics that vary from launch to launch, for each launch of the server.
        noise: how much identical runs on this machine varied, by metric.
        detects: how small a loss a run can detect against this baseline, by metric.
        devices: the devices whose power was recorded.
    """

    schema_version: int
    case: CaseSettings
    environment: Environment
    provenance: Provenance
    acceptance: StoredAcceptance | None
    launches: tuple[dict[str, float], ...]
    noise: dict[str, Noise] = {}
    detects: dict[str, Detectable] = {}
    devices: tuple[RecordedDevice, ...] = ()

    def launch_values(self, metric: Metric) -> tuple[float, ...]:
        """Return the value of a metric in each launch that has it."""
        return tuple(launch[metric.name] for launch in self.launches if metric.name in launch)

    def expected_value(self, metric: Metric) -> float | None:
        """Return the value of a metric; None if the baseline doesn't have it.

        Acceptance is calculated from the counts of all prompts. A speed is the geometric mean over
        the launches.
        """
        if not metric.by_launch:
            return acceptance_value(metric, load_acceptance(self.acceptance))
        values = self.launch_values(metric)
        return statistics.geometric_mean(values) if values else None


def load_baseline(path: Path) -> Baseline | None:
    """Load a baseline; None if there is no file.

    Raises:
        BaselineError: the file can't be read, has another format, or has impossible figures. It
            isn't changed.
    """
    content = b""
    try:
        content = read_regular(path, MAX_BASELINE_BYTES)
        # The version comes first, because a file of another version can't be decoded.
        head = msgspec.json.decode(content, type=_Head)
        _check_version(path, head.schema_version)
        _check_settings(head)
        baseline = msgspec.json.decode(content, type=Baseline)
        check_figures(baseline)
    except FileNotFoundError:
        return None
    except (OSError, InvalidMeasurementError, *UNREADABLE) as error:
        raise BaselineError(
            f"baseline '{path}': {why_unusable(content, error)}; {_ADVICE}"
        ) from error

    return baseline


def _check_version(path: Path, version: int) -> None:
    """Check that this specreg can read a version of the format.

    Raises:
        BaselineError: the version is too old or too new.
    """
    if _OLDEST_VERSION <= version <= BASELINE_SCHEMA_VERSION:
        return
    advice = "use a newer specreg" if version > BASELINE_SCHEMA_VERSION else "record it anew"
    raise BaselineError(
        f"baseline '{path}': schema version {version}, this specreg reads {_OLDEST_VERSION} to"
        f" {BASELINE_SCHEMA_VERSION}; {advice}"
    )


def _check_settings(head: "_Head") -> None:
    """Check that a file has no unknown settings. msgspec ignores unknown fields of a dataclass.

    Raises:
        msgspec.ValidationError: a setting is unknown.
    """
    unknown = head.case.keys() - {field.name for field in dataclasses.fields(CaseSettings)}
    if unknown:
        message = f"Object contains unknown field `{min(unknown)}` - at `$.case`"
        raise msgspec.ValidationError(message)


def check_folders(folder: Path) -> None:
    """Check that a folder of baselines and its subfolders can be read. It may be missing.

    Raises:
        BaselineError: a folder can't be read.
    """
    try:
        with os.scandir(folder) as entries:
            folders = [entry.path for entry in entries if entry.is_dir()]
        for path in folders:
            with os.scandir(path) as entries:
                for entry in entries:
                    # Listing a folder and opening its files need different rights, so one file of
                    # each folder is tried too.
                    entry.stat()
                    break
    except FileNotFoundError:
        return
    except OSError as error:
        raise BaselineError(
            f"baselines '{error.filename}': can't be read, {error.strerror}; repair its rights, or"
            " name another folder with --specreg-baselines"
        ) from error


def baseline_files(folder: Path) -> Iterator[Path]:
    """Yield the baseline files of all machines, without the published figures."""
    for path in sorted(folder.glob("*/*.json")):
        if path.parent.name != "published":
            yield path


def read_baselines(paths: Iterable[Path]) -> tuple[dict[Path, Baseline], list[str]]:
    """Load the baselines that can be read.

    Returns:
        The baselines by their paths, and an error message for each file that can't be read.
    """
    baselines: dict[Path, Baseline] = {}
    errors: list[str] = []
    for path in paths:
        try:
            baseline = load_baseline(path)
        except BaselineError as error:
            errors.append(str(error))
        else:
            if baseline is not None:
                baselines[path] = baseline

    return baselines, errors


def render_baseline(baseline: Baseline) -> str:
    """Render a baseline as JSON with sorted keys and a line for each prompt.

    Settings that have their default are written too, because the defaults may change.
    """
    content = msgspec.to_builtins(baseline)

    # Fields that were added later are left out if they are empty, so that old files don't change.
    if baseline.environment.power_limit_w == 0:
        del content["environment"]["power_limit_w"]
    if not baseline.provenance.packages_sha256:
        del content["provenance"]["packages_sha256"]
    if baseline.provenance.facts == NOTHING_KNOWN:
        del content["provenance"]["facts"]
    return _render(content, "") + "\n"


def schema_of(*kinds: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a struct, or of any of several structs."""
    # The arguments of a chat template may be any JSON value.
    any_value = {"description": "what a chat template takes"}
    references, definitions = msgspec.json.schema_components(
        kinds, schema_hook=lambda _: any_value, ref_template="#/$defs/{name}"
    )
    for definition in definitions.values():
        if "description" in definition:
            # Python 3.13 removes the indentation of docstrings, and schemas must be equal with all
            # versions of Python.
            definition["description"] = inspect.cleandoc(definition["description"])

    schema = {"anyOf": list(references)}
    if len(kinds) == 1:
        [schema] = references
    return {**schema, "$defs": definitions}


def render_baseline_schema() -> str:
    """Render the JSON Schema of a baseline. `baselines/schema.json` is a copy of it."""
    schema = schema_of(Baseline)
    schema["$defs"]["CaseSettings"]["additionalProperties"] = False
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def stored_acceptance(
    fullest: AcceptanceRecord | None, *further: AcceptanceRecord
) -> StoredAcceptance | None:
    """Convert the acceptance records of launches to their stored form.

    If all launches gave the same answers, only `fullest` is stored.

    Args:
        fullest: the record of the launch with the most prompts; None without acceptance.
        further: the records of the other launches.
    """
    if fullest is None:
        return None
    further_launches = {}
    rounds = [_stored_round(round_acceptance, 1) for round_acceptance in fullest.rounds]

    # Launches that repeat the answers of the fullest one would add nothing.
    if not all(launch.repeats(fullest) for launch in further):
        for number, launch in enumerate(further, start=2):
            if launch.prompts:
                further_launches[str(number)] = tuple(map(_stored_prompt, launch.prompts))
            rounds += [
                _stored_round(round_acceptance, number) for round_acceptance in launch.rounds
            ]

    prompts = tuple(map(_stored_prompt, fullest.prompts))
    return StoredAcceptance(
        source=fullest.source,
        view=fullest.view,
        weighting="step",
        # The sum of single prompts can be computed from them.
        total=None if prompts else fullest.total,
        prompts=prompts,
        further_launches=further_launches,
        rounds=tuple(rounds),
        counted=fullest.counted,
    )


def _stored_prompt(prompt: PromptAcceptance) -> StoredPrompt:
    return StoredPrompt(
        prompt_id=prompt.prompt_id,
        category=prompt.category,
        accepted=prompt.counts.accepted,
        steps=prompt.counts.steps,
        proposed=prompt.counts.proposed,
        completion_tokens=prompt.completion_tokens,
        position_counts=prompt.counts.position_counts,
        turn=prompt.turn,
    )


def _stored_round(round_acceptance: RoundAcceptance, launch: int) -> StoredRound:
    return StoredRound(
        prompt_ids=round_acceptance.prompt_ids,
        accepted=round_acceptance.counts.accepted,
        steps=round_acceptance.counts.steps,
        proposed=round_acceptance.counts.proposed,
        completion_tokens=round_acceptance.completion_tokens,
        requests=round_acceptance.requests,
        position_counts=round_acceptance.counts.position_counts,
        launch=launch,
    )


def load_acceptance(stored: StoredAcceptance | None) -> AcceptanceRecord | None:
    """Convert the stored form back to a record, which has the answers of all launches.

    Returns:
        None without a stored form.
    """
    if stored is None:
        return None
    prompts = msgspec.convert(
        stored.all_prompts, tuple[PromptAcceptance, ...], from_attributes=True
    )
    rounds = msgspec.convert(stored.rounds, tuple[RoundAcceptance, ...], from_attributes=True)
    total = stored.total or sum((prompt.counts for prompt in prompts), NO_STEPS)
    return AcceptanceRecord(
        source=stored.source,
        view=stored.view,
        total=total,
        prompts=prompts,
        counted=stored.counted,
        rounds=rounds,
    )


def check_figures(baseline: Baseline) -> None:
    """Check that the figures of a baseline are possible, and that its counts are consistent.

    A speed of 0 or infinity is refused, because no later run could be worse or better.

    Raises:
        InvalidMeasurementError: `FIGURE_IMPOSSIBLE`, or a code of `check_counts`.
    """
    # Check the speeds and their noise.
    for launch in baseline.launches:
        for name, value in launch.items():
            if not 0 < value < math.inf:
                raise InvalidMeasurementError("FIGURE_IMPOSSIBLE", figure=name, value=value)

    for name, noise in baseline.noise.items():
        if not 0 <= noise.between_frac < math.inf or noise.runs < _FEWEST_RUNS:
            figure = f"noise of {name}"
            raise InvalidMeasurementError("FIGURE_IMPOSSIBLE", figure=figure, value=noise)

    # Check the counts of each prompt, of each round, and of all prompts.
    record = load_acceptance(baseline.acceptance)
    if record is None:
        return

    # A step that drafts a tree drafts more tokens than it has positions.
    drafted_tokens = baseline.case.tree.drafted_tokens if baseline.case.tree else None
    for prompt in record.prompts:
        subject = f"prompt '{prompt.prompt_id}'"
        check_counts(prompt.counts, subject, drafted_tokens=drafted_tokens)
    for round_acceptance in record.rounds:
        subject = f"round from prompt '{round_acceptance.prompt_ids[0]}' on"
        check_counts(round_acceptance.counts, subject, drafted_tokens=drafted_tokens)
    check_counts(record.total, "all prompts", drafted_tokens=drafted_tokens)


class _Head(msgspec.Struct, frozen=True):
    """The part of a file that is checked before the rest is decoded."""

    schema_version: int
    case: dict[str, msgspec.Raw] = {}


def why_unusable(content: bytes, error: Exception) -> str:
    """Describe why a file can't be used.

    Args:
        content: the content of the file. It may contain the markers of a merge conflict.
        error: the error, which is described if there is no merge conflict.
    """
    for number, line in enumerate(content.splitlines(), start=1):
        if line.startswith(b"<<<<<<< "):
            return f"holds both sides of a merge conflict, from line {number} on"
    return cause_of(error)


def _render(value: object, indent: str) -> str:
    """Render a value as JSON, with a line for each key of a mapping.

    A list that contains lists or mappings has a line for each item.
    """
    deeper = indent + " "
    if isinstance(value, dict):
        rows = [
            f"{deeper}{json.dumps(key)}: {_render(value[key], deeper)}" for key in sorted(value)
        ]
        content = ",\n".join(rows)
        return f"{{\n{content}\n{indent}}}"

    if _holds_containers(value):
        items = [json.dumps(item, ensure_ascii=False, sort_keys=True) for item in value]
        rows = [f"{deeper}{item}" for item in items]
        content = ",\n".join(rows)
        return f"[\n{content}\n{indent}]"

    return json.dumps(value, ensure_ascii=False)


def _holds_containers(value: object) -> TypeGuard[Sequence[object]]:
    """Return whether a value is a list that contains lists or mappings."""
    if not isinstance(value, (list, tuple)):
        return False
    return any(isinstance(item, (list, tuple, dict)) for item in value)


class PublishedFigure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of `baselines/published`: figures from a paper or a table, with their source.

    Acceptance hardly depends on the machine, so it can be judged. A speedup does depend on it, so
    it is only shown next to the measured one.

    Attributes:
        schema_version: the version of this format.
        source: the URL or the file, and what it is.
        conditions: a sentence about the prompts, the sampling, the output cap and the machine.
        method: the speculative method.
        target: the hub id of the target model.
        draft: the hub id of the draft model; None if the method has none.
        dataset: the name of the dataset.
        draft_tokens: the tokens drafted in each step (k).
        temperature: the temperature; 0 is greedy. None if it isn't published, which is allowed only
            for a speedup.
        acceptance_length_tokens: the acceptance length, AL = 1 + A / S, 1..k + 1; None if it isn't
            published.
        acceptance_rate_frac: the acceptance rate, AR = A / D, 0..1; None if it isn't published.
        position_frac: for each of the k positions, the share of the steps that accept at least that
            many drafts, 0..1; empty if it isn't published.
        tolerance_frac: how far AL may be from the published value according to the source, as a
            share of that value; None if the source doesn't say.
        turns: the turns of a conversation; None if the figure holds for any number.
        output_cap_tokens: the most tokens of a reply; None if the figure holds for any cap.
        speedup_ratio: the tokens/s with speculation divided by those without; None if it isn't
            published.
        engine: the engine; None if the figure holds for any engine. A speedup must name it.
        concurrency: how many requests were in flight; None if the figure holds for any number. A
            speedup must name it.
    """

    schema_version: Literal[1]
    source: _Text
    conditions: _Text
    method: _Text
    target: _Text
    draft: str | None
    dataset: _Text
    draft_tokens: Annotated[int, msgspec.Meta(ge=1)]
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None
    acceptance_length_tokens: Annotated[float, msgspec.Meta(ge=1)] | None
    acceptance_rate_frac: _Share | None
    position_frac: tuple[_Share, ...]
    tolerance_frac: _Share | None
    turns: int | None = None
    output_cap_tokens: int | None = None
    speedup_ratio: Annotated[float, msgspec.Meta(gt=0)] | None = None
    engine: str | None = None
    concurrency: int | None = None

    @property
    def has_acceptance(self) -> bool:
        """Whether acceptance was published, and not only a speedup. Only acceptance is judged."""
        figures = (self.acceptance_length_tokens, self.acceptance_rate_frac, *self.position_frac)
        # A published value of 0 counts, too.
        return any(figure is not None for figure in figures)

    def value(self, metric_name: str) -> float | None:
        """Return the published value of a metric; None if it wasn't published."""
        # The positions are in one field. Each other field is named after its metric.
        positions = {
            f"acceptance_pos{position}_frac": share
            for position, share in enumerate(self.position_frac, start=1)
        }
        if metric_name in positions:
            return positions[metric_name]
        return getattr(self, metric_name, None)


def load_published(folder: Path) -> tuple[PublishedFigure, ...]:
    """Load all published figures below a folder of baselines, in the order of their names.

    Raises:
        BaselineError: a file can't be read, or its figures contradict each other.
    """
    paths = sorted((folder / "published").glob("*.json"))
    return tuple(_load_figure(path) for path in paths)


def published_for(case: Case, published: Iterable[PublishedFigure]) -> PublishedFigure | None:
    """Return the first figure that matches a case, one with acceptance first; None if none does."""
    matching = [figure for figure in published if _matches(figure, case)]
    with_acceptance = [figure for figure in matching if figure.has_acceptance]
    return next(iter((*with_acceptance, *matching)), None)


def _matches(figure: PublishedFigure, case: Case) -> bool:
    """Return whether a figure matches a case. Conditions that it leaves open always match."""
    server = case.server
    must_be_equal = (
        (figure.method, server.method),
        (figure.target, server.target),
        (figure.draft, server.draft),
        (figure.draft_tokens, server.draft_tokens),
        (figure.dataset, case.request.dataset),
        # A published figure doesn't say how drafts branched, so a case with a tree matches none.
        (None, server.tree),
    )
    may_be_open = (
        (figure.temperature, case.request.temperature),
        (figure.turns, case.request.turns),
        (figure.output_cap_tokens, case.request.output_cap_tokens),
        (figure.engine, server.engine),
        (figure.concurrency, case.load.concurrency),
    )
    if any(published != actual for published, actual in must_be_equal):
        return False
    stated = [(published, actual) for published, actual in may_be_open if published is not None]
    return all(published == actual for published, actual in stated)


def _contradictions(published: PublishedFigure) -> Iterator[str]:
    """Yield the contradictions in a figure: what it has, and what is needed instead."""
    length = published.acceptance_length_tokens
    positions = published.position_frac
    draft_tokens = published.draft_tokens
    if published.speedup_ratio is not None and not (published.engine and published.concurrency):
        yield "a speedup without engine and concurrency, needed both"
    if published.has_acceptance and published.temperature is None:
        yield "acceptance without temperature, which it depends on"
    if not (published.has_acceptance or published.speedup_ratio):
        yield "no figure at all, needed a length, a rate, positions or a speedup"
    if length is not None and length * (1 - (published.tolerance_frac or 0)) <= 1:
        yield f"acceptance_length_tokens = {length}, which a drafter of nothing would be as good as"
    if positions and len(positions) != draft_tokens:
        yield f"{len(positions)} positions, needed none or draft_tokens = {draft_tokens}"
    if length is not None and length > draft_tokens + 1:
        yield f"acceptance_length_tokens = {length}, needed 1 to {draft_tokens + 1}"
    implied_length = 1 + sum(positions)
    if length and positions and abs(implied_length - length) > _MAX_ROUNDING_TOKENS:
        yield f"acceptance_length_tokens = {length}, by its positions it is {implied_length:.3f}"


def _load_figure(path: Path) -> PublishedFigure:
    """Load a published figure.

    Raises:
        BaselineError: the file can't be read, or its figures contradict each other.
    """
    subject = f"published figure '{path}'"
    advice = "restore it with git, or remove it"
    try:
        published = msgspec.json.decode(read_regular(path, MIB), type=PublishedFigure)
    except (OSError, *UNREADABLE) as error:
        problem = cause_of(error)
        raise BaselineError(f"{subject}: {problem}; {advice}") from error

    for contradiction in _contradictions(published):
        raise BaselineError(f"{subject}: {contradiction}; {advice}")
    return published
