"""The report document, `report.json`: everything that a run or a gate recorded and decided.

There are three kinds. The suite, or a merge of its shards, writes the document of a run, in which
title, answers and hints are empty, because they follow from `run`. A gate writes a document with
two `arms`, with a title, answers and hints, and with the values of side A as `expected`. `specreg
report A B` puts two runs side by side, as two `arms` without hints. The terminal, the HTML page and
all exports are rendered from this document, and `docs/report.schema.json` is its JSON Schema.
"""

import contextlib
import datetime as dt
import json
import platform
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

import specreg
from specreg.baselines.comparison import CaseBaselines, differing_settings
from specreg.baselines.record import commit_of
from specreg.baselines.schema import load_acceptance, schema_of
from specreg.core.commands import portable_options, run_command, specreg_command
from specreg.core.errors import ReportError
from specreg.core.files import MIB, UNREADABLE, cause_of, replace_file
from specreg.core.names import ReportedCase
from specreg.core.readable import Label, readable_block
from specreg.core.reasons import Reason
from specreg.core.received import read_received, write_below
from specreg.core.timeline import RunTime
from specreg.core.values import readable_values, with_texts
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts
from specreg.matrix.case import CaseSettings
from specreg.measurement.figures import Figures, SpeedupFigures
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Family, acceptance_value, better_frac
from specreg.measurement.plausible import check_numbers
from specreg.stats.percentiles import Summary
from specreg.telemetry.identity import Environment, ProcessorLoad
from specreg.verdicts.history import RunRecord
from specreg.verdicts.verdict import Comparison, Outcome, Verdict

SCHEMA_VERSION: Literal[3] = 3
FILE_NAME = "report.json"
_MAX_BYTES = 256 * MIB
_ARM_COUNTS = {0, 2}
"""How many arms a document may have: none for a run, and two for a gate or for two runs side
by side."""
_NAME_THE_ENGINE = ("--specreg-engine-version", "--specreg-engine-python", "--specreg-attach")
"""The options that decide which version of an engine a run measures."""
REGRESSED_STATUS = 1
UNDECIDED_STATUS = 10
NO_BASELINE_STATUS = 11
STATUS_MEANINGS = {
    REGRESSED_STATUS: "something is proven to be worse or wrong, or a test failed otherwise",
    UNDECIDED_STATUS: "nothing is proven to be worse, but something couldn't be judged",
    NO_BASELINE_STATUS: "nothing is worse, but there is no baseline to compare with",
}
"""What each exit status of a failed run means, for readers who see only the number."""


class Tone(StrEnum):
    """How good the news of a headline is. The renderers choose a colour for each tone."""

    GOOD = "good"
    """Everything is as it should be."""
    DOUBT = "doubt"
    """Something is undecided or missing."""
    BAD = "bad"
    """Something is worse or wrong."""


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """A one-line answer to one question.

    The subject of a run's headline is "acceptance", "speed" or "power".
    """

    subject: str
    tone: Tone
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


