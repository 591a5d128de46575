"""pytest-benchmark: show each measured case as a benchmark with its measured rounds."""

from collections.abc import Mapping
from types import FunctionType
from typing import Any

import pytest

from specreg.measurement.metrics import BENCHMARK_METRIC
from specreg.plugin.state import CONTEXT, END
from specreg.plugin.xdist import has_workers, is_worker
from specreg.report.benchmarks import SAVING, SHOWING, is_given, machine_info_of
from specreg.suite.benchmarks import describe_benchmarks


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Leave out the test that carries benchmarks, unless the user wants benchmarks.

    Returns:
        An empty list to leave the test out; None to let pytest collect the test as usual.
    """
    marks = getattr(obj, "pytestmark", ()) if isinstance(obj, FunctionType) else ()
    if not any(mark.args == (BENCHMARK_METRIC.name,) for mark in marks):
        return None
    config = collector.config

    # pytest-benchmark records nothing in a run that pytest-xdist distributes.
    runs_alone = not is_worker(config) and not has_workers(config)
    if runs_alone and is_given(config.getoption, (*SHOWING, *SAVING)):
        return None
    return []


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Add the cases' details to the file that pytest-benchmark is about to write."""
    describe_benchmarks(config.stash[END].result, output_json["benchmarks"])


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_group_stats(config: pytest.Config, benchmarks: list[dict[str, Any]]) -> None:
    """Add the cases' details to pytest-benchmark's table.

    If no option that shows the table was given, the cases are removed from it.
    """
    case_benchmarks = describe_benchmarks(config.stash[END].result, benchmarks)
    if not is_given(config.getoption, SHOWING):
        benchmarks[:] = [benchmark for benchmark in benchmarks if benchmark not in case_benchmarks]


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_generate_machine_info(config: pytest.Config) -> Mapping[str, object]:
    """Return the description of the machine, with the environment's name as in baselines."""
    return machine_info_of(config.stash[CONTEXT].environment)
