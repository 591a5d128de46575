"""`report.json`: all that is known of a run or of a gate, in one document.

The suite fills one of a run, whose title, answers and hints follow from `run`; a gate one with
`arms`, which brings its own and has A's values as `expected`. Every other form is rendered from it;
`docs/report.schema.json` is its JSON Schema. Two runs side by side are a document too.
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
from specreg.core.commands import is_own_command, is_own_option, specreg_command
from specreg.core.errors import ReportError
from specreg.core.files import MIB, UNREADABLE, replace_file
from specreg.core.names import ReportedCase
from specreg.core.readable import readable_block
from specreg.core.reasons import Reason
from specreg.core.received import read_received, write_below
from specreg.core.timeline import RunTime
from specreg.core.values import check_plain_names, readable_values, with_texts
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
_ARMS = {0, 2}
"""How many sides a document may have: none of a run, two of a gate."""
REGRESSED_STATUS = 1
UNDECIDED_STATUS = 10
NO_BASELINE_STATUS = 11
STATUS_MEANINGS = {
    REGRESSED_STATUS: "something is proven to be worse or wrong, or a test failed otherwise",
    UNDECIDED_STATUS: "nothing is proven to be worse, but something couldn't be judged",
    NO_BASELINE_STATUS: "nothing is worse, but there is no baseline to compare with",
}
"""What an exit status of a run says, for people who see its number alone."""


class Tone(StrEnum):
    """A colour: all is well, it can't be told or part is missing, something is wrong."""

    GOOD = "good"
    DOUBT = "doubt"
    BAD = "bad"


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question in a line: of a run on "acceptance", "speed" or "power"."""

    subject: str
    tone: Tone
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


class ArmReport(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a gate: its name A or B, and as it was typed.

    `overrides` are KEY=VALUE, what its cases have otherwise; `installed` is package, version and
    where it came from if that is no index; `engine_versions` is its servers' own word.
    """

    name: str
    text: str
    overrides: tuple[str, ...] = ()
    installed: str = ""
    engine_versions: tuple[str, ...] = ()


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a run decided, as in `verdict.json`; its name is its folder's.

    Attributes:
        attached: the URL of a server that this run didn't start, empty where it started its own.
        complete: whether the whole tier was judged, and nothing cut it short.
        verdicts: in the order of the run; outcomes: how many of each.
        skipped: by case that didn't fit the machine, what it needs.
        no_power: why power wasn't measured, empty where it was or wasn't asked for.
        slowed: by case that speculation slows down for sure, its speedup, below 1.
        load: of this machine's processor when the run began; null where others measured.
    """

    schema_version: Literal[3] = SCHEMA_VERSION
    run: str
    tier: str
    environment: str
    attached: str = ""
    complete: bool
    exit_status: int
    outcomes: dict[str, int]
    verdicts: tuple[Verdict, ...]
    skipped: dict[str, str] = {}
    no_power: str = ""
    slowed: dict[str, float] = {}
    load: ProcessorLoad | None = None


class RunOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run comes from: what was typed, and the options that repeat it beside the cases.

    The commit of the repository and the driver of the GPUs are empty without one.
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
    """Return where a run of this specreg comes from, in a repository at `root`."""
    return RunOrigin(
        command=command,
        specreg_version=specreg.__version__,
        commit=commit_of(root),
        python_version=platform.python_version(),
        driver_version=driver_version,
        options=options,
    )


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What the baseline of a case holds, of the prompts that were measured; when, with what, why.

    `marginal_frac` is by position of the draft, from the first; `facts` are those of its first
    launch.
    """

    environment: str
    recorded_on: str
    engine_version: str
    reason: str
    values: dict[str, float]
    marginal_frac: tuple[float, ...]
    driver_version: str = ""
    facts: LaunchFacts = NOTHING_KNOWN


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one case.

    Attributes:
        draft: a folder or a hub id as the target, empty where the method needs none.
        settings: all that must be equal to compare; null where it couldn't be told.
        figures: of its last valid launch, else of the last one; null where none was measured.
        expected: null without a baseline.
        history: what earlier runs on this machine and this one did, the oldest first.
        reproduce: what to type; logs: what its servers said, from the run's folder.
        torch_version: of its engine, in a run that records.
        error: what went wrong with it in full.
    """

    case_id: ReportedCase
    engine: str
    method: str
    models: str
    dataset: str
    target: str
    draft: str
    settings: CaseSettings | None
    figures: Figures | None
    expected: Expected | None
    history: tuple[RunRecord, ...]
    reproduce: str
    logs: tuple[str, ...] = ()
    torch_version: str = ""
    error: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The document.

    Attributes:
        cases: in the order of the run; tier_cases: the ids of all cases of the tier.
        remarks: what a reader should know besides.
        ended_at: when it was done, in UTC by ISO 8601; time: where it went until then.
        title, answers, hints: of a gate; empty where they follow from `run`.
        arms: of a gate, A and B, none of a run; control: its verdicts on A against itself.
    """

    schema_version: Literal[3] = SCHEMA_VERSION
    run: RunVerdict
    machine: Environment
    origin: RunOrigin
    cases: tuple[CaseReport, ...]
    tier_cases: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    ended_at: str = ""
    time: RunTime | None = None
    title: str = ""
    answers: tuple[Headline, ...] = ()
    arms: tuple[ArmReport, ...] = ()
    control: tuple[Verdict, ...] = ()
    hints: tuple[str, ...] = ()


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """Return the exit status for verdicts that failed.

    1: something REGRESSED or is WRONG. 10: nothing did, but something is INVALID or INCONCLUSIVE.
    11: only baselines are missing or unreadable. 0: all hold.
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
    """Count the verdicts of each outcome, in the order of the outcomes."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    return {str(outcome): counts[outcome] for outcome in Outcome if counts[outcome]}


