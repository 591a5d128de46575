"""Collection: give each test its cases, put the tests in order, and check that they can run.

Nothing here writes a file or takes a lock; that happens when the run starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from specreg.baselines.schema import read_baselines
from specreg.core.readable import readable_line
from specreg.correctness.checks import CHECKS
from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS, RECORDED
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
    marker_of,
    params_of,
    subject_of,
)
from specreg.plugin.xdist import is_grouped
from specreg.report.document import NO_BASELINE_STATUS
from specreg.suite.configure import check_cases
from specreg.suite.context import RunContext
from specreg.suite.selection import Selection, select, subjects_of
from specreg.suite.shards import Shard, check_workers, cut, expected_times, server_groups


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise a test of the suite with its cases, servers and metrics, by its marker."""
    marker = marker_of(metafunc.definition)
    if marker is None or "case" not in metafunc.fixturenames:
        return
    context = metafunc.config.stash[CONTEXT]
    metafunc.config.stash[NOTES].note_parametrized()
    rows = [
        pytest.param(
            launch.control,
            launch.server,
            launch.case,
            subject,
            id=f"{launch.case.id}-{subject.name}{launch.server.suffix}",
        )
        for launch in context.case_launches()
        for subject in subjects_of(
            marker.name, marker.args[0], launch, with_torch=context.options.oracle
        )
    ]
    shared = ["control", "server", "case"]
    subject_fixture = "check" if marker.name == CORRECTNESS else "metric"
    # Without an explicit scope pytest assumes "function" if one argument is no fixture,
    # and every test would start its own server.
    metafunc.parametrize([*shared, subject_fixture], rows, indirect=shared, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the suite's tests, keep those of the selected shard, skip and check what is left."""
    # Whatever is asked of the cases may read a baseline, a model or the cache.
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
    _drop_placeholders(items)
    _sort_by_server(items, context)
    if context.is_part:
        _sort_by_group(items, context)
    if context.options.part is not None:
        config.stash[SHARDS] = _keep_shard(config, items, context.options.part)
    suite_items = [
        item for item in items if is_suite_test(item) and not item.get_closest_marker("skip")
    ]
    config.stash[NOTES].note_selected(suite_tests=len(suite_items), all_tests=len(items))
    tests = [(case_of(item), subject_of(item)) for item in suite_items]
    selection = select(tests, context, asks_hub=not only_lists)
    shards = config.stash.get(SHARDS, ())
    selection = replace(selection, shard_cases=sum(len(shard.case_ids) for shard in shards))
    config.stash[SELECTION] = selection
    _skip(suite_items, selection)
    if not only_lists:
        _expect(config, selection)
        _check(config, suite_items, selection)


def _drop_placeholders(items: list[pytest.Item]) -> None:
    """Drop the item that pytest puts in place of a test whose family no case of the tier has."""
    items[:] = [item for item in items if isinstance(params_of(item).get("case"), Case | None)]


def _sort_by_server(items: list[pytest.Item], context: RunContext) -> None:
    """Put the suite's tests after all others, by server, case and metric.

    pytest's own order keeps a server's tests together, and scatters its cases and metrics.
    The test that carries benchmarks comes last, after every launch was measured.
    """
    positions = {
        (launch.server.id, launch.case.id): position
        for position, launch in enumerate(context.case_launches())
    }
    ranks = {name: rank for rank, name in enumerate((*METRICS, *CHECKS))}

    def sort_key(item: pytest.Item) -> tuple[int, int]:
        if not is_suite_test(item):
            return (-1, 0)
        subject = subject_of(item)
        if subject is RECORDED:
            return (len(positions), 0)
        position = positions[params_of(item)["server"].id, case_id_of(item)]
        return (position, ranks[subject.name])

    items.sort(key=sort_key)


def _cases_of(items: Sequence[pytest.Item]) -> Mapping[str, Case]:
    """Return the cases of some tests by their ids."""
    return {case_id_of(item): case_of(item) for item in items if is_suite_test(item)}


def _sort_by_group(items: list[pytest.Item], context: RunContext) -> None:
    """Put the server groups in the order in which a run of several processes deals them out."""
    groups = server_groups(_cases_of(items).values(), context)
    positions = {
        case_id: position for position, group in enumerate(groups) for case_id in group.cases
    }
    items.sort(key=lambda item: positions.get(case_id_of(item), -1))


def _keep_shard(
    config: pytest.Config, items: list[pytest.Item], part: tuple[int, int]
) -> Sequence[Shard]:
    """Deselect the tests of all other shards, and return how the run is cut.

    Tests that aren't the suite's run with the first shard. Number 0 only lists the shards, so that
    no test is left.
    """
    number, shard_count = part
    groups = server_groups(_cases_of(items).values(), config.stash[CONTEXT])
    shards = cut(groups, shard_count)
    kept_ids = {case_id for shard in shards if shard.number == number for case_id in shard.case_ids}
    if number == 1:
        kept_ids.add("")
    deselected = [item for item in items if case_id_of(item) not in kept_ids]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if case_id_of(item) in kept_ids]
    if deselected and not items:
        config.stash[NOTES].note_empty_shard()
    return shards


def _skip(items: Sequence[pytest.Item], selection: Selection) -> None:
    """Skip the tests that can't run on this machine."""
    for item in items:
        reason = selection.why_skipped(case_of(item), subject_of(item))
        if reason:
            item.add_marker(pytest.mark.skip(reason=readable_line(reason)))


def _expect(config: pytest.Config, selection: Selection) -> None:
    """Have the progress say how long the run takes, unless other processes share it."""
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
    context = config.stash[CONTEXT]
    left_out = {*selection.skipped, *selection.unfetched}
    cases = {case_id: case for case_id, case in _cases_of(items).items() if case_id not in left_out}
    check_cases(context, cases.values())
    check_workers(context, selection, grouped=is_grouped(config))
    unreadable = read_baselines(context.store.files(cases))[1]
    if unreadable:
        refuse(config, Refusal("\n\n".join(unreadable), NO_BASELINE_STATUS))
        pytest.exit("baselines can't be read, see below; no server was started")


def pytest_report_collectionfinish(config: pytest.Config) -> Sequence[str]:
    """Say where the page of a run of several cases will be while it lasts."""
    if len(config.stash[PROGRESS].run.expected) <= 1:
        return []
    path = config.stash[CONTEXT].run_folder / "report.html"
    return [f"page, from the second case on: {path}"]
