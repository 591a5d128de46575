"""The product: the time to the first token and per token, held against the baselines."""

import pytest

from specreg.verdicts.verdict import Verdict


@pytest.mark.family("latency")
def test_latency_holds(verdict: Verdict) -> None:
    assert verdict.holds
