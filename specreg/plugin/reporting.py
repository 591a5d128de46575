"""Reports: show a verdict or an error of specreg without a traceback, and a summary at the end."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

import pytest

from specreg.core.errors import MemoryHeldError, ModelNotFetchedError, SpecregError, leaves
from specreg.core.readable import readable_block, readable_line
from specreg.plugin.failures import Failure, make_traceback_readable
from specreg.plugin.state import CONTEXT, END, NOTES, PROGRESS, RUN
from specreg.plugin.suite_tests import case_of, is_suite_test, launch_number_of, subject_of
from specreg.plugin.terminal import screen_of
from specreg.report.failures import properties, render_blocks, render_failures
from specreg.runs.verdicts import Asked
from specreg.suite.finish import render_end
from specreg.suite.result import RunResult
from specreg.verdicts.status import STATUS_MEANINGS
from specreg.verdicts.verdict import Outcome, Verdict

_FAILED_BY_VERDICT = "specreg_failed_by_verdict"
"""The attribute of a report whose test fails because of its verdict."""
TestWord = tuple[str, str, tuple[str, Mapping[str, bool]]]
"""The words of pytest for the result of a test: in the summary, in a row of results, and alone."""


def pytest_report_teststatus(
    report: pytest.TestReport | pytest.CollectReport, config: pytest.Config
) -> TestWord | None:
    """Say of a test that passes what its verdict says.

    The progress line ends, because pytest is about to write a line of its own.
    """
    config.stash[PROGRESS].leave_line()
    if isinstance(report, pytest.TestReport) and report.when == "call" and report.passed:
        return word_of({name: str(text) for name, text in report.user_properties})
    return None


def word_of(verdict: Mapping[str, str]) -> TestWord | None:
    """Return what pytest calls a test that passes with a verdict, given as properties.

    It is None for the usual words. Others are for a test that passes only because more nights are
    needed, and for one whose speed is judged once the parts of the run are joined.
    """
    if verdict.get("specreg.outcome") == Outcome.INCONCLUSIVE:
        return "undecided", "?", ("UNDECIDED", {"yellow": True})
    if verdict.get("specreg.reason", "").startswith("JUDGED_LATER"):
        return "to be judged", "m", ("MEASURED", {"yellow": True})
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace the traceback of a verdict or of an error of specreg by its message."""
    report = yield
    errors = leaves(call.excinfo.value) if call.excinfo is not None else ()
    specreg_errors = [error for error in errors if isinstance(error, SpecregError)]
    memory_errors = [error for error in errors if isinstance(error, MemoryHeldError)]
    if memory_errors:
        # Nothing can be measured on a GPU whose memory is still in use, so the session stops.
        item.session.shouldstop = memory_errors[0].head
    if specreg_errors and len(specreg_errors) == len(errors):
        decisive_error = (memory_errors or specreg_errors)[0]
        _report_errors(item, report, specreg_errors, decisive_error)
    else:
        _report_outcome(item, report)

    if is_suite_test(item):
        report.sections = make_traceback_readable(report.sections)
    return report


def _report_outcome(item: pytest.Item, report: pytest.TestReport) -> None:
    """Show why a verdict fails, and note a test that fails for another reason."""
    verdict = _verdict_of(item)
    if report.failed and report.when == "call" and verdict is not None and verdict.fails:
        report.longrepr = cast("Any", Failure.of(render_failures([verdict])))
        _mark_failed_by_verdict(report)
        return

    if is_suite_test(item):
        report.longrepr = make_traceback_readable(report.longrepr)
    if report.failed:
        item.config.stash[NOTES].note_other_failure()


def _mark_failed_by_verdict(report: pytest.TestReport) -> None:
    """Mark the report of a test that fails because of its verdict.

    The mark is an attribute of the report, because pytest-xdist sends those to the controller.
    """
    report.__dict__[_FAILED_BY_VERDICT] = True


