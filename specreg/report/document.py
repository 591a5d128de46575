"""The report document, `report.json`: everything that a run or a gate recorded and decided.

There are two kinds. The suite, or a merge of its shards, writes the document of a run, whose
headlines and hints follow from `run`. A document with two sides, `arms`, has fields for both: a
gate writes one with the values of side A as `expected`, and `specreg report A B` puts two runs side
by side in one without hints. The terminal, the HTML page and all exports are rendered from these
documents, and `docs/report.schema.json` is their JSON Schema.
"""

import datetime as dt
import inspect
import json
import platform
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

import specreg
from specreg.baselines.schema import schema_of
from specreg.core.commands import portable_options, run_command
from specreg.core.names import ReportedCase
from specreg.core.readable import Label
from specreg.core.timeline import RunTime
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts
from specreg.matrix.case import CaseSettings
from specreg.measurement.figures import Figures
from specreg.telemetry.identity import Environment, ProcessorLoad
from specreg.verdicts.history import RunRecord
from specreg.verdicts.verdict import Outcome, Verdict

SCHEMA_VERSION: Literal[3] = 3
_RELEASE = re.compile(r"[a-z_]+==[0-9][0-9A-Za-z.]*")
_NAME_THE_ENGINE = ("--specreg-engine-version", "--specreg-engine-python", "--specreg-attach")
"""The options that decide which version of an engine a run measures."""


class Tone(StrEnum):
    """How good the news of a headline is. The renderers choose a colour for each tone."""

    GOOD = "good"
    """Everything is as it should be."""
    DOUBT = "doubt"
    """Something is undecided or missing."""
    BAD = "bad"
    """Something is worse or wrong."""


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a gate, or a count of what changed between two runs."""

    subject: str
    tone: Tone
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


class SideReport(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a gate, or one of two runs side by side.

    Attributes:
        name: A or B.
        text: the side as it was typed on the command line; for one of two runs, the name of the run
            and its environment.
        overrides: the settings that differ from those of the tier, as KEY=VALUE.
        installed: the package and its version, and its origin unless it came from an index; empty
            for a run.
        engine_versions: the engines of the side, each with the version that its server reported.
    """

    name: Label
    text: str
    overrides: tuple[str, ...] = ()
    installed: str = ""
    engine_versions: tuple[str, ...] = ()


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a run decided. `verdict.json` holds it alone.

    Attributes:
        run: the name of the run, which is also the name of its folder.
        attached: the URL of the server that the run attached to; empty if it started its servers.
        attached_control: the URL of its control that the run attached to; empty if there was none.
        complete: whether the whole tier was judged, without an interruption.
        outcomes: how many verdicts have each outcome.
        verdicts: all verdicts, in the order in which the run reached them.
        skipped: for each case that this machine can't run, what the case needs.
        no_power: why power wasn't measured; empty if it was, or if no test needs it.
        slowed: the speedup, below 1, of each case that speculation certainly slows down.
        load: the load of this machine's processor when the run began; null if other machines
            measured.
    """

    schema_version: Literal[3] = SCHEMA_VERSION
    run: Label
    tier: Label
    environment: Label
    attached: str = ""
    attached_control: str = ""
    complete: bool
    exit_status: int
    outcomes: dict[Label, int]
    verdicts: tuple[Verdict, ...]
    skipped: dict[Label, str] = {}
    no_power: str = ""
    slowed: dict[Label, float] = {}
    load: ProcessorLoad | None = None


class RunOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to repeat a run.

    Attributes:
        command: the command as it was typed.
        specreg_version: the version of specreg that ran.
        commit: the commit of the repository; empty outside a repository.
        python_version: the version of Python that ran specreg.
        driver_version: the version of the GPU driver; empty without a GPU.
        options: the options that repeat the run, without those that select cases.
    """

    command: str
    specreg_version: str
    commit: str
    python_version: str
    driver_version: str
    options: tuple[str, ...] = ()


