"""The product: what the server's devices drew, held against the baselines."""

import pytest

from specreg.verdicts.verdict import Verdict


@pytest.mark.family("power")
def test_power_holds(verdict: Verdict) -> None:
    assert verdict.holds
