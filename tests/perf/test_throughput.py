"""Tokens per second stay within tolerance of the baselines.

If the user wants benchmarks, pytest-benchmark also gets the rounds of each case as one.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import pytest

from specreg.verdicts.verdict import Verdict

MOMENTS_S: deque[float] = deque()
"""The moments that pytest-benchmark's timer returns next: the start and the end of each round."""


class Benchmark(Protocol):
    """pytest-benchmark's fixture."""

    def pedantic(self, target: object, *, rounds: int) -> object: ...


@pytest.mark.family("throughput")
def test_throughput_holds(verdict: Verdict) -> None:
    assert verdict.holds


@pytest.mark.family("tpot_s")
@pytest.mark.benchmark(timer=MOMENTS_S.popleft)
def test_throughput_is_recorded(rounds_s: Sequence[float], benchmark: Benchmark) -> None:
    # The rounds were measured before. The timer returns their moments, so pytest-benchmark shows
    # the measured times, although the function that it calls does nothing.
    for round_s in rounds_s:
        MOMENTS_S.extend((0.0, round_s))
    benchmark.pedantic(lambda: None, rounds=len(rounds_s))
