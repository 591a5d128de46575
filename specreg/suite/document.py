"""Build the documents of a run: its verdict and its report."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from specreg.core.commands import RECORD_OPTION
from specreg.core.errors import SpecregError
from specreg.matrix.case import Case
from specreg.report.document import CaseReport, RunReport, RunVerdict, origin_of, reproduce_command
from specreg.report.expected import expected_of
from specreg.report.launches import slowed_of
from specreg.runs.goals import CaseLaunch
from specreg.servers.launch import log_paths
from specreg.suite.options import MAX_LAUNCHES_ASKED
from specreg.suite.result import RunResult, shown_launch
from specreg.verdicts.detection import MAX_LAUNCHES
from specreg.verdicts.history import RunRecord
from specreg.verdicts.status import count_outcomes

LOGS_FOLDER = "logs"
"""The folder of a run that has the logs of its servers."""
_LAST_RUNS = 60
"""How many runs of a case from the history the report shows."""
_MAX_LAUNCHES = MAX_LAUNCHES_ASKED + MAX_LAUNCHES
"""The highest number that a launch can have: planned launches, and then further ones."""


def run_verdict(result: RunResult, status: int, *, cut_short: bool) -> RunVerdict:
    """Return the verdict of the whole run, which other programs read.

    Args:
        status: the exit status of the run.
        cut_short: True if the run ended before all selected tests were judged, or still goes on.
    """
    context = result.context
    attached = context.provision.attached
    control = context.provision.attached_control
    is_complete = result.selection.covers_tier and not cut_short and not result.skipped
    return RunVerdict(
        run=context.name,
        tier=context.tier.name,
        environment=context.environment.name,
        attached=attached.url if attached else "",
        attached_control=control.url if control else "",
        complete=is_complete,
        exit_status=status,
        outcomes=count_outcomes(result.verdicts),
        verdicts=result.verdicts,
        skipped=dict(result.skipped),
        no_power=result.selection.no_power,
        slowed=slowed_of(result.figures),
        load=context.processor_load,
    )


def report_of(
    result: RunResult, run: RunVerdict, *, command: str, remarks: tuple[str, ...] = ()
) -> RunReport:
    """Return the report of a run.

    Args:
        run: the verdict of the whole run.
        command: the command that the user typed.
        remarks: remarks for the reader.
    """
    context = result.context
    options = context.store.options
    if context.is_recording:
        options = (*options, RECORD_OPTION)
    history = context.load_history()
    judged_ids = {verdict.case_id for verdict in result.verdicts}
    cases = [case for case in context.tier.cases if case.id in judged_ids]
    case_reports = [_case_report(result, case, history.of(case.id)) for case in cases]
    return RunReport(
        run=run,
        machine=context.environment,
        origin=origin_of(context.commit, command, result.driver_version, options),
        cases=tuple(case_reports),
        tier_cases=tuple(case.id for case in context.tier.cases),
        remarks=remarks,
        ended_at=result.ended_at,
        time=result.time,
    )


def _case_report(result: RunResult, case: Case, records: Sequence[RunRecord]) -> CaseReport:
    """Return the part of the report about a case.

    Args:
        records: the runs of the case in the history, of which the report shows the last ones.
    """
    context = result.context
    measurements = [
        measurement for measurement in result.measurements if measurement.case.id == case.id
    ]
    valid = [measurement for measurement in measurements if measurement.values]
    settings = None
    expected = None

    # A case whose models or baselines can't be read is shown too; its verdicts have the error.
    with contextlib.suppress(SpecregError):
        settings = context.settings(case)
        expected = expected_of(context.baselines_of(case), (valid or measurements)[-1:])
    figures = None
    shown = shown_launch(result.launches, case.id)
    if shown is not None:
        figures = shown.figures

    # A baseline records the version of torch. When shards are merged, it is taken from the report
    # of the shard, because the engine's environment is on the shard's machine.
    torch_version = ""
    if measurements and context.is_recording:
        torch_version = result.torch_version_of(case)
    return CaseReport(
        case_id=case.id,
        engine=case.server.engine,
        method=case.server.method,
        models=case.server.models,
        dataset=case.request.dataset,
        target=case.server.target,
        draft=case.server.draft or "",
        settings=settings,
        figures=figures,
        expected=expected,
        history=tuple(records[-_LAST_RUNS:]),
        reproduce=reproduce_command(case.id, context.store.options, figures),
        logs=tuple(_logs(context.run_folder, case)),
        torch_version=torch_version,
        error=result.errors.get(case.id, ""),
    )


def _logs(run_folder: Path, case: Case) -> Iterator[str]:
    """Yield the logs of a case's servers, launch by launch, those of its own server first."""
    for number in range(1, _MAX_LAUNCHES + 1):
        case_launch = CaseLaunch.of(case, number)
        # The server and the control are the same launch if the case has no control.
        launches = dict.fromkeys((case_launch.server, case_launch.control))
        paths: list[Path] = []
        for launch in launches:
            paths += log_paths(run_folder / LOGS_FOLDER, launch)
        # The launches are numbered without gaps, so no later one has logs either.
        if not paths:
            return
        yield from (path.relative_to(run_folder).as_posix() for path in paths)
