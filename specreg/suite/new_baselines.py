"""Write the baselines of a run that records them."""

from collections.abc import Iterator, Sequence

import msgspec

from specreg.baselines.comparison import CaseSpreads, spreads_of
from specreg.baselines.record import RecordedBaseline, RecordingNotes, record_measurements
from specreg.baselines.schema import Baseline
from specreg.core.commands import record_command
from specreg.core.errors import BaselineError, SpecregError
from specreg.core.families import Family
from specreg.matrix.case import Case
from specreg.matrix.models import model_sha256
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric
from specreg.report import terminal
from specreg.report.screen import LOG, Screen
from specreg.suite.recording import speed_spreads
from specreg.suite.result import RunResult
from specreg.verdicts.detection import detects_against
from specreg.verdicts.history import (
    History,
    SourceRun,
    identical_to,
    noise_of,
    record_history,
    run_record,
)
from specreg.verdicts.multiple_testing import draw_of
from specreg.verdicts.references import References
from specreg.verdicts.run_verdicts import acceptance_on_launch
from specreg.verdicts.speeds import Speed, SpeedJudge, compare_speed
from specreg.verdicts.verdict import Outcome, Verdict


def record_baselines(result: RunResult, screen: Screen = LOG) -> tuple[list[str], bool]:
    """Write the baselines of the cases whose launches were all measured.

    Returns:
        Lines for the summary, and whether every baseline was written and is complete.
    """
    recorded: list[RecordedBaseline] = []
    refused: dict[str, str] = {}
    for case in result.cases:
        try:
            baseline = _record(result, case)
        except SpecregError as error:
            refused[case.id] = str(error)
            continue
        recorded.append(baseline)
        if baseline.left_out:
            refused[case.id] = baseline.left_out

    lines = [*refused.values(), *_summary_of(result, recorded, screen)]
    failed_ids = {verdict.case_id for verdict in result.verdicts if verdict.fails}
    to_repeat = tuple(case_id for case_id in refused if case_id not in failed_ids)
    if to_repeat:
        command = record_command(to_repeat, result.context.store.options)
        lines.append(f"record again what wasn't written:\n  {command}")
    return [line for line in lines if line], not refused


def _summary_of(
    result: RunResult, recorded: Sequence[RecordedBaseline], screen: Screen
) -> Sequence[str]:
    """Return the parts of the summary about the baselines that were written."""
    if not recorded:
        return ()
    tier_cases = result.context.tier.cases
    timed_launches = {
        case.id: len(result.measurements_of(case))
        for case in tier_cases
        if result.selection.needs_speed(case)
    }
    return (
        terminal.render_recorded(recorded, screen),
        terminal.render_undecidable(recorded),
        terminal.render_unjudged(recorded, timed_launches),
        terminal.render_written(recorded),
    )


def _record(result: RunResult, case: Case) -> RecordedBaseline:
    """Write the baseline of a case, and add the run to the case's history.

    Raises:
        BaselineError: the case is WRONG, or has become worse and the user gave no reason, or its
            measurements can't serve as a baseline.
        SpecregError: not all of its launches were measured, or a file can't be read or written.
    """
    # Check that the measurements may become a baseline.
    context = result.context
    measurements = result.measurements_of(case)

    for verdict in result.verdicts_of(case.id):
        if verdict.outcome is Outcome.WRONG:
            raise BaselineError(
                f"baseline of '{case.id}': not written, WRONG: {verdict.explanation}; record it"
                " once its answers are right"
            )

    if len(measurements) < context.launches:
        count = f"{len(measurements)} of {context.launches} launches were measured"
        raise SpecregError(f"baseline of '{case.id}': not written, {count}; select the whole case")
    settings = context.settings(case)
    history = context.load_history()
    reason = (context.options.reason or "").strip()
    if not reason:
        _check_nothing_lost(result, case, measurements, history)

    # Find out how identical runs and launches differ.
    first = measurements[0]
    draft_sha256 = model_sha256(first.draft) if first.draft else ""
    identical = identical_to(history.of(case.id), settings, first.engine_version, draft_sha256)
    spreads = speed_spreads(case.id, result.measurements, context.store)
    acceptances = [
        measurement.acceptance
        for measurement in measurements
        if measurement.acceptance is not None and Family.ACCEPTANCE not in measurement.invalid
    ]

    def complete(baseline: Baseline) -> Baseline:
        """Add how identical runs differed, and what a launch can detect against the baseline."""
        detects = detects_against(baseline, case, spreads, acceptances)
        own_spreads = spreads_of(CaseSpreads.of(baseline.launches))
        noise = {**baseline.noise, **noise_of(identical, own_spreads)}
        return msgspec.structs.replace(baseline, noise=noise, detects=detects)

    # Write the baseline, then the history.
    notes = RecordingNotes(
        reason=reason,
        torch_version=result.torch_version_of(case),
        driver_version=result.driver_version,
    )
    recorded = record_measurements(measurements, settings, context.store, notes, complete=complete)
    if context.has_history and context.provision.attached is None:
        origin = SourceRun(
            run=context.name,
            machine=result.machine_of(case.id),
            driver_version=result.driver_version,
            commit=recorded.new.provenance.commit,
            recorded=True,
            accepted=bool(reason),
        )
        verdicts = result.verdicts_of(case.id)
        # The history refers to the baseline as later runs will read it from its file, which leaves
        # out fields with default values. So the baseline is read back from that file here.
        written = context.baselines_of(case).exact
        record = run_record(origin, measurements, verdicts, settings, written)
        record_history(context.history_path, [record])

    return recorded


def _check_nothing_lost(
    result: RunResult, case: Case, measurements: Sequence[Measurement], history: History
) -> None:
    """Check that a new baseline hides no loss. A proven loss is recorded only with a reason.

    Raises:
        BaselineError: a metric is proven to be worse than in the baseline, or than on the nights
            since then; or a baseline can't be read.
        SpecregError: the models or the prompts of the case can't be read.
    """
    context = result.context
    known = context.baselines_of(case)
    if known.exact is None:
        return
    references = References(
        baselines_of=context.baselines_of,
        run=context.name,
        baselines={path.stem: baseline for path, baseline in context.store.own().items()},
        history=history,
        machine_of=result.machine_of,
        driver_version=result.driver_version,
    )
    for verdict in _verdicts_on(result.selection.metrics_of(case), measurements, references):
        # The leader of a group of metrics decides about the others, so only leaders are looked at.
        is_leader = verdict.metric == draw_of(METRICS[verdict.metric])
        if verdict.outcome is Outcome.REGRESSED and is_leader:
            change_frac = verdict.comparison.change_frac or 0.0
            lost = f"{verdict.metric} is proven to be {abs(change_frac):.1%} worse"
            if verdict.since:
                lost = f"{lost}, {verdict.explanation}"
            raise BaselineError(
                f"baseline of '{case.id}': not written, {lost}; if it is meant to be so from now"
                " on, say why with --reason"
            )


def _verdicts_on(
    metrics: Sequence[Metric], launches: Sequence[Measurement], references: References
) -> Iterator[Verdict]:
    """Yield the verdicts on the recorded launches of a case, compared with the old baseline."""
    speeds = []
    for metric in metrics:
        if not metric.by_launch:
            yield acceptance_on_launch(metric, launches[-1], references)
            continue
        comparison = compare_speed(metric, launches, references)
        if isinstance(comparison, Verdict):
            yield comparison
        else:
            speeds.append(Speed(metric=metric, comparison=comparison))

    yield from SpeedJudge(speeds, references).judge(speeds)
