"""The engine takes the steps that its models give; checked only with `--specreg-oracle`."""

import pytest

from specreg.verdicts.verdict import Verdict


@pytest.mark.correctness("oracle_length_tokens")
def test_the_steps_are_those_that_the_models_give(correctness: Verdict) -> None:
    assert correctness.holds
