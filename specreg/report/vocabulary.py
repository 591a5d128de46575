"""Declare the words that specreg writes itself, so that they are never hidden as a secret."""

import functools
from collections.abc import Iterable

from specreg.baselines.schema import Baseline
from specreg.core.commands import RUN_THE_SUITE
from specreg.core.redaction import declare_words, unhidden
from specreg.core.values import words_in
from specreg.correctness.checks import CHECKS
from specreg.engines.methods import METHODS
from specreg.engines.registry import ENGINES
from specreg.matrix.case import Case
from specreg.measurement.ledger import Line
from specreg.measurement.metrics import METRICS
from specreg.report.document import Report
from specreg.verdicts.history import RunRecord


def declare_vocabulary(cases: Iterable[Case], *names: str) -> None:
    """Declare that specreg's own words, those of the cases, and these names are no secrets."""
    words = {*_own_words(), *names}
    for case in cases:
        server = case.server
        words |= {case.id, server.id, server.engine, server.method, server.models, case.dataset}
    declare_words(words)


def declare_report_vocabulary(report: Report, *names: str) -> None:
    """Declare that specreg's own words, the names in a report, and these names are no secrets.

    The report may come from another machine, so only the names that a reader needs are declared.
    """
    run = report.run
    case_ids = {case.case_id for case in report.cases}
    declare_words({*_own_words(), run.run, run.tier, run.environment, *case_ids, *names})


def render_unhidden() -> str:
    """Name the secrets that aren't hidden, each with the reason; empty without any."""
    named = ", ".join(unhidden())
    if not named:
        return ""
    return f"secrets that can't be hidden: {named}; give each a longer value, or another name"


@functools.cache
def _own_words() -> frozenset[str]:
    """Return the words that specreg writes: names of metrics, engines and methods, and fields."""
    names = frozenset().union(METRICS, CHECKS, ENGINES, METHODS)
    return names | {RUN_THE_SUITE} | words_in(Report, Line, Baseline, RunRecord, Case)
