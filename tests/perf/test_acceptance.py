"""The product: what was drafted and accepted, held against the baselines."""

import pytest

from specreg.verdicts.verdict import Verdict


@pytest.mark.family("acceptance")
def test_acceptance_holds(verdict: Verdict) -> None:
    assert verdict.holds
