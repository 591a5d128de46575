"""The energy and the power of the servers' devices stay within tolerance of the baselines."""

import pytest

from specreg.verdicts.verdict import Verdict


@pytest.mark.family("power")
def test_power_holds(verdict: Verdict) -> None:
    assert verdict.holds
