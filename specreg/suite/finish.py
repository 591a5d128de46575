"""Record what a run decided: history, verdicts, the report document, and baselines."""

import contextlib
import functools
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from specreg.acceptance.record import Source
from specreg.baselines.comparison import differing_settings, spreads_of
from specreg.baselines.record import RecordedBaseline, RecordingNotes, record_measurements
from specreg.baselines.schema import Baseline
from specreg.core.commands import record_command, run_command, specreg_command
from specreg.core.errors import BaselineError, SpecregError
from specreg.core.timeline import RunTime
from specreg.matrix.case import Case
from specreg.matrix.models import model_sha256
from specreg.matrix.tier import load_tier, tier_names
from specreg.measurement.figures import Figures
from specreg.measurement.measure import Measurement
from specreg.report import terminal
from specreg.report.document import (
    FILE_NAME,
    CaseReport,
    Report,
    RunVerdict,
    count_outcomes,
    expected_of,
    last_launches,
    origin_of,
    record_document,
    slowed_of,
    write_whole,
)
from specreg.report.exports import ALWAYS, append_job_summary, benchmark_of, times_of, write_outputs
from specreg.report.page import render_markdown, render_page
from specreg.report.remarks import workload_remarks
from specreg.report.summary import answers_of_run, render_answers
from specreg.report.tables import render_figures, render_times
from specreg.report.vocabulary import render_unhidden
from specreg.servers.launch import launches_of
from specreg.suite.options import MOST_LAUNCHES_ASKED
from specreg.suite.run import Suite
from specreg.telemetry.identity import find_gpus
from specreg.verdicts.detection import MOST_LAUNCHES, detects_against
from specreg.verdicts.history import (
    RunRecord,
    headroom_frac,
    identical_to,
    load_history,
    noise_of,
    record_history,
    run_record,
)
from specreg.verdicts.verdict import Outcome


def record_run(
    suite: Suite, run: RunVerdict, *, command: str, said: Sequence[str] = ()
) -> list[str]:
    """Write all documents of a run to its folder, and a CI job's summary.

    `command` is what was typed, `said` what a reader should know besides.

    Returns:
        What could not be left, in words; the verdicts stand. Where a merged run left benchmarks.
    """
    folder = suite.run_folder
    reasons = "; ".join(dict.fromkeys(suite.skipped.values()))
    why = f"nothing was judged: {reasons or 'no test of a case came to a verdict'}"
    wrong = [] if suite.verdicts else [why]
    verdict = functools.partial(record_document, folder / "verdict.json", run)
    for record in (functools.partial(record_runs, suite), verdict):
        try:
            record()
        except SpecregError as error:
            wrong.append(str(error))
    try:
        report = report_of(suite, run, command=command, said=(*said, *wrong, *remarks(suite)))
        record_document(folder / FILE_NAME, report)
        if not suite.shares_machine:
            append_job_summary(render_markdown(report))
            forms = (*ALWAYS, "junit") if suite.merged else ALWAYS  # pytest's lacks final verdicts
            write_outputs(forms, report, folder, folder)
            shown = (last_measurement(suite, case) for case in measured_cases(suite))
            if suite.merged and any(map(times_of, shown)):
                (path,) = write_outputs(("benchmark",), report, folder, folder)
                wrong.append(f"benchmarks of the run, as --benchmark-json writes them: {path}")
    except Exception as error:  # noqa: BLE001 - a failed report must lose no verdict
        stand = f"the verdicts stand, and {specreg_command('report')} makes it again"
        why = f"not whole, {type(error).__name__}: {error}"
        wrong.append(f"report of '{folder}': {why}; {stand}")
    return wrong


def leave_page(suite: Suite) -> None:
    """Leave the page of what a run has judged so far, unless other processes share the run.

    It is rendered again so late that it takes a twentieth of the time. The verdicts and the page at
    the end don't depend on it.
    """
    began_ns = time.monotonic_ns()
    if suite.shares_machine or not suite.verdicts or began_ns < suite.page_due_ns:
        return
    with contextlib.suppress(Exception):
        report = report_of(suite, run_verdict(suite, 0, cut_short=True), command="")
        place = f"{suite.progress.place}, {suite.now:%H:%M:%S} UTC"
        page = render_page(report, in_progress=place)
        write_whole(suite.run_folder / "report.html", page.encode())
    suite.page_due_ns = began_ns + 20 * (time.monotonic_ns() - began_ns)


