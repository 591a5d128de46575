"""Reporting: what a run held or left in its folder in, its one document out."""

import contextlib
import itertools
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

import specreg
from specreg.baselines.comparison import expected_value
from specreg.baselines.record import commit_of
from specreg.baselines.schema import CaseSettings, load_acceptance
from specreg.core.commands import run_command
from specreg.core.errors import ReportError, SpecregError
from specreg.load.rounds import Round
from specreg.matrix import Case
from specreg.measurement.figures import Figures
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Family, acceptance_value, ttft_ms
from specreg.report.breakdown import last_launches, readable_figures
from specreg.report.document import (
    FILE_NAME,
    CaseReport,
    Expected,
    Origin,
    Report,
    Spreads,
    load_report,
)
from specreg.report.json import RunVerdict, load_verdict
from specreg.servers.launch import launches_of
from specreg.stats.percentiles import Histogram, bars_of
from specreg.suite.run import Suite
from specreg.telemetry.identity import Environment
from specreg.verdicts.history import RunRecord, history_path, load_history

_LAST_RUNS = 60
_NS_PER_MS = 10**6


def report_of(
    suite: Suite,
    run: RunVerdict,
    *,
    command: str,
    options: tuple[str, ...] = (),
    remarks: Sequence[str] = (),
) -> Report:
    """The document of a run that ends.

    Args:
        suite: what it held.
        run: what it decided.
        command: what was typed.
        options: with which its cases run again as they did.
        remarks: what a reader should know besides.
    """
    history = load_history(history_path(suite.history, suite.environment.name))
    judged = {verdict.case_id for verdict in suite.verdicts}
    return Report(
        run=run,
        machine=suite.environment,
        origin=Origin(
            command=command,
            specreg_version=specreg.__version__,
            commit=commit_of(suite.root),
            python_version=platform.python_version(),
            driver_version=suite.provision.found_gpus.driver_version,
            options=options,
        ),
        cases=tuple(
            _case_report(suite, suite.budgeted(case), history.of(case.id), options)
            for case in suite.tier.cases
            if case.id in judged
        ),
        tier_cases=tuple(case.id for case in suite.tier.cases),
        remarks=tuple(remarks),
        ended_at=suite.now.isoformat(timespec="seconds"),
        time=suite.timeline.so_far(),
    )


def report_in(run_folder: Path) -> tuple[Report, str]:
    """The document that a run left, and what is wrong with it; empty where nothing is.

    Where it can't be read, what the other files of the folder tell is put in its place: verdicts
    and figures, without baselines and history.

    Raises:
        ReportError: nothing of the run can be read.
    """
    try:
        return load_report(run_folder / FILE_NAME), ""
    except ReportError as error:
        run = load_verdict(run_folder / "verdict.json")
        if run is None:
            raise
        report, unread = _from_files(run, run_folder)
        return report, "\n".join((*unread, f"{error}; shown is what its other files tell"))


def _case_report(
    suite: Suite, case: Case, lived: Sequence[RunRecord], options: tuple[str, ...]
) -> CaseReport:
    measured = [one for one in suite.measurements if one.case.id == case.id]
    valid = [one for one in measured if one.values]
    settings: CaseSettings | None = None
    expected: Expected | None = None
    with contextlib.suppress(SpecregError):  # the case is red for it, and says why
        settings = suite.settings(case)
        expected = _expected(suite, case, (valid or measured)[-1:])
    every = last_launches(suite.figures) + tuple(suite.figures[::-1])
    figures = next((_without_requests(one) for one in every if one.case_id == case.id), None)
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
        spreads=_spreads(valid[-1]) if valid else Spreads(),
        expected=expected,
        history=tuple(lived[-_LAST_RUNS:]),
        reproduce=run_command((case.id,), _with_version(options, figures)),
        logs=tuple(_logs(suite, case)),
        error=suite.errors.get(case.id, ""),
    )


def _with_version(options: tuple[str, ...], figures: Figures | None) -> tuple[str, ...]:
    """The options, and the engine that was measured: another day specreg knows a newer one."""
    named = ("--specreg-engine-version", "--specreg-engine-python", "--specreg-attach")
    if figures is None or any(option.startswith(named) for option in options):
        return options
    version = figures.engine_version.partition("+")[0]
    return (*options, f"--specreg-engine-version={version}") if version else options


