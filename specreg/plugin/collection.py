"""Collection: give each test its cases, put the tests in order, and check that they can run.

Nothing here writes a file or takes a lock, so that `--collect-only` changes nothing.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from specreg.baselines.schema import read_baselines
from specreg.core.readable import readable_line
from specreg.correctness.checks import CHECKS
from specreg.matrix.case import Case
from specreg.measurement.metrics import BENCHMARK_METRIC, METRICS, Metric
from specreg.plugin.state import (
    CONTEXT,
    NOTES,
    PROGRESS,
    SELECTION,
    SHARDS,
    Refusal,
    refuse,
    usage_errors,
)
from specreg.plugin.suite_tests import (
    CORRECTNESS,
    case_id_of,
    case_of,
    is_suite_test,
    launch_number_of,
    marker_of,
    params_of,
    subject_of,
)
from specreg.plugin.unmatched import nothing_matched
from specreg.plugin.xdist import is_grouped
from specreg.suite.configure import check_cases
from specreg.suite.context import RunContext
from specreg.suite.selection import Selection, select, subjects_of
from specreg.suite.shards import Shard, check_workers, cut, expected_times, server_groups
from specreg.verdicts.status import NO_BASELINE_STATUS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise a test of the suite with its cases, launches and metrics, by its marker."""
    marker = marker_of(metafunc.definition)
    if marker is None or "case" not in metafunc.fixturenames:
        return
    context = metafunc.config.stash[CONTEXT]

    # Each row is a case on one launch, with one of the metrics or checks that the marker names.
    rows = [
        pytest.param(
            case_launch.case,
            case_launch.number,
            subject,
            id=f"{case_launch.case.id}-{subject.name}{case_launch.server.suffix}",
        )
        for case_launch in context.case_launches()
        for subject in subjects_of(
            marker.name, marker.args[0], case_launch, with_torch=context.options.oracle
        )
    ]
    shared = ["case", "launch_number"]
    subject_argument = "check" if marker.name == CORRECTNESS else "metric"

    # The metric isn't a fixture, so without a scope pytest would assume "function".
    metafunc.parametrize([*shared, subject_argument], rows, indirect=shared, scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Order the suite's tests, select those of the shard, and skip or check the selected ones."""
    collected = _without_placeholders(items)
    yield
    items[:] = _without_placeholders(items)
    suite_tests = [item for item in collected if is_suite_test(item)]
    if suite_tests and not items and not session.testsfailed:
        refuse(config, nothing_matched(config, suite_tests))

    # These steps read baselines, models and the cache, so each of them may fail.
    with usage_errors(config):
        _arrange(config, items)


def _arrange(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Arrange the tests of a session.

    Raises:
        SpecregError: a case can't be measured as it is.
        pytest.exit.Exception: a baseline can't be read.
    """
    context = config.stash[CONTEXT]
    only_lists = bool(config.getoption("collectonly"))

    # Order the tests, and drop those of other shards.
    _sort_by_server(items, context)
    if context.is_part:
        _sort_by_group(items, context)
    if context.options.part is not None:
        config.stash[SHARDS] = _keep_shard(config, items, context.options.part)

    # Find out what the tests need, and which of them can't run here.
    suite_items = [
        item for item in items if is_suite_test(item) and not item.get_closest_marker("skip")
    ]
    config.stash[NOTES].is_wanted = bool(suite_items)
    tests = [(case_of(item), subject_of(item)) for item in suite_items]
    selection = select(tests, context, asks_hub=not only_lists)
    shards = config.stash.get(SHARDS, ())
    selection = replace(selection, shard_cases=sum(len(shard.case_ids) for shard in shards))
    config.stash[SELECTION] = selection

    # Skip the tests that can't run, and check the others.
    _skip(suite_items, selection)
    if not only_lists:
        _expect(config, selection)
        _check(config, suite_items, selection)


def _without_placeholders(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Leave out the item that pytest makes for a test whose list of parameters is empty.

    The list is empty if no case that is run has the metrics or the check of the test's marker.
    """
    # Such an item has pytest's NOTSET in place of a case. A test that isn't the suite's has None.
    return [item for item in items if isinstance(params_of(item).get("case"), Case | None)]


def _sort_by_server(items: list[pytest.Item], context: RunContext) -> None:
    """Sort the suite's tests by server, case and metric, after all other tests.

    pytest's own order keeps the tests of a server together, but not those of a case. Speeds come
    after acceptance and checks, because they are judged once everything has been measured. The test
    that carries the benchmarks comes last.
    """
    positions = {}
    for position, case_launch in enumerate(context.case_launches()):
        positions[case_launch.number, case_launch.case.id] = position
    ranks = {name: rank for rank, name in enumerate((*METRICS, *CHECKS))}

    def sort_key(item: pytest.Item) -> tuple[int, int, int]:
        if not is_suite_test(item):
            return (-1, 0, 0)
        subject = subject_of(item)
        if subject is BENCHMARK_METRIC:
            return (2, 0, 0)
        is_speed = isinstance(subject, Metric) and subject.by_launch
        position = positions[launch_number_of(item), case_id_of(item)]
        return (int(is_speed), position, ranks[subject.name])

    items.sort(key=sort_key)


def _cases_of(items: Sequence[pytest.Item]) -> Mapping[str, Case]:
    """Return the cases of some tests by their ids."""
    return {case_id_of(item): case_of(item) for item in items if is_suite_test(item)}


def _sort_by_group(items: list[pytest.Item], context: RunContext) -> None:
    """Sort the server groups into the order in which a run of several processes starts them."""
    groups = server_groups(_cases_of(items).values(), context)
    positions: dict[str, int] = {}
    for position, group in enumerate(groups):
        positions |= dict.fromkeys(group.cases, position)
    # Tests that aren't the suite's come first, as in a run of one process.
    items.sort(key=lambda item: positions.get(case_id_of(item), -1))


def _keep_shard(
    config: pytest.Config, items: list[pytest.Item], part: tuple[int, int]
) -> Sequence[Shard]:
    """Deselect the tests of all other shards.

    Tests that aren't the suite's run with the first shard.

    Args:
        config: the configuration of pytest.
        items: the collected tests, which lose those of other shards.
        part: the number of the shard, and the number of shards. Shards are numbered from 1; the
            number 0 only lists them, so all tests are deselected. If the number of shards is 0,
            there is one for each server group.

    Returns:
        All shards.
    """
    number, shard_count = part
    groups = server_groups(_cases_of(items).values(), config.stash[CONTEXT])
    shards = cut(groups, shard_count)
    kept_ids: set[str] = set()
    for shard in shards:
        if shard.number == number:
            kept_ids.update(shard.case_ids)
    if number == 1:
        # A test that isn't the suite's has an empty case id.
        kept_ids.add("")
    deselected = [item for item in items if case_id_of(item) not in kept_ids]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if case_id_of(item) in kept_ids]
    if deselected and not items:
        config.stash[NOTES].note_nothing_to_run()
    return shards


def _skip(items: Sequence[pytest.Item], selection: Selection) -> None:
    """Skip the tests that can't run on this machine."""
    case_counts = Counter(selection.skipped.values())
    for item in items:
        case = case_of(item)
        reason = selection.why_skipped(case, subject_of(item))
        if not reason:
            continue
        # pytest shows equal reasons in one line, without the tests' names. So the case is named
        # if it is the only one with this reason, and a shared reason stays one line.
        if case_counts[reason] == 1:
            reason = f"{case.id}: {reason}"
        item.add_marker(pytest.mark.skip(reason=readable_line(reason)))


def _expect(config: pytest.Config, selection: Selection) -> None:
    """Let the progress show how long the run will take, unless this is a worker of pytest-xdist."""
    context = config.stash[CONTEXT]
    if not context.is_worker:
        config.stash[PROGRESS].run.expect(expected_times(context, selection, context.provision.fit))


def _check(config: pytest.Config, items: Sequence[pytest.Item], selection: Selection) -> None:
    """Check that the selected cases can be measured, before any server starts.

    Raises:
        SpecregError: a case can't be measured as it is.
        pytest.exit.Exception: a baseline can't be read.
    """
    if not items:
        return

    # Check the cases that weren't skipped.
    context = config.stash[CONTEXT]
    left_out = {*selection.skipped, *selection.unfetched}
    all_cases = _cases_of(items)
    cases = {case_id: case for case_id, case in all_cases.items() if case_id not in left_out}
    check_cases(context, cases.values())
    check_workers(context, selection, grouped=is_grouped(config))

    # Read their baselines.
    _, unreadable = read_baselines(context.store.files(cases))
    if unreadable:
        refuse(config, Refusal("\n\n".join(unreadable), NO_BASELINE_STATUS))
        pytest.exit("baselines can't be read, see below; no server was started")


def pytest_report_collectionfinish(config: pytest.Config) -> Sequence[str]:
    """Return a line with the path of the page that shows the run while it goes on.

    A run of a single case on a single launch has no such page.
    """
    if len(config.stash[PROGRESS].run.expected) <= 1:
        return []
    path = config.stash[CONTEXT].run_folder / "report.html"
    return [f"page of the run, from its second case on: {path}"]