def record_runs(suite: Suite) -> None:
    """Add the records of a run that judged to the history; ReportError where the disk refuses."""
    if suite.records or suite.provision.url is not None or suite.is_part:
        return
    known, records = load_history(suite.history), []
    for case in measured_cases(suite):
        merged_again = any(one.run == suite.name for one in known.of(case.id))
        launches = [m for m in suite.measurements if m.case == case and m.values]
        verdicts = [v for v in suite.verdicts if v.case_id == case.id]
        if launches and verdicts and not merged_again:
            exact, settings = _exact(suite, case), suite.settings(case)
            records.append(run_record(suite.name, launches, verdicts, settings, exact))
    record_history(suite.history, records)


def run_verdict(suite: Suite, status: int, *, cut_short: bool) -> RunVerdict:
    """What the run decided, for programs."""
    return RunVerdict(
        run=suite.name,
        tier=suite.tier.name,
        environment=suite.environment.name,
        attached=suite.provision.url or "",
        complete=not cut_short and not suite.skipped and suite.asks_for_all,
        exit_status=status,
        outcomes=count_outcomes(suite.verdicts),
        verdicts=tuple(suite.verdicts),
        skipped=dict(suite.skipped),
        no_power=suite.no_power,
        slowed=slowed_of(suite.figures),
        load=suite.load,
    )


def report_of(suite: Suite, run: RunVerdict, *, command: str, said: tuple[str, ...] = ()) -> Report:
    """Fill the document of a run that ends."""
    history = load_history(suite.history)
    judged = {verdict.case_id for verdict in suite.verdicts}
    return Report(
        run=run,
        machine=suite.environment,
        origin=origin_of(suite.root, command, driver_version_of(suite), suite.store.options),
        cases=tuple(
            _case_report(suite, case, history.of(case.id))
            for case in suite.tier.cases
            if case.id in judged
        ),
        tier_cases=tuple(case.id for case in suite.tier.cases),
        remarks=said,
        ended_at=suite.ended_at or suite.now.isoformat(timespec="seconds"),
        time=_time(suite),
    )


def remarks(suite: Suite) -> Iterator[str]:
    """Say what else a reader should know: a torn history, headroom, unused baselines.

    Of a recording only what was measured twice, whether acceptance is an estimate, and what the
    workload lacks.
    """
    yield from suite.retried
    if not_hidden := render_unhidden():
        yield not_hidden
    records = [one.acceptance for one in suite.measurements if one.acceptance]
    if any(record.source is Source.STREAM_CHUNKS for record in records):
        by = "the chunks of the answers, each taken for a step: their server counts no steps"
        yield f"acceptance is an estimate from {by}"
    for figures in last_launches(suite.figures):
        yield from workload_remarks(figures)
    if suite.records:
        return
    if fewer := {case.prompts for case in measured_cases(suite) if case.matrix_prompts}:
        many = " to ".join(map(str, sorted({min(fewer), max(fewer)})))
        how = "acceptance was compared over those that its baseline has too, speed wasn't"
        yield f"--num-prompts left {many} prompts of a case: {how}"
    history = load_history(suite.history)
    if history.problem:
        yield history.problem
    for case in measured_cases(suite):
        yield from _headroom(suite, case, history.of(case.id))
    if suite.asks_for_all and suite.verdicts and not any(one.fails for one in suite.verdicts):
        with contextlib.suppress(SpecregError):  # another tier can't be read; its own runs say so
            folder = suite.root / suite.options.matrix
            tiers = [load_tier(folder, name) for name in tier_names(folder)]
            if unused := suite.store.unused({case.id for tier in tiers for case in tier.cases}):
                remove = shlex.join(("git", "rm", *map(str, unused)))
                yield f"no case asks for these baselines: {remove}"


