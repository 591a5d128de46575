"""The overview of a run: a row for each case, the worst verdict for each column."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specreg.report.quantities import axis_of, render_value
from specreg.verdicts.judge import Outcome, Verdict

SYMBOLS: Mapping[Outcome, str] = {
    Outcome.REGRESSED: "▼",
    Outcome.WRONG: "✗",
    Outcome.INVALID: "⚠",
    Outcome.INCONCLUSIVE: "?",
    Outcome.NO_BASELINE: "∅",
    Outcome.NOT_COMPARABLE: "≠",
    Outcome.IMPROVED: "▲",
    Outcome.MEASURED: "•",
    Outcome.PASS: "✓",
}
"""The worst first."""

MEANINGS: Mapping[Outcome, str] = {
    Outcome.REGRESSED: "worse for sure, by more than the tolerance, on two launches",
    Outcome.WRONG: "speculation changed a token, or took other steps than its models give",
    Outcome.INVALID: "the meter or the machine was not in order: the figures mean nothing",
    Outcome.INCONCLUSIVE: "the measurements can't tell",
    Outcome.NO_BASELINE: "nothing was recorded to compare with",
    Outcome.NOT_COMPARABLE: "recorded on another kind of machine",
    Outcome.IMPROVED: "better for sure, by more than the tolerance",
    Outcome.MEASURED: "measured, not judged",
    Outcome.PASS: "proven to lie within the tolerance",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One place: the worst verdict on some metrics of a case.

    Attributes:
        verdict: which.
        text: the change, or the value where there is nothing to compare with.
        tolerated: how much of a change is fine, empty without one.
    """

    verdict: Verdict
    text: str
    tolerated: str


def columns_of(verdicts: Sequence[Verdict]) -> Sequence[str]:
    """Their names and units, in the order of the run; all positions share one."""
    return list(dict.fromkeys(_column(verdict.metric) for verdict in verdicts))


def cells_of(verdicts: Sequence[Verdict], columns: Sequence[str]) -> Sequence[Cell | None]:
    """The worst verdict of a case for each column: by its outcome, then by its change."""
    order = list(SYMBOLS)
    ranked = sorted(verdicts, key=lambda v: (order.index(v.outcome), v.change_frac or 0.0))
    worst: dict[str, Verdict] = {}
    for verdict in ranked:
        worst.setdefault(_column(verdict.metric), verdict)
    return [_cell(worst[column]) if column in worst else None for column in columns]


def _column(metric: str) -> str:
    return "acceptance by position" if metric.startswith("acceptance_pos") else axis_of(metric)


def _cell(verdict: Verdict) -> Cell:
    change, tolerance = verdict.change_frac, verdict.tolerance_frac
    if change is None:
        value = render_value(verdict.metric, verdict.value)
        return Cell(verdict=verdict, text=value.partition(" ")[0], tolerated="")
    tolerated = "" if tolerance is None else f"of {100 * tolerance:.3g}%"
    return Cell(verdict=verdict, text=f"{change:+.1%}", tolerated=tolerated)
