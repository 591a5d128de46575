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
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

import specreg
from specreg.baselines.comparison import CaseBaselines, differing_settings
from specreg.baselines.record import commit_of
from specreg.baselines.schema import load_acceptance, schema_of
from specreg.core.commands import is_plain_command, specreg_command
from specreg.core.errors import ReportError
from specreg.core.files import MIB, UNREADABLE, replace_file
from specreg.core.names import ReportedCase
from specreg.core.reasons import Reason
from specreg.core.received import read_received, write_below
from specreg.core.timeline import RunTime
from specreg.core.values import check_plain_names, readable_values
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts
from specreg.matrix.case import CaseSettings
from specreg.measurement.figures import Figures
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Family, acceptance_value, better_frac
from specreg.measurement.plausible import check_numbers
from specreg.stats.percentiles import Summary
from specreg.telemetry.identity import Environment, ProcessorLoad
from specreg.verdicts.history import RunRecord
from specreg.verdicts.verdict import Comparison, Outcome, Verdict

SCHEMA_VERSION: Literal[3] = 3
FILE_NAME = "report.json"
_MOST_BYTES = 256 * MIB
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
    """Where a run of this specreg comes from, in a repository at `root`."""
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
    return NO_BASELINE_STATUS if Outcome.NO_BASELINE in failed else 0


