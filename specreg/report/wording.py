"""Choose the words for what a report compares: a run with its baselines, or B with A."""

from typing import NamedTuple

from specreg.report.document import ComparedReport, Report


class Wording(NamedTuple):
    """What a report calls a figure, and what the figure is compared with.

    Attributes:
        columns: the titles of the columns for a verdict's `value` and `expected`.
        before: what is drawn in grey.
        now: what is drawn in a colour.
        launches: the option for a number of launches.
        expectation: the words before an expected value in a sentence.
        reference: what figures are compared with.
    """

    columns: tuple[str, str]
    before: str
    now: str
    launches: str
    expectation: str
    reference: str


OF_A_RUN = Wording(
    columns=("value", "baseline"),
    before="before",
    now="now",
    launches="--specreg-launches=",
    expectation="recorded",
    reference="the baseline",
)


def wording_of(report: Report) -> Wording:
    """Return the words for what a report compares."""
    if not isinstance(report, ComparedReport):
        return OF_A_RUN
    before, now = (side.name for side in report.sides)
    side = f"side {before}"
    return Wording(
        columns=(now, before),
        before=before,
        now=now,
        launches="--launches ",
        expectation=side,
        reference=side,
    )
