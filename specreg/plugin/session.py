"""The session: load the tier when pytest starts, start the run before its tests, and end it."""

import dataclasses
import gc
import os
import shlex
import warnings
from collections.abc import Generator, Iterator, Sequence

import pytest

from specreg.core.errors import SpecregError
from specreg.core.interrupts import INTERRUPTER, check_signalled, interrupt_on_signals
from specreg.core.processes import kill_running
from specreg.core.redaction import hide_secrets_of
from specreg.plugin.options import read_options
from specreg.plugin.reporting import (
    explain_status,
    hide_values_of_interrupt,
    replace_tests_by_blocks,
)
from specreg.plugin.state import (
    CONTEXT,
    END,
    NOTES,
    PROGRESS,
    RUN,
    SELECTION,
    SHARDS,
    SessionEnd,
    SessionNotes,
    usage_errors,
)
from specreg.plugin.suite_tests import MARKERS, case_id_of, is_suite_test
from specreg.plugin.terminal import cursor_column, screen_of
from specreg.plugin.xdist import (
    deal_out_groups,
    has_workers,
    is_worker,
    judge_workers,
    worker_folder,
)
from specreg.report.progress import Progress
from specreg.suite.configure import open_context
from specreg.suite.document import run_verdict
from specreg.suite.finish import VERDICT_FILE, record_run
from specreg.suite.new_baselines import record_baselines
from specreg.suite.options import Options
from specreg.suite.result import RunResult, empty_result
from specreg.suite.run import Run
from specreg.suite.selection import Selection
from specreg.suite.shards import list_shards
from specreg.suite.start import start_run
from specreg.verdicts.status import exit_status
from specreg.verdicts.verdict import Verdict


def pytest_configure(config: pytest.Config) -> None:
    """Load the tier, so that a wrong name or file ends pytest before anything starts."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)

    # pytest-benchmark warns if there is no earlier run to compare with. If pytest turns warnings
    # into errors, the first run would fail because of that.
    warnings.filterwarnings("default", module="pytest_benchmark")
    interrupt_on_signals()

    with usage_errors(config):
        options = _options_of(config)
        # Learn the secrets among the arguments, and among the options: a worker of pytest-xdist
        # gets the options only.
        option_values = [str(value) for value in dataclasses.astuple(options)]
        hide_secrets_of({}, (*config.invocation_params.args, *option_values))
        progress = Progress(column=cursor_column(config))
        config.stash[PROGRESS] = progress
        config.stash[NOTES] = SessionNotes()
        config.stash[CONTEXT] = open_context(
            config.rootpath, options, progress, worker_folder(config)
        )

    deal_out_groups(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave out the names of the suite's files beside the dots of a run.

    Tests run case by case, so the file changes after every other dot.
    """
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    only_suite = all(is_suite_test(item) for item in session.items)
    if reporter is not None and only_suite and session.config.get_verbosity() == 0:
        reporter.showfspath = False


def _options_of(config: pytest.Config) -> Options:
    """Return the options of this process, which may measure only a part of the run.

    Raises:
        SpecregError: the options can't be combined with those of pytest-xdist.
    """
    options = read_options(config)
    if has_workers(config) and options.shard:
        raise SpecregError(
            "--specreg-shard with -n: a shard is measured by one process; leave out one option"
        )

    if is_worker(config):
        # The controller has chosen the run that is resumed, and gives its folder to the worker.
        options = dataclasses.replace(options, resume=False)
    return options


