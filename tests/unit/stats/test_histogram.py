"""Bars of durations: none is lost, and each lies between its edges."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from specreg.stats.histogram import bars_of
from specreg.stats.percentiles import Histogram

MS = 10**6


def histogram(*durations_ns: int) -> Histogram:
    """Of some durations."""
    found = Histogram()
    found.add_all(durations_ns)
    return found


def test_there_are_no_bars_of_nothing() -> None:
    assert bars_of(Histogram()) == ()


def test_two_durations_far_apart_have_a_gap_between_them() -> None:
    bars = bars_of(histogram(MS, MS, 100 * MS))
    assert len(bars) == 3
    assert [bar.count for bar in bars] == [2, *[0] * (len(bars) - 2), 1]
    assert bars[0].low_ms <= 1 < bars[0].high_ms
    assert bars[-1].low_ms <= 100 < bars[-1].high_ms


@given(st.lists(st.integers(1000, 10**11), min_size=1, max_size=50))
def test_every_duration_is_in_a_bar_and_bars_lie_side_by_side(durations_ns: list[int]) -> None:
    bars = bars_of(histogram(*durations_ns))
    assert sum(bar.count for bar in bars) == len(durations_ns)
    assert len(bars) <= 24
    assert bars[-1].count > 0
    for one, other in itertools.pairwise(bars):
        assert one.high_ms == other.low_ms
        assert math.isclose(one.high_ms / one.low_ms, other.high_ms / other.low_ms)
    assert bars[0].low_ms <= min(durations_ns) / MS * 1.001
    assert bars[-1].high_ms >= max(durations_ns) / MS * 0.999


def test_one_stall_and_one_burst_do_not_make_all_others_one_bar() -> None:
    usual = [round(MS * (10 + n / 100)) for n in range(1000)]
    bars = bars_of(histogram(0, *usual, 10**12))
    assert sum(bar.count for bar in bars) == 1002
    assert bars[0].low_ms > 9.9
    assert bars[-1].high_ms < 22
    assert sum(bar.count > 0 for bar in bars) > 15


def test_few_durations_have_few_bars() -> None:
    assert len(bars_of(histogram(*(MS * n for n in range(1, 21))))) <= 6