def flat_fields(verdict: Verdict) -> dict[str, object]:
    """Return all that a verdict says by name, without nesting: for rows and properties.

    The fields of its comparison stand among its own; its reason and its cause are sentences.
    """
    fields = msgspec.to_builtins(verdict)
    comparison = fields.pop("comparison")
    sentences = {"reason": verdict.explanation, "cause": str(verdict.cause or "")}
    return {**fields, **comparison, **sentences}


def last_words(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Return the last verdict for each figure and outcome.

    A figure that was only measured at first, because more launches were to come, is left out if it
    was judged later.
    """
    last = {((verdict.case_id, verdict.metric), verdict.outcome): verdict for verdict in verdicts}
    judged = {figure for figure, outcome in last if outcome is not Outcome.MEASURED}
    return tuple(
        verdict
        for (figure, outcome), verdict in last.items()
        if outcome is not Outcome.MEASURED or figure not in judged
    )


def record_document(path: Path, content: object) -> None:
    """Write a document for programs as JSON.

    Raises:
        ReportError: The disk refuses.
    """
    encoded = msgspec.json.encode(readable_values(content))
    write_whole(path, msgspec.json.format(encoded, indent=1) + b"\n")


def write_in(folder: Path, name: str, content: bytes) -> Path:
    """Write a file below a folder, whole or not at all, and return its path.

    Part of the name may come from a document, a case's id for instance.

    Raises:
        ReportError: The file would be outside the folder, or the disk refuses.
    """
    try:
        return write_below(folder, name, content)
    except OSError as error:
        message = f"{str(folder / name)!a}: not written, {error.strerror}"
        advice = "make room, mend its rights, or name another folder"
        raise ReportError(f"{message}; {advice}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        ReportError: The disk refuses.
    """
    try:
        replace_file(path, content)
    except OSError as error:
        message = f"'{path}': not written, {error.strerror}; make room or mend its rights"
        raise ReportError(message) from error


def load_report(path: Path) -> Report:
    """Load the document in a file.

    Raises:
        ReportError: There is none, or it can't be read or is of another form.
    """
    try:
        content = read_received(path.parent, path.name, _MAX_BYTES)
        report = msgspec.json.decode(content, type=Report)
        document = msgspec.json.decode(content)
        check_numbers(document)
        check_plain_names(document)
        if len(report.arms) not in _ARMS:
            raise msgspec.ValidationError(f"`arms` has {len(report.arms)}, needed none or two")
        _check_commands(report)
    except (OSError, *UNREADABLE) as error:
        advice = "run the tier again, or use the specreg of the run"
        raise ReportError(f"report '{path}': {error}; {advice}") from error
    else:
        # Secrets are hidden where it is shown, once the words that it is read by are known.
        return with_texts(report, lambda text: readable_block(text, secrets=()))


def _check_commands(report: Report) -> None:
    """Check that the commands which a report shows run the suite: a reader copies them to a shell.

    Raises:
        msgspec.ValidationError: One of them doesn't.
    """
    for case in report.cases:
        if not is_own_command(case.reproduce):
            message = f"`reproduce` of {case.case_id} is no command of the suite"
            raise msgspec.ValidationError(message)
    for option in report.origin.options:
        if not is_own_option(option):
            raise msgspec.ValidationError(f"`options` has {option!a}, no option of the suite")


def began_at(run: str) -> dt.datetime | None:
    """Return when a run began, by its name, which is in UTC; None if the name has no time."""
    try:
        return dt.datetime.strptime(f"{run.partition('-')[0]}+0000", "%Y%m%dT%H%M%S%z")
    except ValueError:
        return None


def render_schema() -> str:
    """Render the JSON Schema of the document, which `docs/report.schema.json` has for others."""
    schema = schema_of(Report)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = f"urn:specreg:report:{SCHEMA_VERSION}"
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def load_verdict(path: Path) -> RunVerdict | None:
    """Load a run's verdict; return None if there is none that can be read."""
    with contextlib.suppress(OSError, *UNREADABLE):
        content = read_received(path.parent, path.name, _MAX_BYTES)
        return msgspec.json.decode(content, type=RunVerdict)
    return None


def last_launches(figures: Iterable[Figures]) -> tuple[Figures, ...]:
    """Return the figures of one launch of each case: the last of those with most valid families.

    A case without any valid family isn't among them. The order is that of the first launches.
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
    """Return what orders launches: first by how few families are invalid, then by number."""
    return -len(launch.invalid or ()), launch.launch


def slowed_of(figures: Iterable[Figures]) -> dict[str, float]:
    """Return the speedup of each case that speculation slows down.

    A case is slowed down if nine in ten of several rounds of each launch were slower than the
    rounds of the control beside them. Its speedup is the geometric mean over its valid launches.
    """
    speedups: dict[str, list[SpeedupFigures]] = {}
    for launch in figures:
        if launch.speedup is not None and launch.speedup.throughput_ratio:
            speedups.setdefault(launch.case_id, []).append(launch.speedup)
    return {
        case_id: statistics.geometric_mean(
            speedup.throughput_ratio for speedup in case_speedups if speedup.throughput_ratio
        )
        for case_id, case_speedups in speedups.items()
        if all(_is_slower(speedup.round_ratio) for speedup in case_speedups)
    }


def _is_slower(round_ratio: Summary | None) -> bool:
    """Return True if nine in ten of several rounds were slower than those of the control."""
    return round_ratio is not None and round_ratio.count > 1 and round_ratio.p90 < 1


def expected_of(known: CaseBaselines, measured: Sequence[Measurement]) -> Expected | None:
    """Return what a case is compared with, from its baseline, for the prompts that were measured.

    A baseline also has the prompts of the extension. They are left out, because what is drawn side
    by side, and what is judged, has to be of the same prompts. The speed of another kind of machine
    is left out, too.
    """
    baseline = known.baseline
    if baseline is None:
        return None
    record = load_acceptance(baseline.acceptance)
    records = [measurement.acceptance for measurement in measured if measurement.acceptance]
    measured_prompts: set[str] = set()
    if records:
        measured_prompts = {prompt.prompt_id for prompt in records[0].prompts}
    if record is not None and record.prompts and measured_prompts:
        record = record.only(measured_prompts)
    marginal_frac: tuple[float, ...] = ()
    if record is not None:
        marginal_frac = record.total.marginal_acceptance
    values = {}
    for metric in METRICS.values():
        if not metric.by_launch:
            values[metric.name] = acceptance_value(metric, record)
        elif known.exact is not None:
            values[metric.name] = baseline.expected_value(metric)
    return Expected(
        environment=baseline.environment.name,
        recorded_on=baseline.provenance.recorded_on,
        engine_version=baseline.provenance.engine_version,
        driver_version=baseline.provenance.driver_version,
        facts=baseline.provenance.facts,
        reason=baseline.provenance.reason,
        values={name: value for name, value in values.items() if value is not None},
        marginal_frac=marginal_frac,
    )


def side_by_side(a: Report, b: Report) -> Report:
    """Return a report of run B with run A in place of the baseline, for the cases of both.

    Nothing is judged. What was measured with other settings is NOT_COMPARABLE, and so are speed
    and power of another kind of machine.

    Raises:
        ReportError: No case is in both, or a report is a gate's, which has two sides already.
    """
    names = f"'{a.run.run}' and '{b.run.run}'"
    if a.arms or b.arms:
        message = f"runs {names}: one of them compares two sides already; name runs of the suite"
        raise ReportError(message)
    cases_of_a = {case.case_id: case for case in a.cases}
    cases = [case for case in b.cases if case.case_id in cases_of_a]
    if not cases:
        raise ReportError(f"runs {names}: no case is in both; name two runs of one tier")
    verdicts: list[Verdict] = []
    for case in cases:
        verdicts += _changes(a, b, cases_of_a[case.case_id], case)
    sides = {"A": a, "B": b}
    run = msgspec.structs.replace(
        b.run,
        complete=True,
        verdicts=tuple(verdicts),
        outcomes=count_outcomes(verdicts),
        skipped={},
    )
    command = specreg_command("report", a.run.run, b.run.run)
    return msgspec.structs.replace(
        b,
        run=run,
        origin=msgspec.structs.replace(b.origin, command=command),
        # The logs are in the folder of B's run, which is not where this document is kept.
        cases=tuple(
            msgspec.structs.replace(
                case, expected=_as_expected(a, cases_of_a[case.case_id]), logs=()
            )
            for case in cases
        ),
        remarks=tuple(_cases_of_one_side(sides, {case.case_id for case in cases})),
        time=None,
        title="Two runs side by side",
        answers=(_count_changes(verdicts),),
        arms=tuple(
            ArmReport(
                name=name,
                text=f"run {report.run.run} on {report.run.environment}",
                engine_versions=tuple(dict.fromkeys(map(_engine, report.cases))),
            )
            for name, report in sides.items()
        ),
    )


def _count_changes(verdicts: Iterable[Verdict]) -> Headline:
    """Return how many figures are better in B and how many are worse."""
    changes = [
        verdict.comparison.change_frac
        for verdict in verdicts
        if verdict.comparison.change_frac is not None
    ]
    better = sum(change_frac > 0 for change_frac in changes)
    worse = sum(change_frac < 0 for change_frac in changes)
    text = f"of {len(changes)} figures {better} are better in B and {worse} worse; none is judged"
    return Headline(subject="B against A", tone=Tone.DOUBT, text=text)


def _cases_of_one_side(sides: Mapping[str, Report], common: AbstractSet[str]) -> Iterator[str]:
    """Yield, for each side, the cases that the other side doesn't have."""
    for name, report in sides.items():
        ids = [case.case_id for case in report.cases if case.case_id not in common]
        if ids:
            yield f"only {name} has {', '.join(ids)}"


def _changes(a: Report, b: Report, old: CaseReport, new: CaseReport) -> Iterator[Verdict]:
    """Yield a verdict for each figure of a case that both runs have, with the change or a reason.

    Args:
        a: run A.
        b: run B.
        old: the case in run A.
        new: the case in run B.
    """
    verdicts_of_a = {
        verdict.metric: verdict
        for verdict in last_words(a.run.verdicts)
        if verdict.case_id == old.case_id and verdict.value is not None
    }
    other_settings = "its settings aren't known"
    if old.settings is not None and new.settings is not None:
        other_settings = differing_settings(old.settings, new.settings)
    environments = sorted({a.run.environment, b.run.environment})
    other_machine = ""
    if len(environments) > 1:
        other_machine = f"measured on {' and on '.join(environments)}"
    for verdict in last_words(b.run.verdicts):
        verdict_of_a = verdicts_of_a.get(verdict.metric)
        is_of_case = verdict.case_id == new.case_id and verdict.value is not None
        if is_of_case and verdict_of_a is not None:
            metric = METRICS.get(verdict.metric)
            obstacle = other_settings
            if not obstacle and metric is not None and metric.by_launch:
                obstacle = other_machine
            yield _change(verdict_of_a, verdict, obstacle)


def _change(verdict_of_a: Verdict, verdict_of_b: Verdict, obstacle: str) -> Verdict:
    """Return a verdict on the change of a figure that both runs have.

    Args:
        verdict_of_a: with a value.
        verdict_of_b: with a value.
        obstacle: why the figures can't be compared; empty if they can, unless one is invalid.
    """
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
    metric = METRICS.get(verdict_of_b.metric)
    change_frac = None
    value_of_a = verdict_of_a.value
    value_of_b = verdict_of_b.value
    if metric is not None and not obstacle and value_of_a is not None and value_of_b is not None:
        change_frac = better_frac(metric, value_of_b, value_of_a)
    return Verdict(
        case_id=verdict_of_b.case_id,
        metric=verdict_of_b.metric,
        outcome=outcome,
        value=verdict_of_b.value,
        comparison=Comparison(expected=verdict_of_a.value, change_frac=change_frac),
        reason=Reason(text=reason) if reason else None,
    )


def _as_expected(a: Report, case: CaseReport) -> Expected:
    """Return the figures of a case in run A in the form of a baseline's."""
    engine_version = ""
    marginal_frac: tuple[float, ...] = ()
    if case.figures is not None:
        engine_version = case.figures.engine_version
        if case.figures.acceptance is not None:
            marginal_frac = case.figures.acceptance.total.marginal_frac
    return Expected(
        environment=a.run.environment,
        recorded_on=a.ended_at.partition("T")[0],
        engine_version=engine_version,
        reason=f"run {a.run.run}",
        values={},
        marginal_frac=marginal_frac,
        driver_version=a.origin.driver_version,
    )


def _engine(case: CaseReport) -> str:
    """Return the engine of a case with its version, if that is known."""
    if case.figures is None:
        return case.engine
    return f"{case.engine} {case.figures.engine_version}".rstrip()