def pytest_unconfigure(config: pytest.Config) -> None:
    """Restore the terminal, and close the ledger so that another process can resume the run."""
    if PROGRESS in config.stash:
        config.stash[PROGRESS].close()
    if RUN in config.stash:
        config.stash[RUN].ledger.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Start the run: lock its folder, and write its plan there."""
    config = session.config
    if session.testsfailed and not config.option.continue_on_collection_errors:
        # A test couldn't be collected, so pytest's own hook ends the session.
        return
    context = config.stash[CONTEXT]
    shards = config.stash.get(SHARDS, ())
    has_suite_tests = any(is_suite_test(item) for item in session.items)
    with usage_errors(config):
        if context.options.lists_shards:
            config.stash[NOTES].add_lines([list_shards(context.root, shards)])
        if has_suite_tests and not config.getoption("collectonly"):
            case_ids = [shard.case_ids for shard in shards]
            config.stash[RUN] = start_run(
                context, config.stash[SELECTION], case_ids, config.stash[PROGRESS]
            )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Stop if a signal came, and fail the test if the models of its case can't be fetched.

    Raises:
        KeyboardInterrupt: a signal came.
        SpecregError: the models of the test's case can't be fetched.
    """
    item.config.stash[PROGRESS].leave_line()
    # Python drops an exception that is raised in a finalizer, so an interrupt may have been lost.
    check_signalled()
    reason = item.config.stash[SELECTION].unfetched.get(case_id_of(item))
    if reason is not None:
        raise SpecregError(reason)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
    """End the run and write its documents, before pytest-benchmark writes its file."""
    hide_values_of_interrupt(session.config)
    if _is_stopped_by_failures(session, exitstatus):
        exitstatus = pytest.ExitCode.TESTS_FAILED
        session.exitstatus = exitstatus
    _finish(session, exitstatus)
    yield

    # The last line, below pytest's own, explains the exit status, because nox prints only a number.
    explain_status(session)


def _finish(session: pytest.Session, exitstatus: int) -> None:
    """End the run, write its documents, and set the exit status of its verdicts.

    Raises:
        KeyboardInterrupt: the user interrupted the run a second time.
    """
    config = session.config
    notes = config.stash[NOTES]
    context = config.stash[CONTEXT]

    # Without a test pytest ends with 5, and a CI job whose shard is empty would fail.
    if notes.has_nothing_to_run:
        session.exitstatus = pytest.ExitCode.OK
        result = empty_result(context, config.stash.get(SELECTION, Selection()))
        config.stash[END] = SessionEnd(result=result, report=None, failure_blocks={})
        return

    # A second signal means that the user doesn't want to wait for an orderly end.
    if len(INTERRUPTER.interrupting_signals) > 1:
        kill_running()
        raise KeyboardInterrupt
    cut_short = _is_cut_short(session, exitstatus)

    # The servers are stopped first, because the rest takes a while and may be interrupted again.
    left_over = list(_stop_servers(config, cut_short=cut_short))
    notes.add_lines(left_over)
    run = _finished_run(session, cut_short=cut_short)
    if run is None:
        result = empty_result(context, config.stash.get(SELECTION, Selection()))
    else:
        notes.add_lines(_conclude(run, cut_short=cut_short))
        result = run.result()

    # Say how to continue an interrupted run, and write the baselines.
    if result.launches and cut_short:
        notes.add_lines(["to continue this run, type the same command with --specreg-resume"])
    if context.is_recording and result.launches and not context.is_part:
        notes.add_lines(_update_baselines(session, result, cut_short=cut_short))

    # Write the documents of the run, which have its exit status.
    _set_exit_status(session, exitstatus, result.verdicts)
    if left_over and session.exitstatus == pytest.ExitCode.OK:
        # What is left of a server would disturb whatever this machine measures next.
        session.exitstatus = pytest.ExitCode.INTERRUPTED
    report = None
    if result.verdicts or _was_meant_to_judge(session):
        verdict = run_verdict(result, int(session.exitstatus), cut_short=cut_short)
        report, lines = record_run(result, verdict, command=_command(config))
        notes.add_lines(lines)

    blocks = replace_tests_by_blocks(config, result)
    config.stash[END] = SessionEnd(result=result, report=report, failure_blocks=blocks)


