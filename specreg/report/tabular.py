"""A run as CSV: a row for each verdict, and one for each thing that was timed."""

import csv
import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence

from specreg.measurement.figures import ArmFigures
from specreg.report.document import Report
from specreg.stats.percentiles import Summary
from specreg.verdicts.judge import Verdict


def render_verdict_rows(report: Report) -> str:
    """A row for each verdict with all that it says; what is unknown is empty."""
    names = [field.name for field in dataclasses.fields(Verdict)]
    rows = ([getattr(verdict, name) for name in names] for verdict in report.run.verdicts)
    return render_rows(names, rows)


def render_spread_rows(report: Report) -> str:
    """A row for each thing that was timed of a case, with speculation and without it."""
    fields = Summary.__struct_fields__
    rows = (
        [case.case_id, server, name, *(getattr(summary, field) for field in fields)]
        for case in report.cases
        if case.figures
        for server, arm in (("case", case.figures.timing), ("control", case.figures.control))
        if arm
        for name, summary in summaries_of(arm)
    )
    return render_rows(["case_id", "server", "figure", *fields], rows)


def summaries_of(arm: ArmFigures) -> Iterator[tuple[str, Summary]]:
    """By name, all of an arm's figures that spread."""
    for name in ArmFigures.__struct_fields__:
        value = getattr(arm, name)
        if isinstance(value, Summary):
            yield name, value


def render_rows(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV as RFC 4180 has it, but for the ends of its lines."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return text.getvalue()
