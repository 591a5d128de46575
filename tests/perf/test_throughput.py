"""The product: tokens per second, held against the baselines; and the rounds, as a benchmark."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import pytest

from specreg.verdicts.verdict import Verdict

MOMENTS_S: deque[float] = deque()
"""What pytest-benchmark's timer says next, as a round begins and as it ends."""


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