def count_outcomes(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many verdicts there are of each outcome, in the order of the outcomes."""
    counted = Counter(verdict.outcome for verdict in verdicts)
    return {str(one): counted[one] for one in Outcome if counted[one]}


def flat_fields(verdict: Verdict) -> dict[str, object]:
    """Return all that a verdict says by name, without nesting: for rows and properties.

    The fields of its comparison stand among its own; its reason and its cause are sentences.
    """
    fields = msgspec.to_builtins(verdict)
    comparison = fields.pop("comparison")
    sentences = {"reason": verdict.explanation, "cause": str(verdict.cause or "")}
    return {**fields, **comparison, **sentences}


def last_words(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """A verdict for each figure and outcome, the last one.

    What was measured with more launches to come is left out where it was judged then.
    """
    last = {((one.case_id, one.metric), one.outcome): one for one in verdicts}
    judged = {figure for figure, outcome in last if outcome is not Outcome.MEASURED}
    return tuple(
        one
        for (figure, outcome), one in last.items()
        if outcome is not Outcome.MEASURED or figure not in judged
    )


def record_document(path: Path, content: object) -> None:
    """Write what programs read of a run as JSON; ReportError where the disk refuses."""
    encoded = msgspec.json.encode(readable_values(content))
    write_whole(path, msgspec.json.format(encoded, indent=1) + b"\n")


def write_in(folder: Path, name: str, content: bytes) -> Path:
    """Write a file below a folder at once; a ReportError where it would lie elsewhere, or as above.

    A part of the name may be what a document says, a case's id for instance.
    """
    try:
        return write_below(folder, name, content)
    except OSError as error:
        message = f"{str(folder / name)!a}: not written, {error.strerror}"
        advice = "make room, mend its rights, or name another folder"
        raise ReportError(f"{message}; {advice}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file at once; ReportError where the disk refuses."""
    try:
        replace_file(path, content)
    except OSError as error:
        message = f"'{path}': not written, {error.strerror}; make room or mend its rights"
        raise ReportError(message) from error


def load_report(path: Path) -> Report:
    """The document in a file; ReportError where none can be read, or it is of another form."""
    try:
        content = read_received(path.parent, path.name, _MOST_BYTES)
        report = msgspec.json.decode(content, type=Report)
        document = msgspec.json.decode(content)
        check_numbers(document)
        check_plain_names(document)
        if len(report.arms) not in _ARMS:
            raise msgspec.ValidationError(f"`arms` has {len(report.arms)}, needed none or two")
        for case in report.cases:  # a reader copies it from the page
            if not is_plain_command(case.reproduce):
                raise msgspec.ValidationError(f"`reproduce` of {case.case_id} is no plain command")
    except (OSError, *UNREADABLE) as error:
        advice = "run the tier again, or use the specreg of the run"
        raise ReportError(f"report '{path}': {error}; {advice}") from error
    else:
        return readable_values(report)


def began_at(run: str) -> dt.datetime | None:
    """When a run began, by its name, which is in UTC; None of a name without a time."""
    try:
        return dt.datetime.strptime(f"{run.partition('-')[0]}+0000", "%Y%m%dT%H%M%S%z")
    except ValueError:
        return None


def render_schema() -> str:
    """The JSON Schema of the document; `docs/report.schema.json` holds it for other tools."""
    schema = schema_of(Report)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = f"urn:specreg:report:{SCHEMA_VERSION}"
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def load_verdict(path: Path) -> RunVerdict | None:
    """The file that was written, None where there is none that can be read."""
    with contextlib.suppress(OSError, *UNREADABLE):
        content = read_received(path.parent, path.name, _MOST_BYTES)
        return msgspec.json.decode(content, type=RunVerdict)
    return None


def last_launches(figures: Iterable[Figures]) -> tuple[Figures, ...]:
    """The figures of each case's last launch among those that are valid in most.

    In the order given; one that is valid in nothing isn't there.
    """
    found: dict[str, Figures] = {}
    for one in figures:
        before = found.setdefault(one.case_id, one)
        invalid, less = (len(each.invalid or ()) for each in (one, before))
        if (-invalid, one.launch) > (-less, before.launch):
            found[one.case_id] = one
    return tuple(one for one in found.values() if len(one.invalid or ()) < len(Family))


def slowed_of(figures: Iterable[Figures]) -> dict[str, float]:
    """By case that speculation slows down, its speedup: the geometric mean over valid launches.

    Only where nine in ten of several rounds of each launch were slower than those beside them.
    """
    ratios: dict[str, list[tuple[float, Summary | None]]] = {}
    for one in figures:
        if one.speedup is not None and (ratio := one.speedup.throughput_ratio):
            ratios.setdefault(one.case_id, []).append((ratio, one.speedup.round_ratio))
    return {
        case_id: statistics.geometric_mean(ratio for ratio, _ in found)
        for case_id, found in ratios.items()
        if all(rounds and rounds.count > 1 and rounds.p90 < 1 for _, rounds in found)
    }


def expected_of(known: CaseBaselines, measured: Sequence[Measurement]) -> Expected | None:
    """What the baseline holds that a case is judged by, of the prompts that were measured.

    A baseline has those of the extension too, which differ; what is drawn beside one another must
    be of the same prompts, as what is judged is. The speed of another machine says nothing.
    """
    baseline = known.baseline
    if baseline is None:
        return None
    record = load_acceptance(baseline.acceptance)
    ours = next((one.acceptance for one in measured if one.acceptance is not None), None)
    if record is not None and record.prompts and ours is not None and ours.prompts:
        record = record.only({prompt.prompt_id for prompt in ours.prompts})
    values = {
        metric.name: baseline.expected_value(metric)
        if metric.by_launch
        else acceptance_value(metric, record)
        for metric in METRICS.values()
        if known.exact is not None or not metric.by_launch
    }
    return Expected(
        environment=baseline.environment.name,
        recorded_on=baseline.provenance.recorded_on,
        engine_version=baseline.provenance.engine_version,
        driver_version=baseline.provenance.driver_version,
        facts=baseline.provenance.facts,
        reason=baseline.provenance.reason,
        values={name: value for name, value in values.items() if value is not None},
        marginal_frac=record.total.marginal_acceptance if record else (),
    )


def side_by_side(a: Report, b: Report) -> Report:
    """What run B measured against run A, of the cases that both have. Nothing is judged.

    What was measured with other settings is NOT_COMPARABLE, and so are speed and power of another
    kind of machine.

    Raises:
        ReportError: no case is in both, or one is a gate's, which has two sides.
    """
    names, replace = f"'{a.run.run}' and '{b.run.run}'", msgspec.structs.replace
    if a.arms or b.arms:
        message = f"runs {names}: one of them compares two sides already; name runs of the suite"
        raise ReportError(message)
    known = {case.case_id: case for case in a.cases}
    cases = tuple(case for case in b.cases if case.case_id in known)
    if not cases:
        raise ReportError(f"runs {names}: no case is in both; name two runs of one tier")
    verdicts = tuple(one for case in cases for one in _changes(a, b, known[case.case_id], case))
    every = [verdict.comparison.change_frac for verdict in verdicts]
    changed = [change_frac for change_frac in every if change_frac is not None]
    better, worse = (sum(sign * change > 0 for change in changed) for sign in (1, -1))
    text = f"of {len(changed)} figures {better} are better in B and {worse} worse; none is judged"
    sides, both = {"A": a, "B": b}, {case.case_id for case in cases}
    alone = {
        name: [one.case_id for one in report.cases if one.case_id not in both]
        for name, report in sides.items()
    }
    outcomes = count_outcomes(verdicts)
    return replace(
        b,
        run=replace(b.run, complete=True, verdicts=verdicts, outcomes=outcomes, skipped={}),
        origin=replace(b.origin, command=specreg_command("report", a.run.run, b.run.run)),
        # The logs are in the folder of B's run, which is not where this document is kept.
        cases=tuple(
            replace(case, expected=_as_expected(a, known[case.case_id]), logs=()) for case in cases
        ),
        remarks=tuple(f"only {name} has {', '.join(ids)}" for name, ids in alone.items() if ids),
        time=None,
        title="Two runs side by side",
        answers=(Headline(subject="B against A", tone=Tone.DOUBT, text=text),),
        arms=tuple(
            ArmReport(
                name=name,
                text=f"run {report.run.run} on {report.run.environment}",
                engine_versions=tuple(dict.fromkeys(map(_engine, report.cases))),
            )
            for name, report in sides.items()
        ),
    )


def _changes(a: Report, b: Report, old: CaseReport, new: CaseReport) -> Iterator[Verdict]:
    """Of each figure that both runs have, the change, or why there is none."""
    before = {one.metric: one for one in last_words(a.run.verdicts) if one.case_id == old.case_id}
    differing = "its settings aren't known"
    if old.settings is not None and new.settings is not None:
        differing = differing_settings(old.settings, new.settings)
    places = {a.run.environment, b.run.environment}
    elsewhere = f"measured on {' and on '.join(sorted(places))}" if len(places) > 1 else ""
    for one in last_words(b.run.verdicts):
        was, metric = before.get(one.metric), METRICS.get(one.metric)
        if one.case_id != new.case_id or was is None or one.value is None or was.value is None:
            continue
        why = differing or (elsewhere if metric and metric.by_launch else "")
        both_outcomes = f"{was.outcome} in A, {one.outcome} in B"
        if Outcome.INVALID in (was.outcome, one.outcome):
            why = both_outcomes
        reason = why
        if was.outcome is not one.outcome and why != both_outcomes:
            reason = "; ".join(filter(None, (both_outcomes, why)))
        change_frac = None
        if metric is not None and not why:
            change_frac = better_frac(metric, one.value, was.value)
        yield Verdict(
            case_id=one.case_id,
            metric=one.metric,
            outcome=Outcome.NOT_COMPARABLE if why else Outcome.MEASURED,
            value=one.value,
            comparison=Comparison(expected=was.value, change_frac=change_frac),
            reason=Reason(text=reason) if reason else None,
        )


def _as_expected(a: Report, case: CaseReport) -> Expected:
    """A's figures in the place of a baseline's."""
    acceptance = case.figures.acceptance if case.figures else None
    return Expected(
        environment=a.run.environment,
        recorded_on=a.ended_at.partition("T")[0],
        engine_version=case.figures.engine_version if case.figures else "",
        reason=f"run {a.run.run}",
        values={},
        marginal_frac=acceptance.total.marginal_frac if acceptance else (),
        driver_version=a.origin.driver_version,
    )


def _engine(case: CaseReport) -> str:
    return f"{case.engine} {case.figures.engine_version if case.figures else ''}".rstrip()
