"""What exports need of a case beside its figures: each request, as the journal has it."""

from collections.abc import Mapping
from pathlib import Path

from specreg.measurement.journal import load_journal
from specreg.measurement.measure import Measurement

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
