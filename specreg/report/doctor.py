"""What the doctor found, as text: a line each with its mark, and below it what to do."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from specreg.doctor import Finding, State
from specreg.report.terminal import render_table

_STYLES = {State.OK: "green", State.NOTE: "yellow", State.IN_THE_WAY: "bold red"}


def render_findings(found: Mapping[str, Sequence[Finding]], *, width: int, color: bool) -> str:
    """A table of the findings under their headings, and how many stand in the way."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for heading, findings in found.items():
        table.add_row()
        table.add_row(Text(heading, style="bold"))
        for one in findings:
            mark = Text(f"  {one.state}", _STYLES[one.state])
            table.add_row(mark, Text(one.subject), Text(one.says))
            if one.advice:
                table.add_row("", "", Text(f"→ {one.advice}", style="italic"))
    lines = render_table(table, width, color=color).splitlines()
    return "\n".join((*map(str.rstrip, lines), "", _summary(found))).lstrip("\n")


def _summary(found: Mapping[str, Sequence[Finding]]) -> str:
    states = [one.state for findings in found.values() for one in findings]
    ways, notes = states.count(State.IN_THE_WAY), states.count(State.NOTE)
    remarks = f", {notes} note(s)" if notes else ""
    return f"{f'{ways} thing(s) in the way' if ways else 'nothing is in the way'}{remarks}"
