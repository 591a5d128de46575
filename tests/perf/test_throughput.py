"""The product: tokens per second, held against the baselines."""

import pytest

from specreg.verdicts.judge import Verdict


@pytest.mark.family("throughput")
def test_throughput_holds(verdict: Verdict) -> None:
    assert verdict.holds
