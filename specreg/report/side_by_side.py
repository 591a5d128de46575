"""Two runs side by side, in a document that every form of a report shows. Nothing is judged."""

from collections.abc import Iterator

import msgspec

from specreg.baselines.comparison import differing_settings
from specreg.core.commands import specreg_command
from specreg.core.errors import ReportError
from specreg.measurement.metrics import METRICS, better_frac
from specreg.report.document import (
    Answer,
    ArmReport,
    CaseReport,
    Expected,
    Report,
    Tone,
    count_outcomes,
    last_words,
)
from specreg.verdicts.judge import Outcome, Verdict


def side_by_side(a: Report, b: Report) -> Report:
    """What run B measured against run A, of the cases that both have.

    What was measured with other settings is NOT_COMPARABLE, and so are speed and power of another
    kind of machine. ReportError where no case is in both, or one is a gate's, which has two sides.
    """
    names, replace = f"'{a.run.run}' and '{b.run.run}'", msgspec.structs.replace
    if a.arms or b.arms:
        message = f"runs {names}: one of them compares two sides already; name runs of the suite"
        raise ReportError(message)
    known = {case.case_id: case for case in a.cases}
    cases = tuple(case for case in b.cases if case.case_id in known)
    if not cases:
        raise ReportError(f"runs {names}: no case is in both; name two runs of one tier")
    verdicts = tuple(one for case in cases for one in _verdicts(a, b, known[case.case_id], case))
    changed = [one.change_frac for one in verdicts if one.change_frac is not None]
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
        cases=tuple(replace(case, expected=_expected(a, known[case.case_id])) for case in cases),
        remarks=tuple(f"only {name} has {', '.join(ids)}" for name, ids in alone.items() if ids),
        time=None,
        title="Two runs side by side",
        answers=(Answer(subject="B against A", tone=Tone.DOUBT, text=text),),
        arms=tuple(
            ArmReport(
                name=name,
                text=f"run {report.run.run} on {report.run.environment}",
                engine_versions=tuple(dict.fromkeys(map(_engine, report.cases))),
            )
            for name, report in sides.items()
        ),
    )


def _verdicts(a: Report, b: Report, old: CaseReport, new: CaseReport) -> Iterator[Verdict]:
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
        said = f"{was.outcome} in A, {one.outcome} in B"
        if Outcome.INVALID in (was.outcome, one.outcome):
            why = said
        yield Verdict(
            case_id=one.case_id,
            metric=one.metric,
            outcome=Outcome.NOT_COMPARABLE if why else Outcome.MEASURED,
            reason=why,
            value=one.value,
            expected=was.value,
            change_frac=better_frac(metric, one.value, was.value) if metric and not why else None,
            cause="" if was.outcome is one.outcome or why == said else said,
        )


def _expected(a: Report, case: CaseReport) -> Expected:
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
