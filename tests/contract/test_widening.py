"""Widened models in real vLLM: they accept what the tiny ones do.

Starts four servers, one after another: two minutes. `nox -s contract` runs it.
"""

import dataclasses
from pathlib import Path

import pytest

from specreg.acceptance.record import StepCounts
from specreg.matrix.case import Case
from tests.contract.engines import case_of, measure, start


def accepted(case: Case, folder: Path) -> StepCounts:
    """The steps of a case's prompts on a real server."""
    with start(case, folder) as server:
        return measure(case, server)[1].total


@pytest.mark.vllm
@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_widened_pair_accepts_what_the_tiny_one_does(method: str, tmp_path: Path) -> None:
    case = dataclasses.replace(case_of("cpu", f"vllm-{method}-tiny-toy-c1"), control=None)
    wide = dataclasses.replace(case.server, padding_layers=0, widen="30m")
    narrow = accepted(case, tmp_path / "narrow")
    assert accepted(dataclasses.replace(case, server=wide), tmp_path / "wide") == narrow
    assert narrow.steps > 0
