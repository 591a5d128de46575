"""A gate of a search: what the bad release lost in, what a release in between lost of that out."""

import dataclasses
from collections.abc import Iterator, Sequence

import msgspec

from specreg.compare.gate.answer import Answer, Decision
from specreg.compare.gate.beside import SideError
from specreg.compare.gate.bisecting import Step
from specreg.compare.gate.judging import Judged, why_broken
from specreg.compare.gate.launched import Arm
from specreg.compare.gate.needs import launches_for, wants_of
from specreg.compare.gate.opening import Opened
from specreg.compare.gate.plan import Shared
from specreg.compare.gate.quantities import QUANTITIES
from specreg.compare.gate.run import Gate
from specreg.verdicts.judge import GOOD, Outcome

FAILED_STATUS, INTERRUPTED_STATUS = 10, 130
TEXTS = "texts"
"""Beside the quantities: whether the answers are the same."""
_WORSE = frozenset({Outcome.REGRESSED, Outcome.WRONG})


def step_of(decision: Decision, lost: frozenset[str]) -> Step:
    """What a version is by the figures that the last one lost; what else it lost is another matter.

    Args:
        decision: of a gate of the good version against it.
        lost: names of quantities, and `TEXTS`.
    """
    if not lost:
        return Step.GOOD if decision.answer is Answer.UPGRADE else Step.UNKNOWN
    judged = [one.outcome for one in decision.judged if one.quantity in lost]
    outcomes = {*judged, *(one.outcome for one in decision.texts if TEXTS in lost)}
    if outcomes & _WORSE:
        return Step.BAD
    return Step.GOOD if outcomes and outcomes <= GOOD else Step.UNKNOWN


def lost_of(decision: Decision) -> frozenset[str]:
    """What a version lost, as names of quantities, and `TEXTS`."""
    figures = {one.quantity for one in decision.judged if one.decides and one.outcome in _WORSE}
    texts = {TEXTS for one in decision.texts if one.outcome in _WORSE}
    return frozenset(figures | texts)


def why_of(decision: Decision, step: Step, lost: frozenset[str]) -> str:
    """Why a version is what it is: what it lost; or what it would take to tell, as a search has it.

    Args:
        decision: see `step_of`.
        step: what came of it.
        lost: see `step_of`.
    """
    if step is not Step.UNKNOWN:
        return "; ".join(decision.reasons) if step is Step.BAD else ""
    sought = lost or {*QUANTITIES, TEXTS}
    figures = [
        one
        for one in decision.judged
        if one.decides and one.quantity in sought and one.outcome not in GOOD | _WORSE
    ]
    texts = [
        one.reason for one in decision.texts if TEXTS in sought and one.outcome is Outcome.INVALID
    ]
    whys = (wants_of(figures) if figures else "", *texts, *_typed(figures))
    return "; ".join(filter(None, whys))


def _typed(figures: Sequence[Judged]) -> Iterator[str]:
    """What to type, as far as more evidence would tell."""
    each = {
        "--launches": [launches_for(one) for one in figures],
        "--prompts": [one.needed_prompts for one in figures],
    }
    told = {name: max(filter(None, needed), default=0) for name, needed in each.items()}
    options = [f"{name} {most}" for name, most in told.items() if most]
    if options:
        yield f"type the same with {' '.join(options)}"


def decision_between(opened: Opened, lost: frozenset[str] | None) -> Decision:
    """What a gate says of some figures, None for all; what it measured of all is in its report.

    The report is left whatever cuts it short, too.
    """
    whole = opened.gate.shared
    if lost is not None:
        opened.gate.shared = tuple(_only(shared, lost) for shared in whole)
    status: int | None = FAILED_STATUS
    try:
        decision = opened.gate.measure(
            lambda so_far: lost is not None and step_of(so_far, lost) is not Step.UNKNOWN,
            whole=lost is None,  # all that the bad release lost is searched for
        )
        status = None
    except KeyboardInterrupt:
        status = INTERRUPTED_STATUS
        raise
    finally:
        opened.gate.shared = whole
        report = opened.report()
        if status is not None:
            report = msgspec.structs.replace(report, exit_status=status)
        opened.record(report)
    return decision


def check_good(gate: Gate, case_id: str, lost: frozenset[str]) -> None:
    """Silent where the good release could be measured: another bad one would change nothing.

    Raises:
        SideError: it failed; the message says why.
    """
    why = why_broken([one for one in gate.launches if one.case_id == case_id], Arm.A)
    if not why and TEXTS in lost and case_id not in gate.hearing.said:
        unheard = gate.hearing.unheard.get(case_id)
        why = unheard.reason if unheard is not None else ""
    if why:
        message = (
            f"the good release can't be measured, {why}; see '{gate.place.folder / 'logs'}', and"
            " type the same again, or another --good"
        )
        raise SideError(Arm.A, message)


def _only(shared: Shared, quantities: frozenset[str]) -> Shared:
    """The same, going on only until these are decided."""
    subjects = tuple(
        dataclasses.replace(one, deciding=one.deciding & quantities)
        for one in shared.group.subjects
    )
    return dataclasses.replace(shared, group=dataclasses.replace(shared.group, subjects=subjects))
