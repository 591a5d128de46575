"""Speculation changes no token of a greedy answer, and draws tokens as the target does."""

import pytest

from specreg.verdicts.verdict import Verdict


@pytest.mark.correctness("lossless_frac")
def test_speculation_changes_no_token(correctness: Verdict) -> None:
    assert correctness.holds


@pytest.mark.correctness("sampling_frac")
def test_speculation_draws_as_the_target_does(correctness: Verdict) -> None:
    assert correctness.holds
