"""The time to the first token and the time per token stay within tolerance of the baselines."""

import pytest

from specreg.verdicts.verdict import Verdict


@pytest.mark.family("latency")
def test_latency_holds(verdict: Verdict) -> None:
    assert verdict.holds
