"""What the doctor found, and its text: a line each with its mark, and below it what to do."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from specreg.core.errors import SpecregError
from specreg.report.tables import render_table


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


_MARK = max(len(f"  {state}") for state in State)
_STYLES = {State.OK: "green", State.NOTE: "yellow", State.IN_THE_WAY: "bold red"}


def render_findings(found: Mapping[str, Sequence[Finding]], *, width: int, color: bool) -> str:
    """The findings under their headings, and how many stand in the way."""
    every = [one for findings in found.values() for one in findings]
    subject = max((len(one.subject) for one in every), default=0)
    blocks = [
        f"{heading}\n{_block(findings, subject, width, color=color)}"
        for heading, findings in found.items()
    ]
    return "\n\n".join((*blocks, _summary(every)))


def _block(findings: Sequence[Finding], subject: int, width: int, *, color: bool) -> str:
    """The rows of a heading; the subjects take as many columns under each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, min_width=_MARK)
    table.add_column(no_wrap=True, min_width=subject)
    table.add_column(overflow="fold")
    for one in findings:
        mark = Text(f"  {one.state}", _STYLES[one.state])
        table.add_row(mark, Text(one.subject), Text(one.says))
        if one.advice:
            table.add_row("", "", Text(f"→ {one.advice}"))
    rows = render_table(table, width, color=color).splitlines()
    return "\n".join(map(str.rstrip, rows))


def _summary(every: Sequence[Finding]) -> str:
    states = [one.state for one in every]
    ways, notes = states.count(State.IN_THE_WAY), states.count(State.NOTE)
    remarks = f", {notes} note(s)" if notes else ""
    return f"{f'{ways} thing(s) in the way' if ways else 'nothing is in the way'}{remarks}"
