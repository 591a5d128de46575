"""The product: speculation changes no token, and draws as its target does."""

import pytest

from specreg.verdicts.judge import Verdict


@pytest.mark.proof("lossless_frac")
def test_speculation_changes_no_token(proven: Verdict) -> None:
    assert proven.holds


@pytest.mark.proof("sampling_frac")
def test_speculation_draws_as_the_target_does(proven: Verdict) -> None:
    assert proven.holds
