"""pytest's hooks: they parametrise the tests of the suite, and report what `specreg.suite` does."""

import contextlib
import dataclasses
import gc
import os
import shlex
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import pytest

from specreg.baselines.schema import read_baselines
from specreg.core.commands import install_command
from specreg.core.errors import MemoryHeldError, ModelNotFetchedError, SpecregError, leaves
from specreg.core.processes import SIGNALLED, check_signalled, interrupt_on_signals, kill_running
from specreg.core.redaction import hide_known, learn
from specreg.correctness.checks import CHECKS, CorrectnessCheck
from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS, RECORDED, Metric
from specreg.report.document import NO_BASELINE_STATUS, RunVerdict, exit_status, record_document
from specreg.report.exports import SAVING, SHOWING, is_given, machine_info_of
from specreg.report.failures import Failure, properties, render_blocks, render_failures
from specreg.report.progress import Progress
from specreg.suite import finish
from specreg.suite.configure import check_cases, choose, open_suite
from specreg.suite.merge import WORKERS_FOLDER, plan_of, take_workers
from specreg.suite.options import Options, flag_of, hints_of
from specreg.suite.plan import PLAN
from specreg.suite.run import Suite
from specreg.suite.shards import check_workers, cut, list_shards, make_scheduler, server_groups
from specreg.telemetry.identity import find_gpus

SUITE = pytest.StashKey[Suite]()


@dataclass(slots=True, kw_only=True)
class _Session:
    """What the hooks keep of a run."""

    progress: Progress
    lines: list[str] = field(default_factory=list)  # that the end says besides
    blocks: Mapping[str, str] = field(default_factory=dict)  # of a failed case, for pytest's
    is_asked: bool = False  # tests of the suite were chosen, or would have been if anything had
    others_failed: bool = False  # a test failed otherwise than by its verdict
    run: RunVerdict | None = None
    refused: int | None = None  # the status of a run that ends before it begins
    is_empty: bool = False  # the shard that is asked for has no server group


_SESSION = pytest.StashKey[_Session]()

_MARKERS = (
    "family(name): the family of metrics that a test of the suite judges",
    "correctness(name): what a test of the suite checks, whatever the baseline says",
    "benchmark(timer): pytest-benchmark's, of the test that carries the cases' benchmarks",
)
_RUN_FOLDER, _GROUPED, _REFUSED = "specreg_run_folder", "specreg_grouped", "specreg_refused"
"""What a worker of pytest-xdist is told: where, and by server groups; and why it won't begin."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declares the options."""
    config = pluginmanager.get_plugin("pytestconfig")
    typed = tuple(map(str, config.invocation_params.args)) if config else ()
    parser.extra_info.update(hints_of(typed))
    group = parser.getgroup("specreg", "specreg: performance regressions of speculative decoding")
    for one in dataclasses.fields(Options):
        group.addoption(flag_of(one), dest=f"specreg_{one.name}", **one.metadata["argparse"])
    if "--benchmark-" in "".join(typed) and not pluginmanager.hasplugin("benchmark"):
        parser.extra_info["pytest-benchmark isn't installed"] = install_command("benchmark")


def read_options(config: pytest.Config) -> Options:
    """The options as given."""
    getoption = cast("Callable[[str], Any]", config.getoption)
    names = (one.name for one in dataclasses.fields(Options))
    return Options(**{name: getoption(f"specreg_{name}") for name in names})


