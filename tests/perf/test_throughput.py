"""Tokens per second stay within tolerance of the baselines; the rounds are a benchmark."""

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
    MOMENTS_S.extend(moment_s for round_s in rounds_s for moment_s in (0.0, round_s))
    benchmark.pedantic(lambda: None, rounds=len(rounds_s))
