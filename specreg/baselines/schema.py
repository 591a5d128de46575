"""Baselines, and published figures: what was measured once, on disk, to be compared with.

`baselines/<environment>/<case-id>.json`, one prompt per line, so that a change can be reviewed.
"""

import dataclasses
import inspect
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from specreg.acceptance.checks import check_counts
from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    PromptAcceptance,
    Source,
    StepCounts,
    View,
)
from specreg.core.errors import BaselineError, InvalidMeasurementError
from specreg.core.files import UNREADABLE
from specreg.matrix.case import Case, CaseSettings
from specreg.measurement.metrics import Metric, acceptance_value
from specreg.telemetry.identity import Environment
from specreg.telemetry.sensor import Scope

SCHEMA_VERSION = 4
_SHORT_TURNS = 4
"""Before this version, speeds were medians of long rounds, which can't be compared with today's."""
_GONE = frozenset({"rounds", "stream"})
"""Settings of earlier versions that are gone; only baselines of streamed answers are still read."""
_FEWEST_RUNS = 2
_ADVICE = "restore it with git, or remove it and record it anew"
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_SUM_WITHIN_TOKENS = 0.02
"""How far AL may lie from 1 + Σ of the positions: both are published rounded."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a baseline comes from: recorded and shown, never compared.

    Attributes:
        engine_version: the version of the engine.
        draft_sha256: the checksum of the draft's files; empty without any.
        specreg_version: the version of specreg.
        commit: the commit of the repository that recorded it.
        recorded_on: the date.
        reason: what `--reason` said, else the engine, its version and the commit.
        driver_version: the version of the GPU's driver; empty without one.
        torch_version: the version of torch in the engine's environment.
    """

    engine_version: str
    draft_sha256: str
    specreg_version: str
    commit: str
    recorded_on: str
    reason: str
    driver_version: str = ""
    torch_version: str = ""


class Noise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How identical runs of a case differed, beyond the launches of one run.

    Attributes:
        between_frac: the standard deviation of the logarithms from run to run.
        runs: how many runs showed it, 2 or more.
    """

    between_frac: float
    runs: int


class Detectable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How small a loss of a metric a run can detect here, by how launches differed.

    Attributes:
        decides: True if a run can prove that the loss is within the tolerance, by its own launch or
            by three more.
        mde_frac: the minimum detectable effect of all four launches: a loss that is proven 99 times
            out of 100.
        tolerance_frac: the tolerance at the time of recording.
        launches: how many launches of a run would decide; 0 if no reasonable number does.
    """

    decides: bool
    mde_frac: float
    tolerance_frac: float
    launches: int

    @classmethod
    def of(cls, mdes: Mapping[int, float], tolerance_frac: float, most: int) -> "Detectable":
        """By launches, from 1, their minimum detectable effect; a run takes `most`."""
        launches = next((one for one, mde in mdes.items() if mde <= tolerance_frac), 0)
        return cls(
            decides=1 <= launches <= most,
            mde_frac=mdes[most],
            tolerance_frac=tolerance_frac,
            launches=launches,
        )

    def __str__(self) -> str:
        """The tolerance in percent, and what would be told instead."""
        told = f"detects {self.mde_frac:.1%}, {self.launches or 'not even 12'} launches would"
        return f"{100 * self.tolerance_frac:.3g} % ({told})"