class ArmReport(msgspec.Struct, frozen=True, kw_only=True):
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
    root: Path, command: str, driver_version: str = "", options: tuple[str, ...] = ()
) -> RunOrigin:
    """Describe the origin of a run that this specreg starts in the repository at `root`."""
    return RunOrigin(
        command=command,
        specreg_version=specreg.__version__,
        commit=commit_of(root),
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
        driver_version: the version of the GPU driver; empty without a GPU.
        facts: what the engine reported about the first recorded launch.
    """

    environment: Label
    recorded_on: str
    engine_version: str
    reason: str
    values: dict[Label, float]
    marginal_frac: tuple[float, ...]
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


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document of a run or a gate.

    Attributes:
        run: what the run decided.
        machine: the environment that the run measured in.
        origin: what is needed to repeat the run.
        cases: of a run, the cases with a verdict, in the order of the tier; of a gate, all cases.
        tier_cases: the ids of all cases of the tier.
        remarks: further notes for the reader.
        ended_at: when the run ended, in UTC and ISO 8601.
        time: how long each stage of the run took; null for a document with two sides.
        title: the title of a document with two sides; empty for a run, whose title follows from
            `run`.
        answers: the headlines of a document with two sides; empty for a run, whose headlines follow
            from `run`.
        arms: the sides A and B of a gate, or of two runs side by side; empty for a run.
        control: the verdicts of a gate on side A compared with itself.
        hints: what a gate advises to do next; empty for a run, whose hints follow from `run`.
    """

    schema_version: Literal[3] = SCHEMA_VERSION
    run: RunVerdict
    machine: Environment
    origin: RunOrigin
    cases: tuple[CaseReport, ...]
    tier_cases: tuple[Label, ...]
    remarks: tuple[str, ...] = ()
    ended_at: str = ""
    time: RunTime | None = None
    title: str = ""
    answers: tuple[Headline, ...] = ()
    arms: tuple[ArmReport, ...] = ()
    control: tuple[Verdict, ...] = ()
    hints: tuple[str, ...] = ()


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """Return the exit status of a run with these verdicts.

    Returns:
        1 if a figure is REGRESSED or WRONG; otherwise 10 if one is INVALID or if the test of an
        INCONCLUSIVE one fails; otherwise 11 if a baseline is missing or unreadable; otherwise 0.
    """
    failed = {verdict.outcome for verdict in verdicts if verdict.fails}
    if failed & {Outcome.REGRESSED, Outcome.WRONG}:
        return REGRESSED_STATUS
    if failed & {Outcome.INVALID, Outcome.INCONCLUSIVE}:
        return UNDECIDED_STATUS
    if Outcome.NO_BASELINE in failed:
        return NO_BASELINE_STATUS
    return 0


def count_outcomes(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Count the verdicts of each outcome, in the order in which `Outcome` defines them."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    return {str(outcome): counts[outcome] for outcome in Outcome if counts[outcome]}


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


def record_document(path: Path, content: object) -> None:
    """Write a document as indented JSON, whole or not at all.

    Raises:
        ReportError: The file can't be written.
    """
    encoded = msgspec.json.encode(readable_values(content))
    write_whole(path, msgspec.json.format(encoded, indent=1) + b"\n")


def write_in(folder: Path, name: str, content: bytes) -> Path:
    """Write a file below a folder, whole or not at all, and return its path.

    Args:
        folder: the folder that the file must stay below.
        name: the path below the folder. Part of it may come from a document, for example the id
            of a case, so it isn't trusted.
        content: what the file shall contain.

    Raises:
        ReportError: The file would be outside the folder, or it can't be written.
    """
    try:
        return write_below(folder, name, content)
    except OSError as error:
        message = f"{str(folder / name)!a}: not written, {error.strerror}"
        advice = "make room, repair its rights, or name another folder"
        raise ReportError(f"{message}; {advice}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        ReportError: The file can't be written.
    """
    try:
        replace_file(path, content)
    except OSError as error:
        message = f"'{path}': not written, {error.strerror}; make room or repair its rights"
        raise ReportError(message) from error


def load_report(path: Path) -> Report:
    """Load a report document, which somebody else may have sent.

    The commands in it are replaced by those of this machine, or left out if the document has two
    sides, so that a reader who copies a command starts no program that the document names.

    Raises:
        ReportError: The file is missing, can't be read, or doesn't have the form of a report.
    """
    return _with_own_commands(load_own_report(path))


def load_own_report(path: Path) -> Report:
    """Load a report document that this process has written, with its commands as they are.

    Raises:
        ReportError: As for `load_report`.
    """
    try:
        content = read_received(path.parent, path.name, _MAX_BYTES)
        report = msgspec.json.decode(content, type=Report)
        check_numbers(msgspec.to_builtins(report))
        if len(report.arms) not in _ARM_COUNTS:
            raise msgspec.ValidationError(f"`arms` has {len(report.arms)}, needed none or two")
    except (OSError, *UNREADABLE) as error:
        advice = "run the tier again, or use the specreg of the run"
        raise ReportError(f"report '{path}': {cause_of(error)}; {advice}") from error
    else:
        # The renderers hide secrets, because not all secrets are known yet when a report is loaded.
        return with_texts(report, lambda text: readable_block(text, secrets=()))


def _with_own_commands(report: Report) -> Report:
    """Replace all commands of a report by those with which this machine does the same.

    The commands of a gate, and of two runs side by side, name programs and folders of the machine
    that compared them. Such documents lose their commands, and the hints, which have commands too.
    """
    cases = []
    options = portable_options(report.origin.options)
    for case in report.cases:
        command = ""
        if not report.arms:
            command = reproduce_command(case.case_id, options, case.figures)
        cases.append(msgspec.structs.replace(case, reproduce=command))
    command = ""
    if not report.arms:
        case_ids = []
        # A run of the whole tier needs no names of cases.
        if not report.run.complete:
            case_ids = [case.case_id for case in cases]
        command = run_command(case_ids, options)
    origin = msgspec.structs.replace(report.origin, command=command, options=options)
    return msgspec.structs.replace(report, origin=origin, cases=tuple(cases), hints=())


def reproduce_command(case_id: str, options: tuple[str, ...], figures: Figures | None) -> str:
    """Return the command that measures a case again, with the version of its engine.

    Without the version, the command would measure a newer version as soon as specreg prefers it.

    Args:
        case_id: The case.
        options: The options of the run.
        figures: What the run measured; None if it measured nothing.
    """
    names_engine = any(option.startswith(_NAME_THE_ENGINE) for option in options)
    if figures is not None and not names_engine:
        # A build's local part after the "+" can't be installed from an index.
        version = figures.engine_version.partition("+")[0]
        if version:
            # The version may come from another machine, so it has to pass the check of options.
            options += portable_options((f"--specreg-engine-version={version}",))
    return run_command((case_id,), options)


def began_at(run: str) -> dt.datetime | None:
    """Return when a run began, in UTC, from its name; None if the name contains no time."""
    try:
        return dt.datetime.strptime(f"{run.partition('-')[0]}+0000", "%Y%m%dT%H%M%S%z")
    except ValueError:
        return None


def render_schema() -> str:
    """Render the JSON Schema of the document. `docs/report.schema.json` is a copy of it."""
    schema = schema_of(Report)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = f"urn:specreg:report:{SCHEMA_VERSION}"
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def load_verdict(path: Path) -> RunVerdict | None:
    """Load what a run decided; return None if the file is missing or can't be read."""
    with contextlib.suppress(OSError, *UNREADABLE):
        content = read_received(path.parent, path.name, _MAX_BYTES)
        return msgspec.json.decode(content, type=RunVerdict)
    return None


def last_launches(figures: Iterable[Figures]) -> tuple[Figures, ...]:
    """Return, for each case, the figures of its launch with the fewest invalid metric families.

    The last of several such launches counts. A case is left out if all families of its best launch
    are invalid. The cases are in the order of their first launches.
    """
    last_by_case: dict[str, Figures] = {}
    for launch in figures:
        last = last_by_case.setdefault(launch.case_id, launch)
        if _validity_and_number(launch) > _validity_and_number(last):
            last_by_case[launch.case_id] = launch
    return tuple(
        launch for launch in last_by_case.values() if len(launch.invalid or ()) < len(Family)
    )


def _validity_and_number(launch: Figures) -> tuple[int, int]:
    """Return a sort key. The last one has the fewest invalid families, then the highest number."""
    return -len(launch.invalid or ()), launch.launch


def slowed_of(figures: Iterable[Figures]) -> dict[str, float]:
    """Return the speedup of each case that speculation slows down.

    A case counts as slowed down if, in each of its launches, at least nine in ten rounds were
    slower than the control's rounds next to them. Its speedup is the geometric mean over its
    launches.
    """
    speedups: dict[str, list[SpeedupFigures]] = {}
    for launch in figures:
        if launch.speedup is not None and launch.speedup.throughput_ratio:
            speedups.setdefault(launch.case_id, []).append(launch.speedup)
    slowed = {}
    for case_id, case_speedups in speedups.items():
        if not all(_is_slower(speedup.round_ratio) for speedup in case_speedups):
            continue
        ratios = [speedup.throughput_ratio for speedup in case_speedups if speedup.throughput_ratio]
        slowed[case_id] = statistics.geometric_mean(ratios)
    return slowed


def _is_slower(round_ratio: Summary | None) -> bool:
    """Return True if nine in ten rounds were slower than those of the control."""
    # A single round shows nothing about how rounds vary.
    return round_ratio is not None and round_ratio.count > 1 and round_ratio.p90 < 1


def expected_of(
    case_baselines: CaseBaselines, measurements: Sequence[Measurement]
) -> Expected | None:
    """Return what the baseline of a case expects of the prompts that were measured.

    A baseline also has further prompts, which a run replays only if the case's own prompts can't
    decide. They are left out unless they were measured, so that charts and verdicts compare the
    same prompts. The speed of another kind of machine is left out as well.

    Returns:
        None without a baseline.
    """
    baseline = case_baselines.baseline
    if baseline is None:
        return None
    recorded = load_acceptance(baseline.acceptance)

    # Restrict the recorded acceptance to the prompts that were measured.
    records = [measurement.acceptance for measurement in measurements if measurement.acceptance]
    measured_prompts: set[str] = set()
    if records:
        measured_prompts = {prompt.prompt_id for prompt in records[0].prompts}
    if recorded is not None and recorded.prompts and measured_prompts:
        recorded = recorded.only(measured_prompts)
    marginal_frac: tuple[float, ...] = ()
    if recorded is not None:
        marginal_frac = recorded.total.marginal_acceptance

    # Acceptance carries over from other machines, but speed needs a baseline of this one.
    values = {}
    for metric in METRICS.values():
        if not metric.by_launch:
            values[metric.name] = acceptance_value(metric, recorded)
        elif case_baselines.exact is not None:
            values[metric.name] = baseline.expected_value(metric)

    provenance = baseline.provenance
    return Expected(
        environment=baseline.environment.name,
        recorded_on=provenance.recorded_on,
        engine_version=provenance.engine_version,
        driver_version=provenance.driver_version,
        facts=provenance.facts,
        reason=provenance.reason,
        values={name: value for name, value in values.items() if value is not None},
        marginal_frac=marginal_frac,
    )


def side_by_side(a: Report, b: Report) -> Report:
    """Return a report of run B in which run A takes the place of the baseline.

    The report contains the cases that both runs have. It shows changes and judges none of them, so
    its exit status is 0, and remarks name the status of a run that failed.

    A figure is NOT_COMPARABLE if it is INVALID in a run, if its settings differ or aren't known, or
    if it is a speed or a power and the machines are of different kinds.

    Raises:
        ReportError: The runs have no case in common, or one of the reports compares two sides
            already.
    """
    # Find the cases that both runs have.
    names = f"'{a.run.run}' and '{b.run.run}'"
    if a.arms or b.arms:
        message = f"runs {names}: one of them compares two sides already; name runs of the suite"
        raise ReportError(message)
    cases_of_a = {case.case_id: case for case in a.cases}
    common_cases = [case for case in b.cases if case.case_id in cases_of_a]
    if not common_cases:
        raise ReportError(f"runs {names}: no case is in both; name two runs of one tier")

    # Compare them.
    verdicts: list[Verdict] = []
    cases: list[CaseReport] = []
    for case in common_cases:
        case_of_a = cases_of_a[case.case_id]
        verdicts += _changes(a, b, case_of_a, case)
        # The paths of the logs are relative to the folder of run B. This document isn't in it.
        cases.append(msgspec.structs.replace(case, expected=_as_expected(a, case_of_a), logs=()))

    # Make the document of run B into one of two sides.
    common_ids = {case.case_id for case in common_cases}
    sides = {"A": a, "B": b}
    arms = tuple(
        ArmReport(
            name=name,
            text=_describe_run(report.run),
            engine_versions=tuple(dict.fromkeys(_engine_versions(report.cases))),
        )
        for name, report in sides.items()
    )
    run = msgspec.structs.replace(
        b.run,
        attached="",
        complete=True,
        exit_status=exit_status(verdicts),
        verdicts=tuple(verdicts),
        outcomes=count_outcomes(verdicts),
        skipped={},
    )
    command = specreg_command("report", a.run.run, b.run.run)
    return msgspec.structs.replace(
        b,
        run=run,
        origin=msgspec.structs.replace(b.origin, command=command),
        cases=tuple(cases),
        remarks=(*_cases_of_one_side(sides, common_ids), *_failed_sides(sides)),
        time=None,
        title="Two runs side by side",
        answers=(_count_changes(verdicts),),
        arms=arms,
    )


def _count_changes(verdicts: Iterable[Verdict]) -> Headline:
    """Return a headline with the number of figures that are better in B and that are worse."""
    compared = 0
    better = 0
    worse = 0
    for verdict in verdicts:
        change_frac = verdict.comparison.change_frac
        if change_frac is None:
            continue
        compared += 1
        # More power is neither better nor worse.
        if not verdict.comparison.two_sided:
            better += change_frac > 0
            worse += change_frac < 0
    text = f"of {compared} figures {better} are better in B and {worse} worse; none is judged"
    return Headline(subject="B against A", tone=Tone.DOUBT, text=text)


def _cases_of_one_side(sides: Mapping[str, Report], common_ids: AbstractSet[str]) -> Iterator[str]:
    """Yield a remark for each side that has cases which the other side lacks."""
    for name, report in sides.items():
        ids = [case.case_id for case in report.cases if case.case_id not in common_ids]
        if ids:
            yield f"only {name} has {', '.join(ids)}"


def _failed_sides(sides: Mapping[str, Report]) -> Iterator[str]:
    """Yield a remark for each side whose run failed, with its exit status."""
    for name, report in sides.items():
        status = report.run.exit_status
        if status in STATUS_MEANINGS:
            yield f"run {name} ended with status {status}: {STATUS_MEANINGS[status]}"
        elif status:
            yield f"run {name} ended with status {status}"


def _describe_run(run: RunVerdict) -> str:
    """Describe a run that is a side: its name, its machine and the server it attached to."""
    description = f"run {run.run} on {run.environment}"
    if run.attached:
        description += f", attached to {run.attached}"
    return description


def _changes(a: Report, b: Report, old: CaseReport, new: CaseReport) -> Iterator[Verdict]:
    """Yield a verdict for each of a case's figures that have a value in both runs.

    The verdict on a metric has the change, or the reason why the two figures can't be compared. If
    the outcomes of the runs differ, it names both.

    Args:
        a: the report of run A.
        b: the report of run B.
        old: the case in run A.
        new: the case in run B.
    """
    verdicts_of_a = {
        verdict.metric: verdict
        for verdict in last_verdicts(a.run.verdicts)
        if verdict.case_id == old.case_id and verdict.value is not None
    }
    settings_obstacle = "its settings aren't known"
    if old.settings is not None and new.settings is not None:
        settings_obstacle = differing_settings(old.settings, new.settings)
    environments = sorted({a.run.environment, b.run.environment})
    machine_obstacle = ""
    if len(environments) > 1:
        machine_obstacle = f"measured on {' and on '.join(environments)}"
    for verdict in last_verdicts(b.run.verdicts):
        verdict_of_a = verdicts_of_a.get(verdict.metric)
        is_of_case = verdict.case_id == new.case_id and verdict.value is not None
        if is_of_case and verdict_of_a is not None:
            metric = METRICS.get(verdict.metric)
            obstacle = settings_obstacle
            # Acceptance doesn't depend on the machine, so it can be compared between machines.
            if not obstacle and metric is not None and metric.by_launch:
                obstacle = machine_obstacle
            yield _change(verdict_of_a, verdict, obstacle)


def _change(verdict_of_a: Verdict, verdict_of_b: Verdict, obstacle: str) -> Verdict:
    """Return a verdict on the change of a figure that both runs have.

    Args:
        verdict_of_a: a verdict that has a value.
        verdict_of_b: a verdict on the same figure that has a value.
        obstacle: why the settings or the machines forbid a comparison; empty if they allow it.
    """
    # Find out whether the figures can be compared, and what to say about that.
    outcomes = f"{verdict_of_a.outcome} in A, {verdict_of_b.outcome} in B"
    reason = obstacle
    if Outcome.INVALID in (verdict_of_a.outcome, verdict_of_b.outcome):
        obstacle = outcomes
        reason = outcomes
    elif verdict_of_a.outcome is not verdict_of_b.outcome:
        reason = "; ".join(filter(None, (outcomes, obstacle)))
    outcome = Outcome.MEASURED
    if obstacle:
        outcome = Outcome.NOT_COMPARABLE

    # Compare them. A correctness check isn't a metric, so it has no change.
    metric = METRICS.get(verdict_of_b.metric)
    change_frac = None
    value_of_a = verdict_of_a.value
    value_of_b = verdict_of_b.value
    if metric is not None and not obstacle and value_of_a is not None and value_of_b is not None:
        change_frac = better_frac(metric, value_of_b, value_of_a)
    comparison = Comparison(
        expected=value_of_a,
        change_frac=change_frac,
        two_sided=metric is not None and metric.two_sided,
    )
    return Verdict(
        case_id=verdict_of_b.case_id,
        metric=verdict_of_b.metric,
        outcome=outcome,
        value=value_of_b,
        comparison=comparison,
        reason=Reason(text=reason) if reason else None,
    )


def _as_expected(a: Report, case: CaseReport) -> Expected | None:
    """Return what run A says about a case, in the form of a baseline; None without figures.

    The values stay empty, because each verdict contains the value of run A that it compares with.
    """
    if case.figures is None:
        return None
    marginal_frac: tuple[float, ...] = ()
    if case.figures.acceptance is not None:
        marginal_frac = case.figures.acceptance.total.marginal_frac
    return Expected(
        environment=a.run.environment,
        recorded_on=a.ended_at.partition("T")[0],
        engine_version=case.figures.engine_version,
        reason=f"run {a.run.run}",
        values={},
        marginal_frac=marginal_frac,
        driver_version=a.origin.driver_version,
    )


def _engine_versions(cases: Iterable[CaseReport]) -> Iterator[str]:
    """Yield the engine of each case with the version that its server reported, if it did."""
    for case in cases:
        if case.figures is not None and case.figures.engine_version:
            yield f"{case.engine} {case.figures.engine_version}"
