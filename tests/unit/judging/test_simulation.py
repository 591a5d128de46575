"""The simulation: it plants what it says, and a few series of it are judged as they should be."""

import dataclasses

import numpy as np
import pytest

from specreg.judging.simulation import (
    CHANGED,
    IDENTICAL,
    Planted,
    Scenario,
    ScenarioCounts,
    SimulatedMachine,
    render_scenario,
    simulate,
    simulate_rows,
)


def test_a_planted_loss_is_as_large_as_it_says() -> None:
    scenario = Scenario(name="", night_frac=0.0, planted=(Planted(change_frac=-0.1, first=3),))
    machine = SimulatedMachine(scenario, 1)
    assert machine.speeds(2)[0] == 0
    assert machine.speeds(3)[:2] == pytest.approx([np.log(0.9), 0])


def test_two_thirds_of_the_variance_of_nights_are_shared() -> None:
    machine = SimulatedMachine(Scenario(name="", night_frac=0.03, cases=(200,)), 1)
    nights = np.array([machine.speeds(night) for night in range(300)])
    common = nights.mean(axis=1)
    assert common.std() == pytest.approx(0.03 * np.sqrt(2 / 3), rel=0.15)
    assert (nights - common[:, np.newaxis]).std() == pytest.approx(0.03 / np.sqrt(3), rel=0.1)


@pytest.mark.parametrize("row", IDENTICAL, ids=lambda row: row[0].name)
def test_identical_nights_are_green(row: tuple[Scenario, tuple[object, ...]]) -> None:
    counts = simulate(dataclasses.replace(row[0], nights=8, skipped=0), 1)
    assert counts.healthy_nights == 8
    assert counts.red_nights == 0


def test_ten_of_sixteen_cases_that_lose_are_named_and_forgotten_once_mended() -> None:
    [row] = [row for row in CHANGED if row[0].name.startswith("10 of 16")]
    counts = simulate(row[0], 1)
    assert counts.found_by(3) == 1
    assert counts.closed == counts.still_red == counts.passed == 0


def test_a_limit_that_is_exceeded_is_marked() -> None:
    row = IDENTICAL[0]
    good = ScenarioCounts(series=1000, healthy_nights=10_000, red_nights=400)
    bad = ScenarioCounts(series=1000, healthy_nights=10_000, red_nights=500)
    assert render_scenario(row, good)[1]
    lines, is_kept = render_scenario(row, bad)
    assert not is_kept
    assert lines[0].endswith("!")


def test_the_table_has_a_row_for_each_limit() -> None:
    [row] = [row for row in CHANGED if "-30 %" in row[0].name]
    text, is_kept = simulate_rows(1, [row])
    assert is_kept
    assert "found by night 1" in text