def pytest_configure(config: pytest.Config) -> None:
    """Loads the tier, so that a wrong name or file ends the run before anything starts."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    # Where warnings are errors, a first run that is to be compared with an earlier one is none.
    warnings.filterwarnings("default", module="pytest_benchmark")
    interrupt_on_signals()
    with _as_usage_error(config):
        learn({}, config.invocation_params.args)
        progress, options = Progress(column=_column_of(config)), read_options(config)
        if _has_workers(config) and options.shard:
            raise SpecregError("--specreg-shard with -n: a shard is one process's; leave one out")
        config.stash[_SESSION] = _Session(progress=progress)
        within = None
        if given := getattr(config, "workerinput", None):
            within = Path(given[_RUN_FOLDER]) / WORKERS_FOLDER / given["workerid"]
            # What it goes on with is the controller's to choose.
            options = dataclasses.replace(options, resume=False)
        config.stash[SUITE] = open_suite(config.rootpath, options, progress, within)
    if _has_workers(config) and config.option.dist in {"load", "loadgroup"}:
        config.option.dist, config.option.loadscopereorder = "loadgroup", False


def _has_workers(config: pytest.Config) -> bool:
    """Whether the tests are run by workers of pytest-xdist, and not by this process."""
    return not hasattr(config, "workerinput") and config.getoption("dist", "no") != "no"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """A worker for each GPU; pytest-xdist's own number where there is none."""
    return len(find_gpus().devices) or None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - its type is xdist's own
    """Tells a worker of pytest-xdist in which run it has a share."""
    node.workerinput[_RUN_FOLDER] = str(node.config.stash[SUITE].run_folder)
    node.workerinput[_GROUPED] = node.config.option.dist == "loadgroup"


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:  # noqa: ANN401 - xdist's
    """Hands a worker the tests of a server group together, in our order."""
    grouped = config.option.dist == "loadgroup"
    return make_scheduler(config.stash[SUITE], config, log) if grouped else None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401 - its type is xdist's own
    """Ends the run where a worker of pytest-xdist refused to begin."""
    if refused := getattr(node, "workeroutput", {}).get(_REFUSED):
        _refuse(node.config, *refused)
        pytest.exit("a worker refused to begin, see below")


def _refuse(config: pytest.Config, text: str, status: int) -> None:
    """Keeps why the run ends before it begins; a worker of pytest-xdist tells its controller."""
    session = config.stash[_SESSION]
    session.lines.append(text)
    session.refused = status
    if hasattr(config, "workeroutput"):
        config.workeroutput[_REFUSED] = (text, status)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Puts the terminal back."""
    if _SESSION in config.stash:
        config.stash[_SESSION].progress.close()
    if SUITE in config.stash:
        config.stash[SUITE].journal.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Leaves the test out that carries benchmarks where pytest-benchmark isn't asked for any."""
    marks = getattr(obj, "pytestmark", ()) if isinstance(obj, FunctionType) else ()
    if not any(mark.args == (RECORDED.name,) for mark in marks):
        return None
    config = collector.config
    alone = not hasattr(config, "workerinput") and not _has_workers(config)  # or it records nothing
    return None if alone and is_given(config.getoption, (*SHOWING, *SAVING)) else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives a test of the suite its cases, launches and metrics, by its marker."""
    marker = _marker(metafunc.definition)
    if marker is None or "case" not in metafunc.fixturenames:
        return
    suite = metafunc.config.stash[SUITE]
    metafunc.config.stash[_SESSION].is_asked = True
    rows = [
        pytest.param(control, server, case, what, id=f"{case.id}-{what.name}{server.suffix}")
        for control, server, case in suite.setups()
        for what in suite.asked_by(marker.name, marker.args[0], case, server)
    ]
    shared = ["control", "server", "case"]
    names = [*shared, "check" if marker.name == "correctness" else "metric"]
    # The scope must be said: with one argument that is no fixture pytest assumes "function",
    # and every test would start its own server.
    metafunc.parametrize(names, rows, indirect=shared, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the suite's tests after all others, by server, case and metric; skips what can't run.

    What carries benchmarks comes last, once each launch was measured. pytest's own order keeps a
    server's tests together, and scatters its cases and metrics.
    """
    suite, session = config.stash[SUITE], config.stash[_SESSION]
    # pytest puts one item in the place of a test whose family no case of the tier has.
    items[:] = [one for one in items if isinstance(_params(one).get("case"), Case | None)]
    setups = {(server.id, case.id): i for i, (_, server, case) in enumerate(suite.setups())}
    names = {name: i for i, name in enumerate((*METRICS, *CHECKS))}

    def place(item: pytest.Item) -> tuple[int, int]:
        params = _params(item)
        if not params:
            return (-1, 0)
        if _what(params) is RECORDED:
            return (len(setups), 0)
        return (setups[params["server"].id, params["case"].id], names[_what(params).name])

    items.sort(key=place)
    shards = _deal(config, items)
    ours = [item for item in items if _params(item) and not item.get_closest_marker("skip")]
    # Where a selection leaves nothing at all, it may have meant these.
    session.is_asked = bool(ours) or (session.is_asked and not items)
    lists = config.getoption("collectonly")
    tests = [(_params(item)["case"], _what(_params(item))) for item in ours]
    for item, why in zip(ours, choose(suite, tests, lists=lists), strict=True):
        if why:
            item.add_marker(pytest.mark.skip(reason=why))
    if lists:
        return
    left_out = {*suite.skipped, *suite.unfetched}
    running = {case.id: case for case, _ in tests if case.id not in left_out}
    with _as_usage_error(config):  # before anything starts
        check_cases(suite, running.values())
        if wrong := read_baselines(suite.store.files(running))[1]:
            _refuse(config, "\n\n".join(wrong), NO_BASELINE_STATUS)
            pytest.exit("baselines can't be read, see below; no server was started")
        if tests:
            check_workers(suite, grouped=getattr(config, "workerinput", {}).get(_GROUPED, False))
            suite.journal.hold()  # no other run may go on with it meanwhile
            record_document(suite.run_folder / PLAN, plan_of(suite, shards))


