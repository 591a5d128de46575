"""The session: opens the run as pytest starts, starts it before the first test, and ends it."""

import dataclasses
import gc
import os
import shlex
import warnings
from collections.abc import Generator, Iterator

import pytest

from specreg.core.errors import SpecregError
from specreg.core.processes import SIGNALLED, check_signalled, interrupt_on_signals, kill_running
from specreg.core.redaction import learn
from specreg.plugin.options import read_options
from specreg.plugin.reporting import hide_values_of_interrupt, replace_tests_by_blocks
from specreg.plugin.state import (
    END,
    NOTES,
    PROGRESS,
    SHARDS,
    SUITE,
    SessionEnd,
    SessionNotes,
    usage_errors,
)
from specreg.plugin.suite_tests import MARKERS, case_id_of, is_suite_test
from specreg.plugin.terminal import cursor_column, has_color
from specreg.plugin.xdist import (
    deal_out_groups,
    has_workers,
    is_worker,
    judge_workers,
    worker_folder,
)
from specreg.report.document import exit_status, record_document
from specreg.report.progress import Progress
from specreg.suite import finish
from specreg.suite.configure import open_suite
from specreg.suite.merge import plan_of
from specreg.suite.options import Options
from specreg.suite.plan import PLAN
from specreg.suite.run import Suite
from specreg.suite.shards import list_shards


def pytest_configure(config: pytest.Config) -> None:
    """Load the tier, so that a wrong name or file ends the run before anything starts."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    # pytest-benchmark warns when there is no earlier run to compare with. Where warnings are
    # errors, the first run would fail for it.
    warnings.filterwarnings("default", module="pytest_benchmark")
    interrupt_on_signals()
    with usage_errors(config):
        options = _options_of(config)
        # A worker of pytest-xdist has the options, and not what was typed.
        learn({}, (*config.invocation_params.args, *map(str, dataclasses.astuple(options))))
        progress = Progress(column=cursor_column(config))
        config.stash[PROGRESS] = progress
        config.stash[NOTES] = SessionNotes()
        config.stash[SUITE] = open_suite(config.rootpath, options, progress, worker_folder(config))
    deal_out_groups(config)


def _options_of(config: pytest.Config) -> Options:
    """Return the options of this process's part of the run.

    Raises:
        SpecregError: the options can't be combined with those of pytest-xdist.
    """
    options = read_options(config)
    if has_workers(config) and options.shard:
        raise SpecregError("--specreg-shard with -n: a shard is one process's; leave one out")
    if is_worker(config):
        # The controller chooses which run is resumed.
        options = dataclasses.replace(options, resume=False)
    return options


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put the terminal back as it was, and let another process continue the run."""
    if PROGRESS in config.stash:
        config.stash[PROGRESS].close()
    if SUITE in config.stash:
        config.stash[SUITE].journal.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Start the run: take its folder, and leave its plan there."""
    config = session.config
    if session.testsfailed and not config.option.continue_on_collection_errors:
        return  # pytest itself ends the session in a moment
    suite = config.stash[SUITE]
    shards = config.stash.get(SHARDS, ())
    has_suite_tests = any(is_suite_test(item) for item in session.items)
    with usage_errors(config):
        if suite.options.lists_shards:
            config.stash[NOTES].add_lines([list_shards(suite.root, shards)])
        if has_suite_tests and not config.getoption("collectonly"):
            suite.journal.hold()  # no other run may continue it meanwhile
            case_ids = [shard.case_ids for shard in shards]
            record_document(suite.run_folder / PLAN, plan_of(suite, case_ids))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Stop if a signal came, and start no server whose models can't be fetched.

    Python drops an exception that is raised in a finalizer, so the interrupt may have been lost.

    Raises:
        SpecregError: the models of the test's case can't be fetched.
    """
    item.config.stash[PROGRESS].leave_line()
    check_signalled()
    reason = item.config.stash[SUITE].unfetched.get(case_id_of(item))
    if reason is not None:
        raise SpecregError(reason)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
    """Record what the run did, before pytest-benchmark writes what it has of it."""
    hide_values_of_interrupt(session.config)
    _finish(session, exitstatus)
    yield