def _finished_run(session: pytest.Session, *, cut_short: bool) -> Run | None:
    """Return the run of this process, or the merged run of the workers of pytest-xdist.

    Returns:
        The run; None if no test of the suite ran, or if a file of a worker can't be read.
    """
    config = session.config
    try:
        run, lines = judge_workers(session, config.stash[CONTEXT], cut_short=cut_short)
    except SpecregError as error:
        config.stash[NOTES].add_lines([str(error)])
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return None

    config.stash[NOTES].add_lines(lines)
    return run or config.stash.get(RUN, None)


def _conclude(run: Run, *, cut_short: bool) -> Sequence[str]:
    """Judge what hasn't been judged yet, and return lines for the summary.

    Only the joined run of several workers has something left to judge, and a run that was cut short
    before the first test of a speed.
    """
    if run.shards is not None and not cut_short:
        run.finish()
    else:
        run.end()
    return run.lines


def _is_stopped_by_failures(session: pytest.Session, exitstatus: int) -> bool:
    """Return whether -x or --maxfail ended the run, which pytest-xdist calls an interrupt."""
    is_interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
    by_a_signal = bool(INTERRUPTER.interrupting_signals)
    return is_interrupted and bool(session.shouldfail) and not by_a_signal


def _is_cut_short(session: pytest.Session, exitstatus: int) -> bool:
    """Return whether the run ended before all selected tests ran."""
    is_stopped = bool(session.shouldstop or session.shouldfail)
    return is_stopped or exitstatus in {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR}


def _stop_servers(config: pytest.Config, *, cut_short: bool) -> Iterator[str]:
    """Stop all servers, and yield a line if a server can't be stopped."""
    try:
        if RUN in config.stash:
            config.stash[RUN].stop()
    except SpecregError as error:
        yield str(error)
    if cut_short:
        # An interrupted request leaves open sockets. Collecting them here keeps Python's warnings
        # about them out of the summary.
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()


def _update_baselines(session: pytest.Session, result: RunResult, *, cut_short: bool) -> list[str]:
    """Write the baselines unless the run was cut short, and return lines for the summary.

    The session fails if a baseline wasn't written.
    """
    if cut_short:
        reason = "the run was interrupted"
        if session.shouldfail:
            reason = "-x or --maxfail stopped the run"
        return [f"no baseline was written: {reason}"]

    lines, all_written = record_baselines(result, screen_of(session.config))
    if not all_written and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return lines


def _set_exit_status(session: pytest.Session, exitstatus: int, verdicts: Sequence[Verdict]) -> None:
    """Set the exit status of the verdicts, unless a test failed for another reason too.

    If the session was refused, it has the status of the refusal.
    """
    notes = session.config.stash[NOTES]
    only_verdicts_failed = exitstatus == pytest.ExitCode.TESTS_FAILED and not notes.failed_otherwise
    if exitstatus == pytest.ExitCode.OK or only_verdicts_failed:
        session.exitstatus = exit_status(verdicts) or session.exitstatus
    if notes.refusal is not None:
        session.exitstatus = notes.refusal.status


def _was_meant_to_judge(session: pytest.Session) -> bool:
    """Return whether a session without verdicts was meant to judge.

    If it was, its documents are written although they have no verdicts.

    A session that lists tests, records baselines or ends with a usage error isn't meant to judge. A
    resumed run that skips all tests keeps the verdict that its folder already has.
    """
    config = session.config
    context = config.stash[CONTEXT]
    return (
        config.stash[NOTES].is_wanted
        and not context.is_recording
        and not config.getoption("collectonly")
        and not is_worker(config)
        and session.exitstatus != pytest.ExitCode.USAGE_ERROR
        and not (context.run_folder / VERDICT_FILE).exists()
    )


def _command(config: pytest.Config) -> str:
    """Return the command that the user typed, with the options of PYTEST_ADDOPTS."""
    added = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    return shlex.join(("pytest", *added, *map(str, config.invocation_params.args)))
