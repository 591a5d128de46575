"""The ordered rules that turn evidence into one finding."""

import dataclasses
from typing import Any

import pytest

from specreg.judging.fold import GAINED, LOST, USUAL
from specreg.judging.rules import Evidence, Finding, finding_of

KEPT = Evidence(
    tolerated=0.05,
    own=0.0,
    error_frac=0.01,
    freedom=20.0,
    lowest=-0.03,
    highest=0.03,
    shared=0.0,
    state=USUAL,
    size=float("nan"),
    since=-1,
    engine_since=-1,
    machine_since=-1,
    is_machine_too_slow=False,
    needed_nights=5,
    nights=8,
)


@pytest.mark.parametrize(
    ("changed", "finding"),
    [
        ({}, Finding.KEPT),
        ({"own": float("nan")}, Finding.NOT_RECORDED),
        ({"lowest": -0.06}, Finding.UNDECIDED),
        ({"lowest": 0.06, "own": 0.1}, Finding.GAINED),
        ({"state": GAINED}, Finding.GAINED),
        ({"state": LOST, "since": 3}, Finding.LOST),
        ({"engine_since": 3}, Finding.ENGINE_LOST),
        ({"is_machine_too_slow": True}, Finding.MACHINE_SLOW),
        # What is proven of a case stays true on a slow machine.
        ({"is_machine_too_slow": True, "state": LOST}, Finding.LOST),
        # What was subtracted is a part of the figure's own change.
        ({"shared": -0.1}, Finding.UNDECIDED),
        ({"own": -0.03, "shared": -0.03}, Finding.UNDECIDED),
        ({"shared": -0.04}, Finding.KEPT),
        # A gain of a two-sided metric is as bad as a loss.
        ({"two_sided": True}, Finding.KEPT),
        ({"two_sided": True, "state": GAINED, "since": 3}, Finding.LOST),
        ({"two_sided": True, "highest": 0.06}, Finding.UNDECIDED),
        ({"two_sided": True, "lowest": 0.06, "own": 0.1, "highest": 0.14}, Finding.UNDECIDED),
    ],
)
def test_the_first_rule_that_applies_decides(changed: dict[str, Any], finding: Finding) -> None:
    assert finding_of(dataclasses.replace(KEPT, **changed)) is finding
