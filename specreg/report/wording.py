"""Choose the words for what a report compares: a run with its baselines, or B with A."""

from typing import NamedTuple

from specreg.report.document import ComparedReport, Report


class Wording(NamedTuple):
    """What a report calls a figure, and what the figure is compared with.

    Attributes:
        columns: the titles of the columns for a verdict's `value` and `expected`.
        before: what is drawn in grey.
        expectation: the words before an expected value in a sentence.
        reference: what figures are compared with.
    """

    columns: tuple[str, str]
    before: str
    expectation: str
    reference: str


OF_A_RUN = Wording(
    columns=("value", "baseline"), before="before", expectation="recorded", reference="the baseline"
)


def wording_of(report: Report) -> Wording:
    """Return the words for what a report compares."""
    if not isinstance(report, ComparedReport):
        return OF_A_RUN
    before, new = (arm.name for arm in report.arms)
    side = f"side {before}"
    return Wording(columns=(new, before), before=before, expectation=side, reference=side)