def _finish(session: pytest.Session, exitstatus: int) -> None:
    """End the run, and set the exit status that its verdicts ask for.

    Raises:
        KeyboardInterrupt: the user interrupted the run a second time.
    """
    config = session.config
    notes = config.stash[NOTES]
    suite = config.stash[SUITE]
    if notes.is_empty_shard:
        session.exitstatus = pytest.ExitCode.OK
        return
    if len(SIGNALLED) > 1:
        kill_running()
        raise KeyboardInterrupt
    cut_short = _is_cut_short(session, exitstatus)
    # Servers first: a report takes a while, and a second Ctrl-C must leave no server.
    notes.add_lines(_stop_servers(suite, cut_short=cut_short))
    notes.add_lines(judge_workers(session, cut_short=cut_short))
    notes.add_lines(suite.conclude())
    if suite.measurements and cut_short:
        notes.add_lines(["to go on from here, type the same again with --specreg-resume"])
    if suite.records and suite.measurements and not suite.is_part:
        notes.add_lines(_update_baselines(session, cut_short=cut_short))
    _set_exit_status(session, exitstatus)
    run = None
    if suite.verdicts or _judged_nothing(session):
        run = finish.run_verdict(suite, int(session.exitstatus), cut_short=cut_short)
        notes.add_lines(finish.record_run(suite, run, command=_command(config)))
    config.stash[END] = SessionEnd(run=run, failure_blocks=replace_tests_by_blocks(config))


def _is_cut_short(session: pytest.Session, exitstatus: int) -> bool:
    """Whether the run ended before all selected tests ran."""
    is_stopped = bool(session.shouldstop or session.shouldfail)
    return is_stopped or exitstatus in {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR}


def _stop_servers(suite: Suite, *, cut_short: bool) -> Iterator[str]:
    """Stop all servers, and yield what went wrong."""
    try:
        suite.servers.stop()
    except SpecregError as error:
        yield str(error)
    if cut_short:
        # An interrupted answer leaves sockets behind, whose warnings would end up in the summary.
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()


def _update_baselines(session: pytest.Session, *, cut_short: bool) -> list[str]:
    """Write the baselines unless the run was cut short, and return lines for the summary."""
    if cut_short:
        reason = "the run was interrupted"
        if session.shouldfail:
            reason = "-x or --maxfail stopped the run"
        return [f"no baseline was written: {reason}"]
    suite = session.config.stash[SUITE]
    lines, all_written = finish.record_baselines(suite, color=has_color(session.config))
    if not all_written and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return lines


def _set_exit_status(session: pytest.Session, exitstatus: int) -> None:
    """Set the exit status of the verdicts, unless something else failed too."""
    notes = session.config.stash[NOTES]
    only_verdicts_failed = exitstatus == pytest.ExitCode.TESTS_FAILED and not notes.failed_otherwise
    if exitstatus == pytest.ExitCode.OK or only_verdicts_failed:
        verdicts = session.config.stash[SUITE].verdicts
        session.exitstatus = exit_status(verdicts) or session.exitstatus
    if notes.refusal is not None:
        session.exitstatus = notes.refusal.status


def _judged_nothing(session: pytest.Session) -> bool:
    """Whether a run without a verdict was meant to judge; one that only lists or records wasn't.

    A resumed run that selects nothing keeps the verdict that its folder has.
    """
    config = session.config
    suite = config.stash[SUITE]
    return (
        config.stash[NOTES].is_wanted
        and not suite.records
        and not config.getoption("collectonly")
        and not is_worker(config)
        and session.exitstatus != pytest.ExitCode.USAGE_ERROR
        and not (suite.run_folder / "verdict.json").exists()
    )


def _command(config: pytest.Config) -> str:
    """Return what the user typed, with what the environment adds to it."""
    added = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    return shlex.join(("pytest", *added, *map(str, config.invocation_params.args)))
