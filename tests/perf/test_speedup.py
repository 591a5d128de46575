"""The gain over a server without speculation stays within tolerance of the baselines."""

import pytest

from specreg.verdicts.verdict import Verdict


@pytest.mark.family("speedup")
def test_speedup_holds(verdict: Verdict) -> None:
    assert verdict.holds
