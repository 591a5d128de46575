"""SPEED-Bench: acceptance length by category, in its matrix and for `aiperf speed-bench-report`.

The form is that of aiperf 0.13: `speed_bench.csv` is what its command writes, and the folders are
what it reads, one for each case and category.
"""

import json
import statistics
from collections.abc import Mapping

from specreg.report.document import Report
from specreg.report.exports._measured import Measured, drafting_cases
from specreg.report.tabular import render_rows

_ORDER = (
    *("coding", "humanities", "math", "multilingual", "qa", "rag", "reasoning", "roleplay"),
    *("stem", "summarization", "writing", "low_entropy", "mixed", "high_entropy"),
)


def export(report: Report, measured: Measured) -> Mapping[str, str]:
    """The matrix, and the folders from which aiperf makes it."""
    del measured
    lengths = _lengths(report)
    if not lengths:
        return {}
    names = {name for by_category in lengths.values() for name in by_category}
    columns = [name for name in _ORDER if name in names] + sorted(names - set(_ORDER))
    rows = [
        [case_id, *(_fixed(found.get(name)) for name in columns), _fixed(_overall(found))]
        for case_id, found in sorted(lengths.items())
    ]
    files = {"speed_bench.csv": render_rows(["Model", *columns, "Overall"], rows)}
    for case_id, found in lengths.items():
        for category, length in found.items():
            folder = f"speed_bench/{case_id}-{category}"
            config = {
                "models": {"items": [{"name": case_id}]},
                "datasets": [{"format": f"speed_bench_{category}"}],
            }
            files[f"{folder}/profile_export_aiperf.json"] = json.dumps({"input_config": config})
            series = {"series": [{"stats": {"avg": length}}]}
            told = {"metrics": {"specreg:spec_accept_length": series}}
            files[f"{folder}/server_metrics_export.json"] = json.dumps(told)
    return files


def _lengths(report: Report) -> Mapping[str, Mapping[str, float]]:
    """By case and category the acceptance length over all steps."""
    return {
        case.case_id: {
            name: part.acceptance_length_tokens
            for name, part in case.figures.acceptance.by_category.items()
            if part.acceptance_length_tokens is not None
        }
        for case in drafting_cases(report)
        if case.figures and case.figures.acceptance
    }


def _overall(lengths: Mapping[str, float]) -> float | None:
    return statistics.fmean(lengths.values()) if lengths else None


def _fixed(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
