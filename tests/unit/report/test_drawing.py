"""The axes of the page's pictures: never degenerate, with round ticks and without noise."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specreg.report.drawing import Axis, AxisStyle, IntervalRow, Plot, Tick, draw_intervals, spaced
from tests.unit.builders.pages import points_of


def labels(*values: float, **style: object) -> list[str]:
    axis = Axis.over(values, AxisStyle(**style))  # type: ignore[arg-type]
    return [tick.label for tick in axis.ticks(100)]


def test_noise_of_rounding_is_no_movement() -> None:
    noise = (3.0516372795969775, 3.0516372795969779)
    assert labels(*noise) == ["3.03", "3.04", "3.05", "3.06", "3.07"]
    axis = Axis.over(noise)
    assert axis.share(noise[1]) - axis.share(noise[0]) < 1e-12


def test_a_single_value_has_an_axis_with_several_labels() -> None:
    assert labels(1.0) == ["0.995", "1.000", "1.005"]
    assert labels(0.0) == ["-0.5", "0.0", "0.5"]
    assert labels(-2000.0) == ["-2010", "-2005", "-2000", "-1995", "-1990"]


def test_a_range_above_one_percent_is_drawn_as_it_is() -> None:
    assert labels(1.6, 1.8) == ["1.60", "1.65", "1.70", "1.75", "1.80"]
    assert labels(98.0, 100.0) == ["98.0", "98.5", "99.0", "99.5", "100.0"]


def test_changes_have_their_sign_and_span_one_percent_at_least() -> None:
    changes = {"unit": "%", "signed": True, "least_range": 1.0}
    assert labels(0.0, 1e-9, **changes) == ["-0.5%", "0.0%", "+0.5%"]
    assert labels(0.0, -12.0, **changes) == ["-15%", "-10%", "-5%", "0%"]
    assert labels(1.0, 2.4, prefix="×") == ["×1.0", "×1.5", "×2.0", "×2.5"]


@pytest.mark.parametrize("value", [1e201, 1e250, -1e250])
def test_an_axis_holds_numbers_too_large_to_draw_at_its_largest(value: float) -> None:
    axis = Axis.over([value])
    assert axis.low <= math.copysign(1e200, value) <= axis.high


@given(st.lists(st.floats(), min_size=0, max_size=5))
def test_no_axis_is_degenerate_whatever_a_file_holds(values: list[float]) -> None:
    axis = Axis.over(values)
    ticks = axis.ticks(100)
    assert axis.high > axis.low
    assert math.isfinite(axis.high - axis.low)
    assert axis.high - axis.low >= 0.0099 * max(abs(axis.low), abs(axis.high))
    assert 3 <= len(ticks) <= 8
    assert len({tick.label for tick in ticks}) == len(ticks)
    assert all(len(tick.label) <= 12 for tick in ticks)
    assert all(0 <= axis.share(value) <= 1 for value in values)


def test_places_of_a_plot_grow_to_the_right_and_upwards() -> None:
    plot = Plot(y=Axis.over([0.0, 3.0]), x_low=0, x_high=2)
    line = [(0, 0.0), (1, 1.5), (2, 3.0)]
    assert plot.path(line) == "M96 252l277-112 277-112"
    assert points_of(plot.path(line)) == [(96, 252), (373, 140), (650, 28)]
    assert Plot(y=plot.y, x_low=0, x_high=0).x(0) == 373


def test_rows_share_one_axis_that_holds_baseline_interval_and_reference() -> None:
    rows = [
        IntervalRow(label="a", text="", value=1.5, interval=(1.2, 1.8), baseline=2.0),
        IntervalRow(label="b", text="", value=1.0),
    ]
    picture = draw_intervals("gain", "", rows, reference=1.0)
    assert [tick.label for tick in picture.ticks] == ["1.0", "1.5", "2.0"]
    assert [picture.at(value) for value in (1.5, 1.2, 1.8, 2.0)] == [50, 20, 80, 100]
    assert picture.at(picture.reference) == 0


@pytest.mark.parametrize(("room", "labels_left"), [(10, "abc"), (15, "ac"), (50, "a")])
def test_labels_without_room_are_left_out(room: float, labels_left: str) -> None:
    ticks = [Tick(at=at, label=label) for at, label in ((0, "a"), (10, "b"), (20, "c"))]
    assert "".join(tick.label for tick in spaced(ticks, room)) == labels_left