def _logs(suite: Suite, case: Case) -> Iterator[str]:
    """What its servers said on each launch, its own before the control's."""
    for number in itertools.count(1):  # those of further looks too
        control, server = launches_of(case, number)
        launches = dict.fromkeys((server, control))
        paths = [path for launch in launches for path in suite.servers.log_paths(launch, server)]
        if not paths:
            return
        yield from (path.relative_to(suite.run_folder).as_posix() for path in paths)


def _without_requests(figures: Figures) -> Figures:
    if figures.acceptance is None:
        return figures
    acceptance = msgspec.structs.replace(figures.acceptance, by_request=())
    return msgspec.structs.replace(figures, acceptance=acceptance)


def _expected(suite: Suite, case: Case, measured: Sequence[Measurement]) -> Expected | None:
    """What the baseline holds that the case is judged by, of the prompts that were measured.

    A baseline has those of the extension too, which differ; what is drawn beside one another must
    be of the same prompts, as what is judged is. The speed of another machine says nothing.

    Raises:
        BaselineError: it can't be read.
    """
    known = suite.known_of(case)
    baseline = known.baseline
    if baseline is None:
        return None
    record = load_acceptance(baseline.acceptance)
    ours = next((one.acceptance for one in measured if one.acceptance is not None), None)
    if record is not None and record.prompts and ours is not None and ours.prompts:
        record = record.only({prompt.prompt_id for prompt in ours.prompts})
    values = {
        metric.name: expected_value(metric, baseline)
        if metric.by_launch
        else acceptance_value(metric, record)
        for metric in METRICS.values()
        if known.exact is not None or not metric.by_launch
    }
    parts = record.by_category if record else {}
    lengths = {name: part.total.acceptance_length for name, part in parts.items()}
    return Expected(
        environment=baseline.environment.name,
        recorded_on=baseline.provenance.recorded_on,
        engine_version=baseline.provenance.engine_version,
        driver_version=baseline.provenance.driver_version,
        reason=baseline.provenance.reason,
        values={name: value for name, value in values.items() if value is not None},
        histogram=record.total.histogram if record else (),
        marginal_frac=record.total.marginal_acceptance if record else (),
        category_acceptance_length_tokens={
            name: length for name, length in lengths.items() if length is not None
        },
    )


def _spreads(measurement: Measurement) -> Spreads:
    replay = measurement.replay
    if replay is None or not measurement.case.speed or Family.LATENCY in measurement.invalid:
        return Spreads()
    waits = Histogram()
    waits.add_all([round(ms * _NS_PER_MS) for t in replay.traces if (ms := ttft_ms(t)) is not None])
    return Spreads(
        ttft_ms=bars_of(waits),
        step_ms=bars_of(_steps(replay.rounds)),
        control_step_ms=bars_of(_steps(replay.control_rounds)),
    )


def _steps(rounds: Sequence[Round]) -> Histogram:
    steps = Histogram()
    for part in rounds:
        steps.merge(part.gaps)
    return steps


def _from_files(run: RunVerdict, run_folder: Path) -> tuple[Report, Sequence[str]]:
    """What the other files of a run tell, and which of them don't."""
    figures, unread = readable_figures(run_folder)
    by_case = {one.case_id: one for one in (*figures, *last_launches(figures))}
    names = dict.fromkeys(verdict.case_id for verdict in run.verdicts)
    report = Report(
        run=run,
        machine=Environment(kind="unknown"),
        origin=Origin(
            command="", specreg_version="", commit="", python_version="", driver_version=""
        ),
        cases=tuple(_bare_cases(run, names, by_case)),
        tier_cases=tuple(names),
    )
    return report, unread


def _bare_cases(
    run: RunVerdict, names: Iterable[str], figures: Mapping[str, Figures]
) -> Iterator[CaseReport]:
    for case_id in names:
        engine, method, *_ = (*case_id.split("-"), "")
        found = figures.get(case_id)
        yield CaseReport(
            case_id=case_id,
            engine=engine,
            method=method,
            models="",
            dataset="",
            target="",
            draft="",
            settings=None,
            figures=_without_requests(found) if found else None,
            spreads=Spreads(),
            expected=None,
            history=(),
            reproduce=run_command((case_id,), (f"--specreg-tier={run.tier}",)),
        )
