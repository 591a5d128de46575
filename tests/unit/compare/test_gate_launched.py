"""What launches leave: rounds in, the quantities that a comparison needs out."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import pytest

from specreg.compare.gate.launched import Arm, values_beside, values_of_launch
from specreg.load.rounds import Round
from specreg.measurement.metrics import Replay
from specreg.stats.percentiles import Histogram
from tests.unit import builders

MS = 10**6
CASE = dataclasses.replace(builders.with_concurrency(1), speed=True)


def a_round(slow: float) -> Round:
    """Two requests of three chunks of a token each; everything takes `slow` times as long."""
    gaps, traces, started = Histogram(), [], 0
    for _ in range(2):
        first = round(40 * slow * MS)
        times = [first, first + round(10 * slow * MS), first + round(20 * slow * MS)]
        for earlier, later in itertools.pairwise(times):
            gaps.add(later - earlier)
        chunks = [builders.chunk(one) for one in times]
        traces.append(builders.trace(*chunks))
        started += times[-1]
    return Round(traces=tuple(traces), started_ns=0, ended_ns=started, gaps=gaps)


def replay(slow: Sequence[float]) -> Replay:
    return Replay(rounds=tuple(map(a_round, slow)), control_rounds=(), acceptance=None)


def changes(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """Of each quantity, the difference of logarithms from A to B."""
    values = values_beside({Arm.A: (CASE, replay(a)), Arm.B: (CASE, replay(b))})
    return {name: math.log(value / values[Arm.A][name]) for name, value in values[Arm.B].items()}


def test_what_hits_a_few_rounds_of_one_side_is_no_change() -> None:
    found = changes([1, 1, 3, 1, 1, 1, 2, 1], [1, 1, 1, 1, 4, 1, 1, 1])
    assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-9)
    assert set(found) == {
        "throughput_tokens_per_s",
        "ttft_p50_ms",
        "step_p50_ms",
        "tokens_per_step",
    }


def test_what_hits_both_sides_of_a_round_is_no_change_either() -> None:
    machine = [1, 2, 1.5, 1, 3, 1, 1.2, 1]
    found = changes(machine, [1.1 * one for one in machine])
    assert found["step_p50_ms"] == pytest.approx(math.log(1.1), abs=0.006)  # of a bucket's width
    assert found["ttft_p50_ms"] == pytest.approx(math.log(1.1), abs=1e-6)
    assert found["throughput_tokens_per_s"] == pytest.approx(-math.log(1.1), abs=1e-6)


def test_one_side_alone_has_its_own_figures() -> None:
    alone = replay([1, 2, 3])
    assert values_beside({Arm.A: (CASE, alone)}) == {Arm.A: values_of_launch(CASE, alone)}


def test_a_value_is_that_of_the_typical_round() -> None:
    both = replay([1, 1, 1, 5, 1])
    values = values_beside({Arm.A: (CASE, both), Arm.B: (CASE, both), Arm.A2: (CASE, both)})
    once = values_of_launch(CASE, replay([1]))
    for arm in values:
        assert values[arm] == pytest.approx(once)