def origin_of(
    commit: str, command: str, driver_version: str = "", options: tuple[str, ...] = ()
) -> RunOrigin:
    """Describe the origin of a run that this specreg measured at a commit of the repository."""
    return RunOrigin(
        command=command,
        specreg_version=specreg.__version__,
        commit=commit,
        python_version=platform.python_version(),
        driver_version=driver_version,
        options=options,
    )


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a case is compared with: its baseline, or the same case on side A.

    Attributes:
        environment: the environment that the values were recorded in.
        recorded_on: the date of the recording.
        engine_version: the version of the engine that was recorded.
        reason: why the baseline was recorded; for side A, what is installed there, or which run it
            is.
        values: the value of each metric, over the prompts that were measured; empty for two runs
            side by side, whose verdicts have the values of run A.
        marginal_frac: the marginal acceptance (0..1) of each draft position, the first one first.
        by_category_length_tokens: the acceptance length of each category that has one.
        driver_version: the version of the GPU driver; empty without a GPU.
        facts: what the engine reported about the first recorded launch.
    """

    environment: Label
    recorded_on: str
    engine_version: str
    reason: str
    values: dict[Label, float]
    marginal_frac: tuple[float, ...]
    by_category_length_tokens: dict[Label, float] = {}
    driver_version: str = ""
    facts: LaunchFacts = NOTHING_KNOWN


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """One case: its settings, what was measured, and what that is compared with.

    Attributes:
        target: the folder or the hub id of the target model.
        draft: the folder or the hub id of the draft model; empty if the method has none.
        settings: all settings that must be equal for a comparison; null if they are unknown.
        figures: the figures of the launch with the fewest invalid families of metrics, or of the
            last of several such launches; in a gate, of the last launch of side B. Null if nothing
            was measured.
        expected: what the case is compared with; null without a baseline, or without figures of
            side A.
        history: the latest runs on this machine, this run included, the oldest first; empty in a
            gate.
        reproduce: the command that measures this case again.
        logs: the paths of the servers' logs, relative to the run's folder.
        torch_version: the engine's version of PyTorch; empty unless the run records baselines.
        error: the complete error message of the case; empty without an error.
    """

    case_id: ReportedCase
    engine: Label
    method: Label
    models: Label
    dataset: Label
    target: Label
    draft: Label
    settings: CaseSettings | None
    figures: Figures | None
    expected: Expected | None
    history: tuple[RunRecord, ...]
    reproduce: str
    logs: tuple[str, ...] = ()
    torch_version: str = ""
    error: str = ""


class SharedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of document have: one with `arms` in it is a `ComparedReport`.

    Attributes:
        run: what the run decided, or the gate.
        machine: the environment that was measured in.
        origin: what is needed to repeat the run.
        cases: of a run, the cases with a verdict, in the order of the tier; of a gate, all cases.
        tier_cases: the ids of all cases of the tier.
        remarks: further notes for the reader.
        ended_at: when the run ended, in UTC and ISO 8601.
    """

    schema_version: Literal[3] = SCHEMA_VERSION
    run: RunVerdict
    machine: Environment
    origin: RunOrigin
    cases: tuple[CaseReport, ...]
    tier_cases: tuple[Label, ...]
    remarks: tuple[str, ...] = ()
    ended_at: str = ""


class RunReport(SharedReport, frozen=True, kw_only=True):
    """The whole document of a run.

    Attributes:
        time: how long each stage of the run took; null if that isn't known.
    """

    time: RunTime | None = None


class ComparedReport(SharedReport, frozen=True, kw_only=True):
    """The whole document of a gate, or of two runs side by side.

    Attributes:
        answers: the headlines.
        sides: A and B; their key is `arms`.
        control: the verdicts of a gate on side A compared with itself.
        hints: what a gate advises to do next.
    """

    answers: tuple[Headline, ...]
    sides: tuple[SideReport, SideReport] = msgspec.field(name="arms")
    control: tuple[Verdict, ...] = ()
    hints: tuple[str, ...] = ()


Report: TypeAlias = RunReport | ComparedReport


def flat_fields(verdict: Verdict) -> dict[str, object]:
    """Return the fields of a verdict without nesting, for a row of a table or for properties.

    The fields of the comparison become fields of the verdict. The reason and the cause become
    sentences.
    """
    fields = msgspec.to_builtins(verdict)
    comparison = fields.pop("comparison")
    sentences = {"reason": verdict.explanation, "cause": str(verdict.cause or "")}
    return {**fields, **comparison, **sentences}


def last_verdicts(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Return the last verdict for each figure and outcome.

    A figure is MEASURED while more launches are to come. That verdict is left out if the figure has
    another outcome, too.
    """
    last = {((verdict.case_id, verdict.metric), verdict.outcome): verdict for verdict in verdicts}
    judged = {figure for figure, outcome in last if outcome is not Outcome.MEASURED}
    return tuple(
        verdict
        for (figure, outcome), verdict in last.items()
        if outcome is not Outcome.MEASURED or figure not in judged
    )


def reproduce_command(case_id: str, options: tuple[str, ...], figures: Figures | None) -> str:
    """Return the command that measures a case again, with the version of its engine.

    Without the version, the command would measure a newer version as soon as specreg prefers it.

    Args:
        options: the options of the run.
        figures: what the run measured; None if it measured nothing.
    """
    names_engine = any(option.startswith(_NAME_THE_ENGINE) for option in options)
    if figures is not None and not names_engine:
        # A build's local part after the "+" can't be installed from an index.
        version = figures.engine_version.partition("+")[0]
        if version:
            # The version may come from another machine, so it has to pass the check of options.
            options += portable_options((f"--specreg-engine-version={version}",))

    return run_command((case_id,), options)


def is_release(text: str) -> bool:
    """Return whether a text names a release that an index has, such as `vllm==0.31.0`.

    A report of another machine may contain any text instead.
    """
    return _RELEASE.fullmatch(text) is not None


def began_at(run: str) -> dt.datetime | None:
    """Return when a run began, in UTC, from its name; None if the name contains no time."""
    try:
        return dt.datetime.strptime(f"{run.partition('-')[0]}+0000", "%Y%m%dT%H%M%S%z")
    except ValueError:
        return None


def render_schema() -> str:
    """Render the JSON Schema of the document. `docs/report.schema.json` is a copy of it."""
    schema = schema_of(ComparedReport, RunReport)
    schema["description"] = inspect.getdoc(SharedReport)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = f"urn:specreg:report:{SCHEMA_VERSION}"
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
