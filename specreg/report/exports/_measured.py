"""What exports need of a case beside its figures: each request, as the journal has it."""

from collections.abc import Mapping
from pathlib import Path

from specreg.journal import load_journal
from specreg.measurement import Measurement
from specreg.report.document import CaseReport, Report

Measured = Mapping[str, Measurement]
"""By case's id, its last launch that is complete."""

NS_PER_S = 10**9


def measured_in(run_folder: Path) -> Measured:
    """What the journal of a run holds.

    Raises:
        SpecregError: it can't be read.
    """
    found = load_journal(run_folder / "journal.jsonl")
    ordered = sorted(found.items(), key=lambda item: item[0].launch)
    return {key.case_id: measurement for key, measurement in ordered}


def drafting_cases(report: Report) -> list[CaseReport]:
    """The cases of which an acceptance was measured."""
    return [case for case in report.cases if case.figures and case.figures.acceptance]


def generating_s(measurement: Measurement) -> float:
    """How long the rounds of a case's server took, without those of the control between them."""
    rounds = measurement.replay.rounds if measurement.replay else ()
    return sum(part.ended_ns - part.started_ns for part in rounds) / NS_PER_S
