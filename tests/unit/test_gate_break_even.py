import math

import pytest

from specreg.gate.break_even import Speedup, break_even, break_evens
from specreg.gate.launched import Arm, Launched
from specreg.gate.plan import Pair
from specreg.gate.quantities import OUTPUT
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
