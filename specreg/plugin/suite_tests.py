"""Find out whether a test belongs to the suite, and which case and metric it judges."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from specreg.correctness.checks import CorrectnessCheck
from specreg.matrix.case import Case
from specreg.measurement.metrics import Metric

MARKERS = (
    "family(name): the family of metrics that a test of the suite judges",
    "correctness(name): the correctness check that a test of the suite makes",
    "benchmark(timer): pytest-benchmark's marker, for the test that carries the cases' benchmarks",
)
FAMILY = "family"
CORRECTNESS = "correctness"


def marker_of(item: pytest.Item) -> pytest.Mark | None:
    """Return the marker that makes a test one of the suite's; None for any other test."""
    return item.get_closest_marker(FAMILY) or item.get_closest_marker(CORRECTNESS)


def params_of(item: pytest.Item) -> Mapping[str, Any]:
    """Return the parameters of a test of the suite; empty for any other test."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or marker_of(item) is None:
        return {}
    return cast("Mapping[str, Any]", callspec.params)


def is_suite_test(item: pytest.Item) -> bool:
    """Return whether a test judges or checks a case."""
    return bool(params_of(item))


def case_of(item: pytest.Item) -> Case:
    """Return the case of a test of the suite."""
    return cast("Case", params_of(item)["case"])


def case_id_of(item: pytest.Item) -> str:
    """Return the id of a test's case; empty for a test that isn't the suite's."""
    return case_of(item).id if is_suite_test(item) else ""


def launch_number_of(item: pytest.Item) -> int:
    """Return the number of the launch that a test of the suite is about, from 1."""
    return cast("int", params_of(item)["launch_number"])


def subject_of(item: pytest.Item) -> Metric | CorrectnessCheck:
    """Return the metric that a test of the suite judges, or the check that it makes."""
    params = params_of(item)
    return cast("Metric | CorrectnessCheck", params.get("check") or params["metric"])
