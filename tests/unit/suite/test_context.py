"""What is fixed for a run: its launches, its clock, and what its options mean."""

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from specreg.measurement.metrics import METRICS
from specreg.runs.goals import CaseLaunch
from specreg.suite.context import RunClock
from tests.unit import builders
from tests.unit.builders import runs

ALONE = ("vllm-suffix", "triton-suffix", "sglang-ngram")


@pytest.mark.parametrize("name", [*ALONE, "vllm-ngram", "sglang-eagle3"])
def test_a_drafter_that_learns_from_what_it_serves_serves_one_case(name: str) -> None:
    engine, method = name.split("-")
    case = builders.on_server(engine=engine, method=method)

    first = CaseLaunch.of(builders.with_concurrency(1, case), 2)
    second = CaseLaunch.of(builders.with_concurrency(4, case), 2)

    assert (first.server != second.server) == (name in ALONE)
    assert first.control == first.server, "it has no control of its own"
    case_part = "-toy-c1" if name in ALONE else ""
    assert first.server.id == f"{name}-toy{case_part}-launch2"


def test_cases_that_share_a_server_follow_one_another_launch_by_launch(tmp_path: Path) -> None:
    first = builders.with_concurrency(1)
    between = builders.on_server(method="ngram", draft=None)
    last = builders.with_concurrency(4)

    context = runs.context(tmp_path, cases=(first, between, last), launches=2)

    names = [launch.name for launch in context.case_launches()]
    ids = [first.id, last.id, between.id]
    assert names == [*ids, *(f"{case_id}-launch2" for case_id in ids)]


@pytest.mark.parametrize(
    ("options", "launches"),
    [({}, 1), ({"update_baselines": True}, 3), ({"update_baselines": True, "launches": 5}, 5)],
)
def test_a_recording_measures_three_launches_unless_told_otherwise(
    tmp_path: Path, options: dict[str, Any], launches: int
) -> None:
    assert runs.context(tmp_path, **options).launches == launches


def test_metrics_are_softened_as_the_user_wants(tmp_path: Path) -> None:
    choices = ("fail", "warn", "warn-speed")
    softened = [runs.context(tmp_path, inconclusive=choice).softened for choice in choices]
    speeds = {metric.name for metric in METRICS.values() if metric.by_launch}
    assert softened == [set(), METRICS.keys(), speeds]


def test_the_clock_of_a_run_counts_on_from_its_start() -> None:
    began_at = dt.datetime(2026, 11, 21, 2, 0, tzinfo=dt.UTC)
    clock = RunClock(began_at=began_at, began_ns=5 * 10**9, monotonic_ns=lambda: 65 * 10**9)
    assert clock.now() == began_at + dt.timedelta(minutes=1)


def test_a_context_does_not_change(tmp_path: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        runs.context(tmp_path).name = "other"  # type: ignore[misc]
