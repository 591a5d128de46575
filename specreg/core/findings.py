"""What an examination finds."""

import enum
from dataclasses import dataclass

from specreg.core.errors import SpecregError


class State(enum.StrEnum):
    """What a finding means for a run."""

    OK = "ok"
    NOTE = "note"
    IN_THE_WAY = "in the way"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: what of the machine it is about.
        state: what it means for a run.
        says: what was seen.
        advice: what to do about it, empty where there is nothing to do.
    """

    subject: str
    state: State
    says: str
    advice: str = ""


def ok(subject: str, says: str) -> Finding:
    """Something that is as it should be."""
    return Finding(subject=subject, state=State.OK, says=says)


def note(subject: str, says: str, advice: str) -> Finding:
    """Something that a run can live with."""
    return Finding(subject=subject, state=State.NOTE, says=says, advice=advice)


def in_the_way(subject: str, says: str, advice: str) -> Finding:
    """Something that keeps a run, or a case that it can't leave out, from being measured."""
    return Finding(subject=subject, state=State.IN_THE_WAY, says=says, advice=advice)


def of_error(subject: str, error: SpecregError | str, state: State = State.IN_THE_WAY) -> Finding:
    """An error of specreg: what is wrong up to its last semicolon, then what to do."""
    first = str(error).splitlines()[0]
    says, _, advice = first.rpartition("; ")
    return Finding(subject=subject, state=state, says=says or advice, advice=advice if says else "")
