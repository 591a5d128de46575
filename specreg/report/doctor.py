"""What the doctor found, and its text: a line each with its mark, and below it what to do."""

import enum
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.style import Style

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


_STYLES = {State.OK: "green", State.NOTE: "yellow", State.IN_THE_WAY: "bold red"}


def render_findings(found: Mapping[str, Sequence[Finding]], *, width: int, color: bool) -> str:
    """The findings under their headings, and how many stand in the way."""
    every = [one for findings in found.values() for one in findings]
    marks, subjects = max(map(len, State)), max((len(one.subject) for one in every), default=0)
    room = width - marks - subjects - 6
    lines: list[str] = []
    for heading, findings in found.items():
        lines.append(heading)
        for one in findings:
            style = Style.parse(_STYLES[one.state] if color else "none")
            mark = style.render(f"{one.state:{marks}}")
            said = textwrap.wrap(one.says, room) or [""]
            said += textwrap.wrap(f"→ {one.advice}", room) if one.advice else []
            lines.append(f"  {mark}  {one.subject:{subjects}}  {said[0]}")
            lines += [f"{'':{width - room}}{line}" for line in said[1:]]
        lines.append("")
    states = [one.state for one in every]
    ways, notes = states.count(State.IN_THE_WAY), states.count(State.NOTE)
    remarks = f", {notes} note(s)" if notes else ""
    lines.append(f"{f'{ways} thing(s) in the way' if ways else 'nothing is in the way'}{remarks}")
    return "\n".join(lines)
