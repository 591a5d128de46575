"""Acceptance length and rate of each case stay within tolerance of the baselines."""

import pytest

from specreg.verdicts.verdict import Verdict


@pytest.mark.family("acceptance")
def test_acceptance_holds(verdict: Verdict) -> None:
    assert verdict.holds
