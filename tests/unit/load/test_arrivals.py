"""Arrivals: when requests of an open load are due."""

import itertools
import statistics

import pytest

from specreg.load.rounds import due_after_ns
from specreg.matrix.schema import Arrivals, Load

S = 10**9


def gaps_s(load: Load, count: int = 20_000) -> list[float]:
    due = list(itertools.islice(due_after_ns(load), count + 1))
    assert due[0] == 0
    return [(later - earlier) / S for earlier, later in itertools.pairwise(due)]


def test_constant_arrivals_are_even() -> None:
    load = Load(arrivals=Arrivals.CONSTANT, requests_per_s=8.0)
    assert list(itertools.islice(due_after_ns(load), 4)) == [0, S // 8, 2 * S // 8, 3 * S // 8]


@pytest.mark.parametrize(
    ("arrivals", "burstiness", "variation"),
    [
        (Arrivals.POISSON, 1.0, 1.0),
        (Arrivals.GAMMA, 1.0, 1.0),
        (Arrivals.GAMMA, 0.25, 2.0),
        (Arrivals.GAMMA, 4.0, 0.5),
    ],
)
def test_random_arrivals_have_the_rate_and_the_variation_that_they_should(
    arrivals: Arrivals, burstiness: float, variation: float
) -> None:
    gaps = gaps_s(Load(arrivals=arrivals, requests_per_s=5.0, burstiness=burstiness))
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) / mean == pytest.approx(variation, rel=0.05)


def test_random_arrivals_repeat_with_their_seed() -> None:
    load = Load(arrivals=Arrivals.POISSON, requests_per_s=5.0)
    assert gaps_s(load, 100) == gaps_s(load, 100)
    other = Load(arrivals=Arrivals.POISSON, requests_per_s=5.0, seed=1)
    assert gaps_s(load, 100) != gaps_s(other, 100)


def test_a_rate_rises_linearly_over_the_ramp_and_holds_then() -> None:
    """At 100/s with a ramp of 4 s: by time t, 100 t²/8 requests are due; by 4 s, 200 of them."""
    load = Load(arrivals=Arrivals.CONSTANT, requests_per_s=100.0, ramp_up_s=4.0)
    due_s = [due / S for due in itertools.islice(due_after_ns(load), 401)]
    for request in (2, 50, 128, 200):
        assert 100 * due_s[request] ** 2 / 8 == pytest.approx(request)
    assert due_s[200] == pytest.approx(4.0)
    assert due_s[400] == pytest.approx(6.0)
