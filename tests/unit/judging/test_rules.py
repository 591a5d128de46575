"""The ordered rules that turn evidence into one finding."""

import dataclasses
from typing import Any

import pytest

from specreg.judging.fold import GAINED, LOST, USUAL
from specreg.judging.rules import Evidence, NightFinding, finding_of

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
        ({}, NightFinding.KEPT),
        ({"own": float("nan")}, NightFinding.NOT_RECORDED),
        ({"lowest": -0.06}, NightFinding.UNDECIDED),
        ({"lowest": 0.06, "own": 0.1}, NightFinding.GAINED),
        ({"state": GAINED}, NightFinding.GAINED),
        ({"state": LOST, "since": 3}, NightFinding.LOST),
        ({"engine_since": 3}, NightFinding.ENGINE_LOST),
        ({"is_machine_too_slow": True}, NightFinding.MACHINE_SLOW),
        # What is proven of a case stays true on a slow machine.
        ({"is_machine_too_slow": True, "state": LOST}, NightFinding.LOST),
        # What was subtracted is a part of the figure's own change.
        ({"shared": -0.1}, NightFinding.UNDECIDED),
        ({"own": -0.03, "shared": -0.03}, NightFinding.UNDECIDED),
        ({"shared": -0.04}, NightFinding.KEPT),
        # A gain of a two-sided metric is as bad as a loss.
        ({"two_sided": True}, NightFinding.KEPT),
        ({"two_sided": True, "state": GAINED, "since": 3}, NightFinding.LOST),
        ({"two_sided": True, "highest": 0.06}, NightFinding.UNDECIDED),
        ({"two_sided": True, "lowest": 0.06, "own": 0.1, "highest": 0.14}, NightFinding.UNDECIDED),
    ],
)
def test_the_first_rule_that_applies_decides(
    changed: dict[str, Any], finding: NightFinding
) -> None:
    assert finding_of(dataclasses.replace(KEPT, **changed)) is finding
