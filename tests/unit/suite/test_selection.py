"""What the tests of a run need: metrics, speeds, power and time."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from specreg.measurement.metrics import METRICS
from specreg.suite.selection import least_time_s, select
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.runs import LENGTH, SPEED

RECORDING: dict[str, Any] = {"update_baselines": True, "launches": 1}
SPEEDS = tuple(name for name, metric in METRICS.items() if metric.by_launch)


@pytest.mark.parametrize(
    ("options", "needs_speed"), [({}, [False, True, False]), (RECORDING, [True, True, False])]
)
def test_a_case_is_timed_if_speed_is_recorded_or_only_shown(
    tmp_path: Path, options: dict[str, Any], *, needs_speed: list[bool]
) -> None:
    context = runs.context(tmp_path, **options)
    selection = runs.selection(context, {builders.CASE.id: [LENGTH.name]})
    only_shown = builders.with_judging(builders.CASE, shown=SPEEDS)
    without_speed = builders.with_judging(only_shown, speed=False)

    cases = (builders.CASE, only_shown, without_speed)

    assert [selection.needs_speed(case) for case in cases] == needs_speed


def test_a_least_time_needs_a_speed_to_be_recorded_or_compared(tmp_path: Path) -> None:
    lasting = builders.with_judging(builders.CASE, least_s=8.0)
    context = runs.context(tmp_path)
    speed = runs.selection(context, {lasting.id: [SPEED.name]})
    acceptance = runs.selection(context, {lasting.id: [LENGTH.name]})

    assert least_time_s(lasting, speed, context) == 0, "nothing is recorded"

    recording = runs.context(tmp_path, **RECORDING)
    assert least_time_s(lasting, runs.everything(recording), recording) == 8

    runs.record(context)
    assert least_time_s(lasting, speed, context) == 8
    assert least_time_s(lasting, acceptance, context) == 0, "no speed is judged"


def test_only_what_the_tests_need_is_selected(tmp_path: Path) -> None:
    loaded = builders.with_concurrency(4)
    context = runs.context(tmp_path, cases=(builders.CASE, loaded))

    selection = select([(builders.CASE, LENGTH)], context, asks_hub=False)

    assert selection.metrics_of(builders.CASE) == (LENGTH,)
    assert selection.metrics_of(loaded) == ()
    assert selection.cases_of(context.tier) == [builders.CASE]
    assert not selection.covers_tier


def test_a_case_that_does_not_fit_the_machine_is_skipped_with_its_need(tmp_path: Path) -> None:
    context = runs.context(tmp_path)
    gpu_tier = dataclasses.replace(context.tier, needs_gpus=64)
    context = dataclasses.replace(context, tier=gpu_tier)

    selection = select([(builders.CASE, LENGTH)], context, asks_hub=False)

    reason = selection.why_skipped(builders.CASE, LENGTH)
    assert reason.startswith("tier 'cpu' needs 64 GPU(s), this machine has")
    assert selection.skipped == {builders.CASE.id: reason}
    assert selection.names == {}


def test_a_power_that_cannot_be_measured_skips_only_its_own_test(tmp_path: Path) -> None:
    power = METRICS["power_w"]
    context = runs.context(tmp_path, attach="http://127.0.0.1:9")

    selection = select([(builders.CASE, LENGTH), (builders.CASE, power)], context)

    assert selection.why_skipped(builders.CASE, LENGTH) == ""
    assert selection.why_skipped(builders.CASE, power) == selection.no_power
    assert "attached server" in selection.no_power
    assert selection.names == {builders.CASE.id: {LENGTH.name}}
