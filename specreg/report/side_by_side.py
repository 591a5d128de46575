"""Show two runs side by side, as a gate shows its sides."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from specreg.baselines.comparison import differing_settings
from specreg.core.commands import specreg_command
from specreg.core.errors import ReportError
from specreg.core.reasons import Reason
from specreg.measurement.metrics import METRICS, better_frac
from specreg.report.document import (
    CaseReport,
    ComparedReport,
    Expected,
    Headline,
    RunReport,
    RunVerdict,
    SideReport,
    Tone,
    last_verdicts,
)
from specreg.report.expected import expected_by
from specreg.verdicts.status import STATUS_MEANINGS, count_outcomes, exit_status
from specreg.verdicts.verdict import Comparison, Outcome, Verdict


def side_by_side(a: RunReport, b: RunReport) -> ComparedReport:
    """Return a report of run B in which run A takes the place of the baseline.

    The report contains the cases that both runs have. It shows changes and judges none of them, so
    its exit status is 0, and remarks name the status of a run that failed.

    A figure is NOT_COMPARABLE if it is INVALID in a run, if its settings differ or aren't known, or
    if it is a speed or a power and the machines are of different kinds.

    Raises:
        ReportError: the runs have no case in common.
    """
    # Find the cases that both runs have.
    cases_of_a = {case.case_id: case for case in a.cases}
    common_cases = [case for case in b.cases if case.case_id in cases_of_a]
    if not common_cases:
        names = f"'{a.run.run}' and '{b.run.run}'"
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
    run = msgspec.structs.replace(
        b.run,
        attached="",
        attached_control="",
        complete=True,
        exit_status=exit_status(verdicts),
        verdicts=tuple(verdicts),
        outcomes=count_outcomes(verdicts),
        skipped={},
    )
    command = specreg_command("report", a.run.run, b.run.run)
    return ComparedReport(
        run=run,
        machine=b.machine,
        origin=msgspec.structs.replace(b.origin, command=command),
        cases=tuple(cases),
        tier_cases=b.tier_cases,
        remarks=(*_cases_of_one_side(sides, common_ids), *_failed_sides(sides)),
        ended_at=b.ended_at,
        answers=(_count_changes(verdicts),),
        sides=(_side_report("A", a), _side_report("B", b)),
    )


def _side_report(name: str, report: RunReport) -> SideReport:
    """Describe a run that is a side, and the versions that its servers reported."""
    return SideReport(
        name=name,
        text=_describe_run(report.run),
        engine_versions=tuple(dict.fromkeys(_engine_versions(report.cases))),
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


def _cases_of_one_side(
    sides: Mapping[str, RunReport], common_ids: AbstractSet[str]
) -> Iterator[str]:
    """Yield a remark for each side that has cases which the other side lacks."""
    for name, report in sides.items():
        ids = [case.case_id for case in report.cases if case.case_id not in common_ids]
        if ids:
            yield f"only {name} has {', '.join(ids)}"


def _failed_sides(sides: Mapping[str, RunReport]) -> Iterator[str]:
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


def _changes(a: RunReport, b: RunReport, old: CaseReport, new: CaseReport) -> Iterator[Verdict]:
    """Yield a verdict for each of a case's figures that have a value in both runs.

    The verdict on a metric has the change, or the reason why the two figures can't be compared. If
    the outcomes of the runs differ, it names both.

    Args:
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


def _as_expected(a: RunReport, case: CaseReport) -> Expected | None:
    """Return what run A says about a case, in the form of a baseline; None without figures.

    The values stay empty, because each verdict contains the value of run A that it compares with.
    """
    if case.figures is None:
        return None
    expected = expected_by(
        case.figures,
        environment=a.run.environment,
        recorded_on=a.ended_at.partition("T")[0],
        reason=f"run {a.run.run}",
    )
    return msgspec.structs.replace(expected, driver_version=a.origin.driver_version)


def _engine_versions(cases: Iterable[CaseReport]) -> Iterator[str]:
    """Yield the engine of each case with the version that its server reported, if it did."""
    for case in cases:
        if case.figures is not None and case.figures.engine_version:
            yield f"{case.engine} {case.figures.engine_version}"
