"""pytest-benchmark: each measured case is a benchmark, with the rounds of its measurement."""

from collections.abc import Mapping
from types import FunctionType
from typing import Any

import pytest

from specreg.measurement.metrics import RECORDED
from specreg.plugin.state import CONTEXT, END
from specreg.plugin.xdist import has_workers, is_worker
from specreg.report.benchmarks import SAVING, SHOWING, is_given, machine_info_of
from specreg.suite.benchmarks import describe_benchmarks


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Leave out the test that carries benchmarks, unless the user wants benchmarks.

    Returns:
        No tests at all if the test is left out; None lets pytest collect the test as usual.
    """
    marks = getattr(obj, "pytestmark", ()) if isinstance(obj, FunctionType) else ()
    if not any(mark.args == (RECORDED.name,) for mark in marks):
        return None
    config = collector.config
    # pytest-benchmark records nothing in a run that pytest-xdist distributes.
    runs_alone = not is_worker(config) and not has_workers(config)
    if runs_alone and is_given(config.getoption, (*SHOWING, *SAVING)):
        return None
    return []


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Complete the file that pytest-benchmark is about to write."""
    describe_benchmarks(config.stash[END].result, output_json["benchmarks"])


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_group_stats(config: pytest.Config, benchmarks: list[dict[str, Any]]) -> None:
    """Complete pytest-benchmark's table; leave out the cases unless the user wants them shown."""
    case_benchmarks = describe_benchmarks(config.stash[END].result, benchmarks)
    if not is_given(config.getoption, SHOWING):
        benchmarks[:] = [benchmark for benchmark in benchmarks if benchmark not in case_benchmarks]


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_generate_machine_info(config: pytest.Config) -> Mapping[str, object]:
    """Return the machine as the environment that names its baselines."""
    return machine_info_of(config.stash[CONTEXT].environment)