def pytest_report_collectionfinish(config: pytest.Config) -> Sequence[str]:
    """Says where the page of a run of several cases will be while it goes on."""
    suite = config.stash[SUITE]
    page = f"page, from the second case on: {suite.run_folder / 'report.html'}"
    return [page] if len(suite.progress.expected_s) > 1 else []


def _deal(config: pytest.Config, items: list[pytest.Item]) -> Sequence[Collection[str]]:
    """Leaves the tests of the shard that is asked for; returns the cases of each, if it is cut."""
    suite, session = config.stash[SUITE], config.stash[_SESSION]
    if not suite.is_part:
        return ()
    cases = {_case_id(item): _params(item)["case"] for item in items if _params(item)}
    groups = server_groups(cases.values(), suite)
    order = {case: n for n, one in enumerate(groups) for case in one.cases}
    items.sort(key=lambda item: order.get(_case_id(item), -1))
    if suite.options.part is None:
        return ()
    number, of = suite.options.part
    shards = cut(groups, of)
    if not number:
        with _as_usage_error(config):
            session.lines.append(list_shards(suite.root, shards))
    mine = {case for one in shards if one.number == number for case in one.case_ids}
    if number == 1:
        mine.add("")  # the tests that aren't the suite's
    left_out = [item for item in items if _case_id(item) not in mine]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if _case_id(item) in mine]
    session.is_empty = not items and bool(left_out)
    return [shard.case_ids for shard in shards]


@contextlib.contextmanager
def _as_usage_error(config: pytest.Config) -> Iterator[None]:
    """End the run with the words of an error of specreg, before anything starts."""
    try:
        yield
    except SpecregError as error:
        if hasattr(config, "workeroutput"):
            _refuse(config, str(error), int(pytest.ExitCode.USAGE_ERROR))
        raise pytest.UsageError(str(error)) from error


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Stops where a signal said so, and starts no server whose models can't be fetched.

    Python drops an exception that is raised in a finalizer.
    """
    item.config.stash[_SESSION].progress.leave_line()
    check_signalled()
    if why := item.config.stash[SUITE].unfetched.get(_case_id(item)):
        raise SpecregError(why)


def pytest_report_teststatus(config: pytest.Config) -> None:
    """Leaves the line to pytest, which is about to write on it."""
    config.stash[_SESSION].progress.leave_line()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows a verdict or an error of specreg in words alone, and keeps it for the table."""
    report = yield
    errors = leaves(call.excinfo.value) if call.excinfo is not None else ()
    held = next((error for error in errors if isinstance(error, MemoryHeldError)), None)
    if held is not None:
        item.session.shouldstop = held.head
    suite, params = item.config.stash[SUITE], _params(item)
    given = getattr(item, "funcargs", {})
    verdict = given.get("verdict", given.get("correctness")) if params else None
    if report.failed and call.when == "call" and verdict is not None and verdict.fails:
        text = render_failures([verdict])
        report.longrepr = cast("Any", Failure(message=text.partition("\n")[0], text=text))
    ours = [error for error in errors if isinstance(error, SpecregError)]
    if not ours or len(ours) < len(errors):
        judged = bool(report.user_properties) and call.when != "teardown"
        item.config.stash[_SESSION].others_failed |= report.failed and not judged
        return report
    message = "\n".join(dict.fromkeys(map(str, ours)))
    head = (held or ours[0]).head
    is_unfetched = all(isinstance(one, ModelNotFetchedError) for one in ours)
    if params and suite.skips_unfetched and is_unfetched:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {head}")
        suite.skipped[_case_id(item)] = head
        return report
    case_id = _case_id(item) if call.when != "teardown" else ""
    is_told = any(verdict.reason == head for verdict in suite.verdicts)
    text = f"{head}\n(as above)" if is_told else message
    report.longrepr = cast("Any", Failure(message=head, text=text))
    if case_id:
        verdict = suite.note_failure(params["case"], _what(params).name, head, message)
        report.user_properties.extend(properties(verdict))
    item.config.stash[_SESSION].others_failed |= not case_id
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remembers of a worker's test whether it failed otherwise than by its verdict."""
    config = getattr(report, "node", None) and report.node.config
    if config and report.failed and not _case_of(report):
        config.stash[_SESSION].others_failed = True


