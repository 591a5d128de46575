"""Turn what the nights show about a figure into one finding, by an ordered tuple of rules."""

import math
from dataclasses import dataclass
from enum import StrEnum

from specreg.judging.fold import GAINED, LOST


class NightFinding(StrEnum):
    """What the nights say about a figure tonight."""

    NOT_RECORDED = "not recorded"
    """It has no level yet, or no value tonight."""
    LOST = "lost"
    """It is slower than the cases that it shares an engine and a machine with."""
    ENGINE_LOST = "engine lost"
    """All cases of its engine are slower, and those of the other engines aren't."""
    MACHINE_SLOW = "machine slow"
    """The whole machine is slower than tolerated, so its speeds say nothing."""
    GAINED = "gained"
    """It is proven to be faster than tolerated, or for a lasting time."""
    KEPT = "kept"
    """It is proven to have lost no more than tolerated, with all that it shares with others."""
    UNDECIDED = "undecided"
    """None of these. More nights will tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the nights show about a figure tonight.

    Changes are differences of logarithms; better is positive, and NaN is unknown. Nights are
    indices, and -1 if there is none.

    Attributes:
        tolerated: the tolerated loss, above 0.
        two_sided: whether a gain is as bad as a loss.
        own: its change from its level, without what it shares with others.
        error_frac: the standard error of `own`.
        freedom: the degrees of freedom of that error.
        lowest: the lower end of the interval of `own`.
        highest: the upper end of the interval of `own`.
        shared: what it shares with others: the change of its engine and of the machine.
        state: LOST, USUAL or GAINED.
        size: the size of the open loss or gain.
        since: the first night of the open loss or gain.
        engine_since: the first night of an open loss of its engine.
        machine_since: the first night of an open change of the machine.
        is_machine_too_slow: whether the machine is proven to be slower than tolerated.
        needed_nights: how many nights would decide it; 0 if no number would.
        nights: how many nights show how it varies.
    """

    tolerated: float
    two_sided: bool = False
    own: float
    error_frac: float
    freedom: float
    lowest: float
    highest: float
    shared: float
    state: int
    size: float
    since: int
    engine_since: int
    machine_since: int
    is_machine_too_slow: bool
    needed_nights: int
    nights: int


def finding_of(evidence: Evidence) -> NightFinding:
    """Return the finding of the first rule that has one."""
    findings = (rule(evidence) for rule in RULES)
    return next((finding for finding in findings if finding is not None), NightFinding.UNDECIDED)


def _not_recorded(evidence: Evidence) -> NightFinding | None:
    return NightFinding.NOT_RECORDED if math.isnan(evidence.own) else None


def _lost(evidence: Evidence) -> NightFinding | None:
    is_lost = evidence.state == LOST or (evidence.two_sided and evidence.state == GAINED)
    return NightFinding.LOST if is_lost else None


def _engine_lost(evidence: Evidence) -> NightFinding | None:
    return NightFinding.ENGINE_LOST if evidence.engine_since >= 0 else None


def _machine_slow(evidence: Evidence) -> NightFinding | None:
    return NightFinding.MACHINE_SLOW if evidence.is_machine_too_slow else None


def _kept(evidence: Evidence) -> NightFinding | None:
    """Pass a figure only if what was subtracted from its change is within the tolerance too."""
    changes = (evidence.lowest, evidence.shared, evidence.own + evidence.shared)
    if min(changes) <= -evidence.tolerated:
        return None
    if evidence.two_sided:
        changes = (evidence.highest, evidence.shared, evidence.own + evidence.shared)
        return NightFinding.KEPT if max(changes) < evidence.tolerated else None
    if evidence.state == GAINED or evidence.lowest > evidence.tolerated:
        return NightFinding.GAINED
    return NightFinding.KEPT


RULES = (_not_recorded, _lost, _engine_lost, _machine_slow, _kept)
"""The rules in the order in which they are asked."""