def _is_failed_by_verdict(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """Return whether the test of a report fails because of its verdict."""
    return bool(getattr(report, _FAILED_BY_VERDICT, False))


def _verdict_of(item: pytest.Item) -> Verdict | None:
    """Return the verdict of a test of the suite; None before its fixture has made it."""
    if not is_suite_test(item):
        return None
    fixtures = getattr(item, "funcargs", {})
    return fixtures.get("verdict", fixtures.get("correctness"))


def _report_errors(
    item: pytest.Item,
    report: pytest.TestReport,
    errors: Sequence[SpecregError],
    decisive_error: SpecregError,
) -> None:
    """Show errors of specreg, and note the case that couldn't be judged because of them.

    Args:
        item: the test that raised the errors.
        report: the report of the phase in which it raised them.
        errors: all errors.
        decisive_error: the error that gives the verdict its reason.
    """
    head = decisive_error.head
    message = "\n".join(dict.fromkeys(map(str, errors)))

    # A test of another plugin or project fails with the message.
    if not is_suite_test(item):
        report.longrepr = cast("Any", Failure.of(message, head))
        item.config.stash[NOTES].note_other_failure()
        return

    # A model that can't be fetched skips the test if the run may leave such cases out.
    noted = item.config.stash[RUN].noted
    notes = item.config.stash[NOTES]
    is_unfetched = all(isinstance(error, ModelNotFetchedError) for error in errors)
    if is_unfetched and item.config.stash[CONTEXT].skips_unfetched:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {head}")
        noted.skipped[case_of(item).id] = head
        return

    # An error that fails all cases of a server is shown in full only once.
    text = f"{head}\n(as above)" if head in notes.shown_errors else message
    notes.shown_errors.add(head)
    report.longrepr = cast("Any", Failure.of(text, head))
    if report.when == "teardown":
        notes.note_other_failure()
    else:
        asked = Asked(case_of(item).id, subject_of(item).name, launch_number_of(item))
        verdict = noted.note_failure(asked, decisive_error.reason, message)
        report.user_properties.extend(properties(verdict))
        _mark_failed_by_verdict(report)


@pytest.hookimpl(tryfirst=True)
def pytest_internalerror(excrepr: Any) -> None:  # noqa: ANN401 - pytest exports no type of it
    """Hide the secrets in the traceback of an internal error, of specreg or of another plugin."""
    make_traceback_readable(excrepr)


def hide_values_of_interrupt(config: pytest.Config) -> None:
    """Hide the secrets in the traceback of Ctrl-C, which --full-trace shows with values."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    # pytest has no hook for this traceback, and keeps it in a private attribute.
    make_traceback_readable(getattr(reporter, "_keyboardinterrupt_memo", None))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note in the controller that a test of a worker failed for another reason than its verdict."""
    node = getattr(report, "node", None)
    if node is not None and report.failed and not _is_failed_by_verdict(report):
        node.config.stash[NOTES].note_other_failure()


def replace_tests_by_blocks(config: pytest.Config, result: RunResult) -> Mapping[str, str]:
    """Keep pytest from showing each failed test, and return a block for each failed case instead.

    Returns:
        The blocks by case id. There are none if no test failed, if pytest shows no failures
        (--tb=no), or if pytest shows all failed tests itself, because one of them failed for
        another reason than its verdict.
    """
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or config.option.tbstyle == "no":
        return {}
    reports = [*reporter.getreports("failed"), *reporter.getreports("error")]
    if not reports or not all(_is_failed_by_verdict(report) for report in reports):
        return {}
    config.option.tbstyle = "no"
    return render_blocks(result.verdicts, result.errors)


def explain_status(session: pytest.Session) -> None:
    """Print the meaning of an exit status that specreg's verdicts have set."""
    end = session.config.stash.get(END, None)
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    meaning = STATUS_MEANINGS.get(int(session.exitstatus))
    if reporter is None or end is None or end.report is None or meaning is None:
        return
    reporter.ensure_newline()
    reporter.write_line(f"exit status {int(session.exitstatus)}: {meaning}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the failed cases, the table of verdicts, what was recorded, and the next command."""
    config = terminalreporter.config
    end = config.stash.get(END, None)
    lines = config.stash[NOTES].lines
    if end is None or not (end.report or end.result.verdicts or lines):
        return
    if end.failure_blocks:
        terminalreporter.write_sep("=", "FAILURES")
    for case_id, block in end.failure_blocks.items():
        terminalreporter.write_sep("_", readable_line(case_id), red=True, bold=True)
        terminalreporter.write_line(readable_block(block))
    context = config.stash[CONTEXT]
    heading = f"specreg: tier {context.tier.name} on {context.environment.name}"
    terminalreporter.section(readable_line(heading))
    screen = screen_of(config)
    text = render_end(
        end.result, end.report, lines, shows_failures=bool(end.failure_blocks), screen=screen
    )
    terminalreporter.write_line(readable_block(text, styled=screen.color))