def render_end(
    suite: Suite, run: RunVerdict | None, lines: Iterable[str], *, told: bool, color: bool
) -> str:
    """Render the end of a run: verdicts, figures, what was said, what to type.

    `run` is None where it didn't judge; `told` says whether what failed is shown above.
    """
    left_out = Outcome.MEASURED if suite.records else None
    judged = [one for one in suite.verdicts if one.outcome is not left_out]
    parts = [terminal.render_verdicts(judged, color=color) if judged else "", *lines]
    parts.append(render_figures(last_launches(suite.figures), color=color))
    parts.append(render_times(_time(suite), color=color))
    if not all(case.speed for case in suite.tier.cases):
        parts.append("the servers of this tier say nothing of speed, so none is shown")
    if suite.taken_over:
        parts.append(f"taken over from the run that was cut off: {', '.join(suite.taken_over)}")
    if not suite.records:
        untold = [one for one in suite.verdicts if not (told and one.fails)]
        parts.append(terminal.render_notes(untold, suite.environment.name))
    parts.extend(remarks(suite))
    pages = [suite.run_folder / f"report.{kind}" for kind in ("html", "md")]
    parts.append(next((f"report: {page}" for page in pages if page.exists()), ""))
    if run is not None:
        parts.append(render_answers(answers_of_run(run), color=color))
    cases = {case.id for case in suite.tier.cases}
    again = ("--update-baselines",) if suite.records else ()
    parts.append(terminal.render_next(suite.verdicts, cases, (*suite.store.options, *again)))
    return "\n\n".join(filter(None, parts))


_LAST_RUNS = 60
_MOST_LAUNCHES = MOST_LAUNCHES_ASKED + MOST_LAUNCHES


def _time(suite: Suite) -> RunTime:
    return suite.timeline.so_far() if suite.merged is None else suite.merged.time


def driver_version_of(suite: Suite) -> str:
    """The driver of the machine's GPUs, empty without."""
    return suite.merged.plan.driver_version if suite.merged else find_gpus().driver_version


def torch_version_of(suite: Suite, case: Case) -> str:
    """The torch that a case's engine ran with, empty where it isn't known."""
    if suite.merged is not None:  # what ran is on another machine, which has said its version
        return suite.merged.torch_version(case.id)
    return suite.provision.torch_version(case.server)


def measured_cases(suite: Suite) -> Iterable[Case]:
    """The cases that were measured, each once."""
    return {one.case.id: one.case for one in suite.measurements}.values()


def _headroom(suite: Suite, case: Case, records: Sequence[RunRecord]) -> Iterator[str]:
    if (exact := _exact(suite, case)) is None:
        return
    for metric in suite.asked_of(case):
        headroom = None if metric.two_sided else headroom_frac(metric, exact, records)
        if headroom is not None and headroom >= metric.allowed_frac(case) / 2:
            low = f"{case.id}: the baseline of {metric.name} is {headroom:.1%} below the last runs"
            yield f"{low}; a loss of {headroom:.1%} would pass, so record it anew"


def _exact(suite: Suite, case: Case) -> Baseline | None:
    """The baseline that a case was judged against, if it is this machine's."""
    with contextlib.suppress(BaselineError):
        known = suite.known_of(case)
        if known.exact and not differing_settings(known.exact.case, known.settings):
            return known.exact
    return None


def _case_report(suite: Suite, case: Case, records: Sequence[RunRecord]) -> CaseReport:
    measured = [one for one in suite.measurements if one.case.id == case.id]
    valid = [one for one in measured if one.values]
    settings = expected = None
    with contextlib.suppress(SpecregError):  # the case is red for it, and says why
        settings = suite.settings(case)
        expected = expected_of(suite.known_of(case), (valid or measured)[-1:])
    figures = _last_figures(suite, case)
    return CaseReport(
        case_id=case.id,
        engine=case.server.engine,
        method=case.server.method,
        models=case.server.models,
        dataset=case.dataset,
        target=case.server.target,
        draft=case.server.draft or "",
        settings=settings,
        figures=figures,
        expected=expected,
        history=tuple(records[-_LAST_RUNS:]),
        reproduce=run_command((case.id,), _with_version(suite.store.options, figures)),
        logs=tuple(_logs(suite, case)),
        torch_version=torch_version_of(suite, case) if measured and suite.records else "",
        error=suite.errors.get(case.id, ""),
    )


def _last_figures(suite: Suite, case: Case) -> Figures | None:
    """The figures of a case's last valid launch, else of its last one; None without any."""
    every = last_launches(suite.figures) + tuple(suite.figures[::-1])
    return next((one for one in every if one.case_id == case.id), None)


