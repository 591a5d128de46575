"""What needs a look, a card for each case: what failed, since when, and where to look."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from specreg.report.document import CaseReport, Report, began_at
from specreg.report.headline import Tone, tone_of
from specreg.report.quantities import label_of
from specreg.report.terminal import NOTHING
from specreg.verdicts.history import RunRecord
from specreg.verdicts.judge import Outcome, Verdict

_MOST_CHARS = 6_000
"""Of an error; its end is the end of a server's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One case that needs a look.

    Attributes:
        case_id, tone: which, and its colour, of the worst verdict.
        rows: each verdict that fails, and its reason unless one before has the same.
        facts: engine, driver, since when, where the servers' output is.
        error: what went wrong in full, empty unless it has more lines than a reason.
    """

    case_id: str
    tone: Tone
    rows: tuple[tuple[Verdict, str], ...]
    facts: tuple[str, ...]
    error: str


def cards_of(report: Report, by_case: Mapping[str, Sequence[Verdict]]) -> Iterator[Card]:
    """A card for each case with a verdict that fails, the red ones first."""
    known = {case.case_id: case for case in report.cases}
    cards = []
    for case_id, verdicts in by_case.items():
        failing = [verdict for verdict in verdicts if verdict.fails]
        if failing:
            cards.append(_card(report, case_id, failing, known.get(case_id)))
    yield from sorted(cards, key=lambda card: card.tone is not Tone.BAD)


def moment_of(run: str) -> str:
    """`2026-11-21 02:00 UTC`, or the run's name where that says no time."""
    moment = began_at(run)
    return f"{moment:%Y-%m-%d %H:%M} UTC" if moment else f"run {run}"


def _card(
    report: Report, case_id: str, failing: Sequence[Verdict], case: CaseReport | None
) -> Card:
    said: set[str] = set()
    rows = []
    for verdict in failing:
        rows.append((verdict, "" if verdict.reason in said else verdict.reason))
        said.add(verdict.reason)
    is_bad = any(tone_of(verdict) is Tone.BAD for verdict in failing)
    error = case.error.strip() if case else ""
    return Card(
        case_id=case_id,
        tone=Tone.BAD if is_bad else Tone.DOUBT,
        rows=tuple(rows),
        facts=tuple(_facts(report, case, failing)) if case else (),
        error=error[-_MOST_CHARS:] if "\n" in error else "",
    )


def _facts(report: Report, case: CaseReport, failing: Sequence[Verdict]) -> Iterator[str]:
    now = case.figures.engine_version if case.figures else ""
    before = case.expected.engine_version if case.expected else ""
    if now or before:
        yield f"{case.engine} {_change(before, now)}"
    if case.expected and report.origin.driver_version:
        yield f"driver {_change(case.expected.driver_version, report.origin.driver_version)}"
    since: dict[str, list[str]] = {}
    for verdict in failing:
        if verdict.outcome not in {Outcome.REGRESSED, Outcome.WRONG, Outcome.INCONCLUSIVE}:
            continue
        since.setdefault(_since(case.history, verdict.metric), []).append(label_of(verdict.metric))
    for told, labels in since.items():
        if told:
            yield f"{', '.join(labels)}: {told}"
    if case.logs:
        yield f"what the servers said: {', '.join(case.logs)}"


def _change(before: str, now: str) -> str:
    """What the baseline was recorded with, and what there is now."""
    if before == now:
        return f"{now}, as its baseline"
    return f"{before or NOTHING} → {now or NOTHING}"


def _since(history: Sequence[RunRecord], metric: str) -> str:
    """From which run on a metric isn't fine; empty where no earlier run judged it."""
    runs = [one for one in history if one.judged(metric)]
    runs = [one for one in runs if one.settings_sha256 == runs[-1].settings_sha256]
    streak = list(takewhile(lambda one: not one.fine(metric), reversed(runs)))
    if not streak or len(runs) == 1:
        return ""
    first, fine = streak[-1], runs[: len(runs) - len(streak)]
    many = f", {len(streak)} judged runs in a row" if len(streak) > 1 else ""
    told = f"not fine since {moment_of(first.run)}{many}"
    if not fine:
        return f"{told}, and never before"
    return f"{told}; last fine {moment_of(fine[-1].run)} with {fine[-1].engine_version}"
