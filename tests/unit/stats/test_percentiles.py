"""Spreads: exact where they can be, within a quarter of a percent where memory is fixed."""

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specreg.stats.percentiles import TimeHistogram, summarize

DURATIONS = st.lists(st.integers(0, 10**12), min_size=1, max_size=200)


def filled(durations_ns: list[int]) -> TimeHistogram:
    """A histogram of some durations."""
    histogram = TimeHistogram()
    histogram.add_all(durations_ns)
    return histogram


def test_a_summary_says_what_the_textbook_says() -> None:
    summary = summarize([4.0, 1.0, 3.0, 2.0])
    assert summary is not None
    assert (summary.count, summary.mean, summary.min, summary.max) == (4, 2.5, 1.0, 4.0)
    assert summary.stdev == pytest.approx(math.sqrt(5 / 3))
    assert (summary.p50, summary.p75) == (2.5, 3.25)
    assert (summary.p90, summary.p99) == pytest.approx((3.7, 3.97))


def test_one_value_has_no_spread_and_none_has_no_summary() -> None:
    summary = summarize([3.0])
    assert summary is not None
    assert (summary.stdev, summary.p99) == (0.0, 3.0)
    assert summarize([]) is None
    assert TimeHistogram().summary_ms() is None


@settings(max_examples=50, deadline=None)
@given(DURATIONS)
def test_mean_and_extremes_of_a_histogram_are_exact(durations_ns: list[int]) -> None:
    summary = filled(durations_ns).summary_ms()
    assert summary is not None
    assert (summary.min, summary.max) == (min(durations_ns) / 1e6, max(durations_ns) / 1e6)
    assert summary.mean == pytest.approx(statistics.fmean(durations_ns) / 1e6)
    if len(durations_ns) > 1 and max(durations_ns) < 10**9:
        assert summary.stdev == pytest.approx(statistics.stdev(durations_ns) / 1e6, rel=1e-3, abs=1)


def test_percentiles_of_a_histogram_are_off_by_a_quarter_of_a_percent_at_most() -> None:
    draw = random.Random(1)  # noqa: S311 - no cryptography
    durations = sorted(round(draw.lognormvariate(16, 1)) for _ in range(5000))
    histogram = filled(durations)
    for frac in (0.01, 0.5, 0.75, 0.9, 0.95, 0.99):
        exact = durations[math.ceil(frac * len(durations)) - 1]
        assert histogram.quantile_ns(frac) == pytest.approx(exact, rel=0.0026)


@settings(max_examples=50, deadline=None)
@given(DURATIONS, DURATIONS)
def test_merging_is_taking_all_of_both(some: list[int], more_values: list[int]) -> None:
    merged = filled(some)
    merged.merge(filled(more_values))
    merged.merge(TimeHistogram())
    assert merged == filled(some + more_values)
    into_nothing = TimeHistogram()
    into_nothing.merge(filled(some))
    assert into_nothing == filled(some)
