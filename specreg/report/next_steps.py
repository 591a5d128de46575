"""Choose the commands to type after a run, a gate, or two runs side by side."""

import shlex
from collections.abc import Collection, Container, Iterable, Iterator, Sequence

from specreg.core.commands import (
    is_attached,
    record_command,
    run_command,
    specreg_command,
    without_recording,
)
from specreg.report.document import CaseReport, ComparedReport, Report, RunReport, is_release
from specreg.report.parts import Commands, Part, Text
from specreg.report.sentence import leading_loss, recorded_cases
from specreg.verdicts.verdict import WORSE, Outcome, Verdict

_BASELINES_OPTION = "--specreg-baselines="
_USUAL_TIERS = {"cpu", "gpu"}
"""The tiers that a comparison chooses by itself."""


def next_steps(report: Report) -> Iterator[Part]:
    """Yield what to type next, the most useful commands first."""
    if isinstance(report, ComparedReport):
        yield from _after_sides(report)
    elif not report.run.verdicts:
        command = run_command((), report.origin.options)
        yield Commands("run all cases of the tier", (command,))
    elif recorded_cases(report):
        yield _after_recording(report)
    else:
        yield from _after_run(report)


def _after_sides(report: ComparedReport) -> Iterator[Part]:
    """Yield the search for the release that made a case worse, and then the hints of the gate."""
    lost = [verdict for verdict in report.run.verdicts if verdict.outcome in WORSE]
    good, bad = (side.text for side in report.sides)
    are_releases = is_release(good) and is_release(bad)
    has_overrides = any(side.overrides for side in report.sides)
    if lost and are_releases and not has_overrides:
        arguments = ["--good", good, "--bad", bad, *_tier_option(report)]
        command = specreg_command("bisect", *arguments, leading_loss(lost).case_id)
        yield Commands("find the release that made it worse", (command,))

    for hint in report.hints:
        yield Text(hint)


def _tier_option(report: Report) -> Sequence[str]:
    """Return the option that names the tier of a report; empty for a usual tier."""
    if report.run.tier in _USUAL_TIERS:
        return ()
    return ("--tier", report.run.tier)


def _whole_ids(report: RunReport) -> Collection[str]:
    """Return the ids of all cases that a run without `-k` judges."""
    if report.run.complete:
        # A complete run has verdicts on all cases that have something to judge.
        return {verdict.case_id for verdict in report.run.verdicts}
    return report.tier_cases


def _after_recording(report: RunReport) -> Commands:
    """Return the commands that keep recorded baselines."""
    options = report.origin.options
    case_ids = _named(recorded_cases(report), _whole_ids(report))
    command = run_command(case_ids, without_recording(options), report.tier_cases)

    # Without a repository there is nothing to compare with and nothing to commit.
    if not report.origin.commit:
        return Commands("run against it", (command,))
    folder = "baselines"
    for option in options:
        if option.startswith(_BASELINES_OPTION):
            folder = option.removeprefix(_BASELINES_OPTION)
    diff = shlex.join(("git", "diff", folder))
    add = shlex.join(("git", "add", folder))
    return Commands("look at it, run against it, keep it", (diff, command, add))


def _after_run(report: RunReport) -> Iterator[Part]:
    """Yield commands that look again, decide or record; if there are none, the same command."""
    options = report.origin.options
    whole_ids = _whole_ids(report)
    steps = list(_repairs(report, whole_ids))

    # An attached server can be neither launched again nor recorded.
    unrecorded = _ids_to_record(report.run.verdicts)
    if unrecorded and not is_attached(options):
        named = _named(unrecorded, whole_ids)
        command = record_command(named, options, report.tier_cases)
        steps.append(Commands("record what this machine does", (command,)))

    yield from steps
    if not steps:
        judged_ids = list(dict.fromkeys(verdict.case_id for verdict in report.run.verdicts))
        command = run_command(_named(judged_ids, whole_ids), options, report.tier_cases)
        yield Commands("run it again, another night", (command,))


def _repairs(report: RunReport, whole_ids: Collection[str]) -> Iterator[Commands]:
    """Yield a command for each kind of verdict that fails.

    Args:
        whole_ids: the ids of all cases that a run without `-k` judges.
    """
    options = report.origin.options
    verdicts = report.run.verdicts
    can_launch = not is_attached(options)
    worse_ids = _case_ids(verdicts, WORSE)
    if worse_ids:
        gate = _gate_of_versions(report) if can_launch else ""
        if gate:
            yield Commands("ask whether the new version of the engine is the cause", (gate,))
        command = run_command(_named(worse_ids, whole_ids), options, report.tier_cases)
        yield Commands("look again, on a fresh launch", (command,))

    invalid_ids = _case_ids(verdicts, {Outcome.INVALID})
    if invalid_ids:
        command = run_command(_named(invalid_ids, whole_ids), options, report.tier_cases)
        yield Commands("measure again, once the reason above is mended", (command,))

    # If no number of launches would decide a figure, measuring it again is no use.
    unclear = [
        verdict
        for verdict in verdicts
        if verdict.fails
        and verdict.outcome is Outcome.INCONCLUSIVE
        and verdict.needed_launches != 0
    ]
    unclear_ids = _case_ids(unclear, {Outcome.INCONCLUSIVE})
    if unclear_ids:
        until_decided = list(options)
        launches = max(verdict.needed_launches or 0 for verdict in unclear)
        if launches and can_launch:
            until_decided.append(f"--specreg-launches={launches}")
        command = run_command(_named(unclear_ids, whole_ids), until_decided, report.tier_cases)
        yield Commands("measure again, until it is decided", (command,))


def _gate_of_versions(report: RunReport) -> str:
    """Return the gate between the recorded version of an engine and the present one.

    Returns:
        Empty if the case that lost most ran with the version of its baseline.
    """
    lost = [verdict for verdict in report.run.verdicts if verdict.outcome in WORSE]
    loss = leading_loss(lost)
    case = next((case for case in report.cases if case.case_id == loss.case_id), None)
    if case is None or case.figures is None or case.expected is None:
        return ""
    old = _release(case, case.expected.engine_version)
    new = _release(case, case.figures.engine_version)
    if old == new or not (is_release(old) and is_release(new)):
        return ""
    return specreg_command("gate", old, new, "--case", case.case_id, *_tier_option(report))


def _release(case: CaseReport, version: str) -> str:
    """Return an engine's version as an index names it, without the local part of a build."""
    return f"{case.engine}=={version.partition('+')[0]}"


def _ids_to_record(verdicts: Sequence[Verdict]) -> Sequence[str]:
    """Return the cases that have no baseline, or else those whose baseline lacks something."""
    unrecorded = _case_ids(verdicts, {Outcome.NO_BASELINE})
    if unrecorded:
        return unrecorded
    lacking = [verdict for verdict in verdicts if verdict.lacks]
    return _case_ids(lacking, {Outcome.NOT_COMPARABLE})


def _named(case_ids: Sequence[str], whole_ids: Collection[str]) -> Sequence[str]:
    """Return the cases that a command must name: none if it runs all cases anyway."""
    if set(whole_ids) <= set(case_ids):
        return ()
    return case_ids


def _case_ids(verdicts: Iterable[Verdict], outcomes: Container[Outcome]) -> Sequence[str]:
    """Return the ids of the cases that have one of these outcomes, in the verdicts' order."""
    case_ids = [verdict.case_id for verdict in verdicts if verdict.outcome in outcomes]
    return list(dict.fromkeys(case_ids))