class StoredPrompt(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`[id, category, accepted, steps, proposed, completion_tokens, position_counts, turn]`.

    `proposed` is null where the source doesn't say; `turn` may be left out.
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
        """The counts among the fields."""
        return msgspec.convert(self, StepCounts, from_attributes=True)


class StoredAcceptance(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """An acceptance record as it lies on disk.

    Attributes:
        source: where the counts come from.
        view: whose tokens are counted.
        weighting: how steps are weighted; each step counts once.
        prompts: the counts of each prompt.
        total: the sum, where the counts of single prompts aren't known; else null.
    """

    source: Source
    view: View
    weighting: Literal["step"]
    prompts: tuple[StoredPrompt, ...]
    total: StepCounts | None = None


class RecordedDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device whose power was recorded.

    Attributes:
        id: the UUID of this very device.
        name: the name of its kind.
        scope: what its sensor covers: a GPU, a module of GPU and processor, or a processor package.
        from_counter: True if its energy was read from a counter, False if power was summed up.
        sm_clock_mhz: the median clock of its multiprocessors under load, in MHz; null if unknown.
    """

    id: str
    name: str
    scope: Scope
    from_counter: bool
    sm_clock_mhz: float | None


class Baseline(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One file.

    Attributes:
        schema_version: the version of this form.
        case: the settings that a run must share to be compared, see the table `case`.
        environment: the kind of machine, see the table `environment`.
        provenance: where the baseline comes from, see the table `provenance`.
        acceptance: the counts of accepted drafts; null for a case that doesn't speculate.
        launches: for each launch of the server, the metrics that differ from launch to launch.
        noise: by metric, how identical runs of this machine differed, from its history.
        detects: by metric, how small a loss a run can detect against this baseline.
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
        """The metric's value in each launch that has it."""
        return tuple(launch[metric.name] for launch in self.launches if metric.name in launch)

    def expected_value(self, metric: Metric) -> float | None:
        """A metric's value: of the prompts' counts, or the geometric mean over the launches."""
        if not metric.by_launch:
            return acceptance_value(metric, load_acceptance(self.acceptance))
        launches = self.launch_values(metric)
        return statistics.geometric_mean(launches) if launches else None


def load_baseline(path: Path) -> Baseline | None:
    """Load a baseline, an earlier form converted to this one; None if there is no file.

    Raises:
        BaselineError: it can't be read, or is of a newer form. It is left as it is.
    """
    content = b""
    try:
        content = path.read_bytes()
        head = msgspec.json.decode(content, type=_Head)
        version = head.schema_version
        if version > SCHEMA_VERSION:
            raise BaselineError(
                f"baseline '{path}': schema version {version}, this specreg reads {SCHEMA_VERSION};"
                " use a newer specreg"
            )
        # Versions 2 and 4 added optional fields; 3 took settings away.
        baseline = msgspec.json.decode(content, type=Baseline)
        known = {field.name for field in dataclasses.fields(CaseSettings)} | _GONE
        if bytes(head.case.get("stream", b"")) == b"false":
            raise msgspec.ValidationError("its answers came whole, which is no longer measured")
        if unknown := head.case.keys() - known:  # which msgspec passes over in a dataclass
            name = min(unknown)
            raise msgspec.ValidationError(f"Object contains unknown field `{name}` - at `$.case`")
        check_figures(baseline)
    except FileNotFoundError:
        return None
    except (OSError, InvalidMeasurementError, *UNREADABLE) as error:
        raise BaselineError(
            f"baseline '{path}': {why_unusable(content, error)}; {_ADVICE}"
        ) from error
    if version < _SHORT_TURNS:
        baseline = msgspec.structs.replace(baseline, launches=())
    return msgspec.structs.replace(baseline, schema_version=SCHEMA_VERSION)


def baseline_files(folder: Path) -> Iterator[Path]:
    """Yield the files of all machines' baselines, without published figures."""
    yield from (path for path in sorted(folder.glob("*/*.json")) if path.parent.name != "published")


def read_baselines(paths: Iterable[Path]) -> tuple[dict[Path, Baseline], list[str]]:
    """Load baselines by their paths, and say why others can't be read."""
    found: dict[Path, Baseline] = {}
    unreadable: list[str] = []
    for path in paths:
        try:
            if baseline := load_baseline(path):
                found[path] = baseline
        except BaselineError as error:
            unreadable.append(str(error))
    return found, unreadable


def render_baseline(baseline: Baseline) -> str:
    """JSON with sorted keys; a list of lists has one of them per line.

    Settings are written with their defaults, which may change.
    """
    content = msgspec.to_builtins(baseline)
    if not baseline.environment.power_limit_w:
        del content["environment"]["power_limit_w"]
    return _render(content, "") + "\n"


def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a struct, whose docstrings have no margin, as from Python 3.13 on."""
    any_value = {"description": "what a chat template takes"}
    schema = msgspec.json.schema(kind, schema_hook=lambda _: any_value)
    for one in schema["$defs"].values():
        if "description" in one:
            one["description"] = inspect.cleandoc(one["description"])
    return schema


def render_schema() -> str:
    """The JSON Schema of a baseline file; `baselines/schema.json` holds it for other tools."""
    schema = schema_of(Baseline)
    schema["$defs"]["CaseSettings"]["additionalProperties"] = False
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def stored_acceptance(record: AcceptanceRecord | None) -> StoredAcceptance | None:
    """Convert a record to the form on disk."""
    if record is None:
        return None
    prompts = tuple(
        StoredPrompt(
            prompt_id=prompt.prompt_id,
            category=prompt.category,
            accepted=prompt.counts.accepted,
            steps=prompt.counts.steps,
            proposed=prompt.counts.proposed,
            completion_tokens=prompt.completion_tokens,
            position_counts=prompt.counts.position_counts,
            turn=prompt.turn,
        )
        for prompt in record.prompts
    )
    total = None if prompts else record.total
    return StoredAcceptance(
        source=record.source, view=record.view, weighting="step", total=total, prompts=prompts
    )


def load_acceptance(stored: StoredAcceptance | None) -> AcceptanceRecord | None:
    """Convert a stored record back."""
    if stored is None:
        return None
    prompts = msgspec.convert(stored.prompts, tuple[PromptAcceptance, ...], from_attributes=True)
    total = stored.total or sum((prompt.counts for prompt in prompts), NO_STEPS)
    return AcceptanceRecord(source=stored.source, view=stored.view, total=total, prompts=prompts)


def check_figures(baseline: Baseline) -> None:
    """Raise an InvalidMeasurementError where a figure could never be missed or counts disagree."""
    for launch in baseline.launches:
        for name, value in launch.items():
            if not 0 < value < math.inf:
                message = f"{name} is {value}, which could never be missed"
                raise InvalidMeasurementError("FIGURE_IMPOSSIBLE", message)
    for name, noise in baseline.noise.items():
        if not 0 <= noise.between_frac < math.inf or noise.runs < _FEWEST_RUNS:
            raise InvalidMeasurementError("FIGURE_IMPOSSIBLE", f"noise of {name} is {noise}")
    drafted = baseline.case.tree.drafted_tokens if baseline.case.tree else None
    if record := load_acceptance(baseline.acceptance):
        for prompt in record.prompts:
            check_counts(prompt.counts, f"prompt '{prompt.prompt_id}'", drafted_tokens=drafted)
        check_counts(record.total, "all prompts", drafted_tokens=drafted)


class _Head(msgspec.Struct, frozen=True):
    schema_version: int
    case: dict[str, msgspec.Raw] = {}


def why_unusable(content: bytes, error: Exception) -> str:
    """What is wrong with a file: what a merge left in it, else what the error says."""
    for number, line in enumerate(content.splitlines(), start=1):
        if line.startswith(b"<<<<<<< "):
            return f"holds both sides of a merge conflict, from line {number} on"
    return str(error.strerror if isinstance(error, OSError) else error)


def _render(value: object, indent: str) -> str:
    """A mapping's keys and a list's lists stand on lines of their own; all else on one."""
    deeper = indent + " "
    if isinstance(value, dict):
        rows = (f"{json.dumps(k)}: {_render(value[k], deeper)}" for k in sorted(value))
        return "{\n" + ",\n".join(deeper + row for row in rows) + f"\n{indent}}}"
    if isinstance(value, (list, tuple)) and any(isinstance(i, (list, tuple, dict)) for i in value):
        rows = (json.dumps(item, ensure_ascii=False, sort_keys=True) for item in value)
        return "[\n" + ",\n".join(deeper + row for row in rows) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


class PublishedFigure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of `baselines/published`: acceptance from a paper or a table, with its source.

    Acceptance hardly depends on the machine. A speedup does, and is shown beside the measured one,
    never judged.

    Attributes:
        source: a URL or a file, with what it is.
        conditions: in a sentence: prompts, sampling, cap, machine.
        target, draft: hub ids, `draft` None where the method needs none.
        draft_tokens: tokens drafted per step (k).
        temperature: 0 is greedy; None where it isn't said, which a speedup alone may leave open.
        acceptance_length_tokens: AL = 1 + A / S, 1..k + 1; acceptance_rate_frac: AR = A / D, 0..1.
        position_frac: marginal acceptance P_i / S by position, each 0..1; k of them or none.
        tolerance_frac: the change of AL that the source itself still calls fine, relative to AL.
        turns, output_cap_tokens: of a conversation and a reply; None where the figure is for any.
        speedup_ratio: tokens/s with drafts by those without.
        engine, concurrency: of which it is, and of so many requests at once; a speedup has both.
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
        """Whether it holds something to judge by, not a speedup alone."""
        figures = (self.acceptance_length_tokens, self.acceptance_rate_frac, *self.position_frac)
        return any(one is not None for one in figures)

    def value(self, metric_name: str) -> float | None:
        """The figure of a metric, which has its name; None where it wasn't published."""
        figures = {f"acceptance_pos{n}_frac": one for n, one in enumerate(self.position_frac, 1)}
        return figures.get(metric_name, getattr(self, metric_name, None))


def load_published(folder: Path) -> tuple[PublishedFigure, ...]:
    """All published figures below a folder of baselines, in the order of their names.

    Raises:
        BaselineError: one of them can't be read, or can't be true.
    """
    return tuple(_load_figure(path) for path in sorted((folder / "published").glob("*.json")))


def published_for(case: Case, published: Iterable[PublishedFigure]) -> PublishedFigure | None:
    """The first figure of the same models, settings and load; with acceptance where one has it."""
    ours = (one for one in published if _is_of(one, case))
    return max(ours, key=lambda one: one.has_acceptance, default=None)


def _is_of(one: PublishedFigure, case: Case) -> bool:
    server = case.server
    told = (one.method, one.target, one.draft, one.draft_tokens, one.dataset)
    wanted = (server.method, server.target, server.draft, server.draft_tokens)
    return (
        told == (*wanted, case.dataset)
        and server.tree is None  # a figure doesn't say how the drafts branched
        and one.temperature in {None, case.temperature}
        and one.turns in {None, case.turns}
        and one.output_cap_tokens in {None, case.output_cap_tokens}
        and one.engine in {None, server.engine}
        and one.concurrency in {None, case.load.concurrency}
    )


def _contradictions(published: PublishedFigure) -> Iterator[str]:
    """Say what can't be true of a figure, got and needed."""
    length, positions = published.acceptance_length_tokens, published.position_frac
    most = published.draft_tokens
    if published.speedup_ratio is not None and not (published.engine and published.concurrency):
        yield "a speedup without engine and concurrency, needed both"
    if published.has_acceptance and published.temperature is None:
        yield "acceptance without temperature, which it depends on"
    if not (published.has_acceptance or published.speedup_ratio):
        yield "no figure at all, needed a length, a rate, positions or a speedup"
    if positions and len(positions) != most:
        yield f"{len(positions)} positions, needed none or draft_tokens = {most}"
    if length is not None and length > most + 1:
        yield f"acceptance_length_tokens = {length}, needed 1 to {most + 1}"
    if length and positions and abs(1 + sum(positions) - length) > _SUM_WITHIN_TOKENS:
        implied = 1 + sum(positions)
        yield f"acceptance_length_tokens = {length}, by its positions it is {implied:.3f}"


def _load_figure(path: Path) -> PublishedFigure:
    subject, advice = f"published figure '{path}'", "restore it with git, or remove it"
    try:
        published = msgspec.json.decode(path.read_bytes(), type=PublishedFigure)
    except (OSError, *UNREADABLE) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BaselineError(f"{subject}: {why}; {advice}") from error
    for wrong in _contradictions(published):
        raise BaselineError(f"{subject}: {wrong}; {advice}")
    return published