def last_measurement(suite: Suite, case: Case) -> Measurement:
    """What the figures in the report are of; of a case that was measured."""
    figures, known = _last_figures(suite, case), zip(suite.figures, suite.measurements, strict=True)
    return next(one for its_figures, one in known if its_figures is figures)


def describe_benchmarks(suite: Suite, entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Have pytest-benchmark's entries of cases say what was measured; gives those of cases."""
    ours = [one for one in entries if isinstance((one["params"] or {}).get("case"), Case)]
    for entry in ours:
        measurement = last_measurement(suite, entry["params"]["case"])
        entry.update(benchmark_of(measurement, suite.verdicts))
    return ours


def _with_version(options: tuple[str, ...], figures: Figures | None) -> tuple[str, ...]:
    """The options, and the engine that was measured: another day specreg knows a newer one."""
    named = ("--specreg-engine-version", "--specreg-engine-python", "--specreg-attach")
    if figures is None or any(option.startswith(named) for option in options):
        return options
    version = figures.engine_version.partition("+")[0]
    return (*options, f"--specreg-engine-version={version}") if version else options


def _logs(suite: Suite, case: Case) -> Iterator[str]:
    """The logs of its servers on each launch, those of further looks too; its own first."""
    for number in range(1, _MOST_LAUNCHES + 1):
        launches = dict.fromkeys(reversed(launches_of(case, number)))
        paths = [path for launch in launches for path in suite.servers.log_paths(launch)]
        if not paths:
            return
        yield from (path.relative_to(suite.run_folder).as_posix() for path in paths)


def record_baselines(suite: Suite, *, color: bool) -> tuple[list[str], bool]:
    """Write the baselines of the cases whose launches were all measured.

    Returns what to say of what was and wasn't written, and whether all were, each as a whole.
    """
    written: list[RecordedBaseline] = []
    refused: dict[str, str] = {}
    for case in measured_cases(suite):
        try:
            written.append(recorded := _record(suite, case))
            if recorded.left_out:
                refused[case.id] = recorded.left_out
        except SpecregError as error:
            refused[case.id] = str(error)
    said = list(refused.values())
    if written:
        everything = {case.id for case in suite.tier.cases}
        said.append(terminal.render_recorded(written, color=color))
        said.append(terminal.render_undecidable(written))
        timed = {case.id for case in suite.tier.cases if suite.asks_speed(case)}
        said.append(terminal.render_unjudged(written, timed))
        said.append(terminal.render_written(written, everything, suite.store.options))
    failed = {verdict.case_id for verdict in suite.verdicts if verdict.fails}
    if again := tuple(case_id for case_id in refused if case_id not in failed):
        typed = record_command(again, suite.store.options)
        said.append(f"record again what wasn't written:\n  {typed}")
    return list(filter(None, said)), not refused


def _record(suite: Suite, case: Case) -> RecordedBaseline:
    measurements = [one for one in suite.measurements if one.case == case]
    for one in suite.verdicts:
        if one.case_id == case.id and one.outcome is Outcome.WRONG:
            raise BaselineError(f"baseline of '{case.id}': not written, WRONG: {one.explanation}")
    if len(measurements) < suite.launches:
        why = f"{len(measurements)} of {suite.launches} launches were measured"
        raise SpecregError(f"baseline of '{case.id}': not written, {why}; select the whole case")
    first, settings = measurements[0], suite.settings(case)
    draft_sha256 = model_sha256(first.draft) if first.draft else ""
    history = load_history(suite.history).of(case.id)
    identical = identical_to(history, settings, first.engine_version, draft_sha256)

    def completed(baseline: Baseline) -> Baseline:
        """The baseline with how identical runs differed, and what a launch can tell against it."""
        detects = detects_against(baseline, case, suite.spreads)
        noise = {**baseline.noise, **noise_of(identical, spreads_of((baseline,)))}
        return msgspec.structs.replace(baseline, noise=noise, detects=detects)

    return record_measurements(
        measurements,
        settings,
        suite.store,
        RecordingNotes(
            reason=(suite.options.reason or "").strip(),
            torch_version=torch_version_of(suite, case),
            driver_version=driver_version_of(suite),
        ),
        complete=completed,
    )
