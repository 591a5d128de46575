"""Describe the cases of a run to pytest-benchmark."""

from collections.abc import Iterable, Sequence
from typing import Any

from specreg.matrix.case import Case
from specreg.report.benchmarks import benchmark_of, times_of
from specreg.runs.ledger import MeasuredLaunch
from specreg.suite.result import RunResult, shown_launch


def round_times_s(launches: Iterable[MeasuredLaunch], case_id: str) -> Sequence[float]:
    """Return the time per output token in each round of a case, in seconds.

    The result is empty if the case wasn't measured, or if no round has a valid time.
    """
    launch = shown_launch(launches, case_id)
    return times_of(launch.measurement) if launch is not None else ()


def describe_benchmarks(
    result: RunResult, entries: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Add the measurements to those of pytest-benchmark's entries that are of cases.

    Returns:
        The entries of cases, also those of cases that weren't measured.
    """
    case_entries = []
    for entry in entries:
        case = (entry["params"] or {}).get("case")
        if not isinstance(case, Case):
            continue
        shown = shown_launch(result.launches, case.id)
        if shown is not None:
            entry.update(benchmark_of(shown.measurement, result.verdicts))
        case_entries.append(entry)

    return case_entries