def _case_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The case that a report's verdict is about; empty of any other."""
    return str(dict(getattr(report, "user_properties", ())).get("specreg.case_id", ""))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
    """Records what the run did, before pytest-benchmark writes what it has of it."""
    _finish(session, exitstatus)
    yield


def _finish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    suite, kept = config.stash[SUITE], config.stash[_SESSION]
    lines = kept.lines
    if kept.is_empty:
        session.exitstatus = pytest.ExitCode.OK
        return
    if len(SIGNALLED) > 1:
        kill_running()
        raise KeyboardInterrupt
    cut_short = bool(session.shouldstop or session.shouldfail) or exitstatus in {
        pytest.ExitCode.INTERRUPTED,
        pytest.ExitCode.INTERNAL_ERROR,
    }
    # Servers first: a report takes a while, and a second Ctrl-C must leave no server.
    lines.extend(_stop_servers(suite, cut_short=cut_short))
    if config.pluginmanager.hasplugin("dsession"):
        lines.extend(_take_workers(session, cut_short=cut_short))
    lines.extend(suite.conclude())
    if suite.measurements and cut_short:
        lines.append("to go on from here, type the same again with --specreg-resume")
    if suite.records and suite.measurements and not suite.is_part:
        lines.extend(_update_baselines(session, cut_short=cut_short))
    only_ours = exitstatus == pytest.ExitCode.TESTS_FAILED and not kept.others_failed
    if exitstatus == pytest.ExitCode.OK or only_ours:
        session.exitstatus = exit_status(suite.verdicts) or session.exitstatus
    if kept.refused is not None:
        session.exitstatus = kept.refused
    if suite.verdicts or _ended_without(session, suite):
        kept.run = finish.run_verdict(suite, int(session.exitstatus), cut_short=cut_short)
        added = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
        command = shlex.join(("pytest", *added, *map(str, config.invocation_params.args)))
        lines.extend(finish.record_run(suite, kept.run, command=command))
    _put_into_blocks(config)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Completes what pytest-benchmark is about to write."""
    finish.describe_benchmarks(config.stash[SUITE], output_json["benchmarks"])


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_group_stats(config: pytest.Config, benchmarks: list[dict[str, Any]]) -> None:
    """Completes pytest-benchmark's table, and leaves cases out that it isn't asked to show."""
    ours = finish.describe_benchmarks(config.stash[SUITE], benchmarks)
    if not is_given(config.getoption, SHOWING):
        benchmarks[:] = [one for one in benchmarks if one not in ours]


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_generate_machine_info(config: pytest.Config) -> Mapping[str, object]:
    """The machine that baselines go by."""
    return machine_info_of(config.stash[SUITE].environment)


def _stop_servers(suite: Suite, *, cut_short: bool) -> Iterator[str]:
    """Stops all servers; yields what went wrong."""
    try:
        suite.servers.stop()
    except SpecregError as error:
        yield str(error)
    if cut_short:  # in the middle of an answer, of whose end nothing is left to tell
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()


def _update_baselines(session: pytest.Session, *, cut_short: bool) -> list[str]:
    """Writes them unless the run was cut short; returns what to say of it."""
    if cut_short:
        why = "-x or --maxfail stopped the run" if session.shouldfail else "the run was interrupted"
        return [f"no baseline was written: {why}"]
    suite = session.config.stash[SUITE]
    said, all_written = finish.record_baselines(suite, color=_color(session.config))
    if not all_written and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return said


def _take_workers(session: pytest.Session, *, cut_short: bool) -> Iterator[str]:
    """Ends the workers of pytest-xdist, and judges what they measured; yields what to say of it."""
    session.config.pluginmanager.getplugin("dsession").pytest_sessionfinish()
    suite = session.config.stash[SUITE]
    try:
        yield from take_workers(suite, whole=not cut_short)
    except SpecregError as error:
        yield str(error)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _ended_without(session: pytest.Session, suite: Suite) -> bool:
    """Whether the run was to judge and didn't; one that only lists or records wasn't to."""
    return (
        session.config.stash[_SESSION].is_asked
        and not suite.records
        and not session.config.getoption("collectonly")
        and not hasattr(session.config, "workerinput")
        and session.exitstatus != pytest.ExitCode.USAGE_ERROR
        and not (suite.run_folder / "verdict.json").exists()  # of a run that was to be gone on with
    )


def _put_into_blocks(config: pytest.Config) -> None:
    """Prints a block for each case instead of each test, unless other tests failed too."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or config.option.tbstyle == "no":
        return
    reports = [one for kind in ("failed", "error") for one in reporter.getreports(kind)]
    if reports and all(map(_case_of, reports)):
        config.option.tbstyle = "no"
        suite = config.stash[SUITE]
        config.stash[_SESSION].blocks = render_blocks(suite.verdicts, suite.errors)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What failed, the table of the verdicts, what was recorded, and what to type next."""
    config = terminalreporter.config
    suite, session = config.stash[SUITE], config.stash[_SESSION]
    if not suite.verdicts and not session.lines:
        return
    if session.blocks:
        terminalreporter.write_sep("=", "FAILURES")
    for case_id, block in session.blocks.items():
        terminalreporter.write_sep("_", case_id, red=True, bold=True)
        terminalreporter.write_line(hide_known(block))
    terminalreporter.section(f"specreg: tier {suite.tier.name} on {suite.environment.name}")
    told, color = bool(session.blocks), _color(config)
    text = finish.render_end(suite, session.run, session.lines, told=told, color=color)
    terminalreporter.write_line(hide_known(text))


def _marker(item: pytest.Item | pytest.Function) -> pytest.Mark | None:
    return item.get_closest_marker("family") or item.get_closest_marker("correctness")


def _params(item: pytest.Item) -> Mapping[str, Any]:
    """The parameters of a test of the suite, none of any other."""
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec and _marker(item) else {}


def _case_id(item: pytest.Item) -> str:
    """The case of a test of the suite, empty of any other."""
    return str(_params(item)["case"].id) if _params(item) else ""


def _what(params: Mapping[str, Any]) -> Metric | CorrectnessCheck:
    return cast("Metric | CorrectnessCheck", params.get("check") or params["metric"])


def _column_of(config: pytest.Config) -> Callable[[], int] | None:
    """What says in which column of the terminal pytest's output ends; None without a terminal."""
    is_ci = any(map(os.environ.get, ("CI", "BUILD_NUMBER")))  # some run their jobs in a terminal
    is_plain = is_ci or os.environ.get("TERM") == "dumb" or hasattr(config, "workerinput")
    if is_plain or not (os.isatty(1) and os.isatty(2)):
        return None
    has, writer = config.pluginmanager.hasplugin, config.get_terminal_writer
    return lambda: writer().width_of_current_line if has("terminalreporter") else 0


def _color(config: pytest.Config) -> bool:
    return bool(config.get_terminal_writer().hasmarkup) and "NO_COLOR" not in os.environ
