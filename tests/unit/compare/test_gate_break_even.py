import math

import pytest

from specreg.compare.gate.break_even import Speedup, break_even, break_evens
from specreg.compare.gate.launched import Arm, Launched
from specreg.compare.gate.plan import Pair
from specreg.compare.gate.quantities import OUTPUT
from tests.unit import builders


def curve(*points: tuple[int, float]) -> list[Speedup]:
    return [
        Speedup(concurrency=load, ratio=ratio, low_ratio=0.9 * ratio, high_ratio=1.1 * ratio)
        for load, ratio in points
    ]


def test_it_stops_paying_between_the_loads_where_the_curve_falls_to_1() -> None:
    found = break_even("server", Arm.A, curve((1, 2.0), (4, 2.0), (16, 0.5)))
    assert found.at_requests == pytest.approx(8.0)  # half way of the logarithms
    assert found.low_requests is not None
    assert found.high_requests is not None
    assert found.low_requests < 8 < found.high_requests
    assert found.said.startswith("stops paying at about 8 requests in flight")


def test_a_curve_above_1_pays_everywhere_and_one_below_nowhere() -> None:
    assert "pays at every load from 1 to 4" in break_even("x", Arm.A, curve((1, 2), (4, 1.5))).said
    assert "pays nowhere from 1 to 4" in break_even("x", Arm.A, curve((1, 0.9), (4, 0.5))).said


def told(*points: tuple[int, float, float, float]) -> str:
    """What is said of loads with their ratio and its interval."""
    found = [
        Speedup(concurrency=load, ratio=ratio, low_ratio=low, high_ratio=high)
        for load, ratio, low, high in points
    ]
    return break_even("x", Arm.A, found).said


def test_a_curve_that_rises_above_1_later_isnt_called_nowhere() -> None:
    found = break_even("x", Arm.A, curve((1, 0.5), (4, 2.0), (16, 2.0), (64, 0.5)))
    assert found.said.startswith("starts paying at about 2 requests in flight (1.8 to 2.2), stops")
    assert "stops paying at about 32 requests in flight (" in found.said
    assert found.at_requests == pytest.approx(32.0)
    assert found.low_requests is not None
    assert 16 < found.low_requests < 32  # not where the lower end is below 1 at first


def test_a_load_whose_interval_holds_1_is_called_unclear() -> None:
    every = told((1, 2.0, 1.9, 2.1), (4, 1.02, 0.95, 1.1))
    assert every == (
        "pays at every load from 1 to 4 requests in flight by the estimates; unclear:"
        " 1.02 (0.95..1.10) at 4"
    )
    nowhere = told((1, 0.5, 0.4, 0.6), (4, 0.98, 0.91, 1.06))
    assert nowhere.endswith("by the estimates; unclear: 0.98 (0.91..1.06) at 4")
    assert told((1, 2.0, 1.9, 2.1), (4, 1.2, 1.1, 1.3)).endswith("requests in flight")


def test_one_launch_proves_nothing() -> None:
    single = [Speedup(concurrency=load, ratio=ratio) for load, ratio in ((1, 2.0), (4, 0.5))]
    found = break_even("x", Arm.A, single)
    assert (found.low_requests, found.high_requests) == (None, None)
    assert found.said == (
        "stops paying at about 2 requests in flight (? to ?) by the estimates; unclear:"
        " 2.00 at 1, 0.50 at 4"
    )


def test_speedups_come_from_launches_at_the_same_place_of_a_block() -> None:
    pairs = []
    launches = []
    for load, ratio in ((1, 2.0), (4, 1.2)):
        fast = builders.with_concurrency(load)
        slow = builders.with_concurrency(load, builders.PLAIN_CASE)
        pairs += [Pair(a=fast, b=fast), Pair(a=slow, b=slow)]
        for number, wobble in ((1, 1.0), (4, 1.5)):  # the machine is half as fast again then
            for case, speed in ((fast, 100 * ratio), (slow, 100.0)):
                launches.append(
                    Launched(
                        case_id=case.id,
                        arm=Arm.A,
                        block=1,
                        number=number,
                        values={OUTPUT: speed * wobble},
                    )
                )
    [found] = break_evens(pairs, launches)
    assert [one.concurrency for one in found.speedups] == [1, 4]
    for one, ratio in zip(found.speedups, (2.0, 1.2), strict=True):
        assert one.ratio == pytest.approx(ratio)
        assert one.low_ratio is not None
        assert math.isclose(one.low_ratio, ratio)  # both moved alike, so nothing is left


def test_a_launch_that_failed_leaves_its_place_empty() -> None:
    """Otherwise the first launch without speculation would be held against the second with it."""
    pairs, launches = [], []
    for load in (1, 4):
        fast = builders.with_concurrency(load)
        slow = builders.with_concurrency(load, builders.PLAIN_CASE)
        pairs += [Pair(a=fast, b=fast), Pair(a=slow, b=slow)]
        for number, wobble in ((1, 1.0), (4, 1.5)):
            for case, speed in ((fast, 200.0), (slow, 100.0)):
                failed = case is fast and number == 1
                launches.append(
                    Launched(
                        case_id=case.id,
                        arm=Arm.A,
                        block=1,
                        number=number,
                        values={} if failed else {OUTPUT: speed * wobble},
                        invalid="it died" if failed else "",
                    )
                )
    [found] = break_evens(pairs, launches)
    assert [one.ratio for one in found.speedups] == [pytest.approx(2.0)] * 2


def test_one_load_or_no_control_has_no_break_even() -> None:
    pair = Pair(a=builders.CASE, b=builders.CASE)
    launched = Launched(case_id=pair.id, arm=Arm.A, block=1, number=1, values={OUTPUT: 1.0})
    assert break_evens([pair], [launched]) == ()
