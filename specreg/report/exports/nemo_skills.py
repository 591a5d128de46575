"""NeMo-Skills: the summary that `ns summarize_results` prints of its `specdec` benchmarks.

Its documentation, docs/evaluation/speculative-decoding.md, shows the form. An entry is a prompt
with all of its turns.
"""

from collections.abc import Iterator, Mapping

from specreg.report.document import CaseReport, Report
from specreg.report.exports._measured import Measured, drafting_cases, generating_s

_COLUMNS = (
    *("evaluation_mode", "num_entries", "avg_tokens", "gen_seconds"),
    *("spec_acceptance_length", "spec_acceptance_rate"),
)


def export(report: Report, measured: Measured) -> Mapping[str, str]:
    """A table for each case; acceptance alone where the journal doesn't have the case."""
    tables = ["\n".join(_table(case, measured)) for case in drafting_cases(report) if case.figures]
    return {"nemo_skills.txt": "\n\n".join(tables) + "\n"} if tables else {}


def _table(case: CaseReport, measured: Measured) -> Iterator[str]:
    cells = ("pass@1", *_cells(case, measured))
    widths = [max(len(name), len(cell)) for name, cell in zip(_COLUMNS, cells, strict=True)]
    head = " | ".join(map(str.ljust, _COLUMNS, widths))
    yield f" {case.case_id} ".center(len(head), "-")
    yield head.rstrip()
    yield " | ".join(map(str.ljust, cells, widths)).rstrip()


def _cells(case: CaseReport, measured: Measured) -> Iterator[str]:
    figures = case.figures
    total = figures.acceptance.total if figures and figures.acceptance else None
    found = measured.get(case.case_id)
    traces = found.replay.traces if found and found.replay else ()
    entries = len({trace.prompt_id for trace in traces})
    tokens = sum(trace.tokens for trace in traces)
    yield str(entries) if entries else ""
    yield f"{tokens / entries:.0f}" if entries else ""
    yield f"{generating_s(found):.0f}" if found else ""
    length = total.acceptance_length_tokens if total else None
    yield "" if length is None else f"{length:.2f}"
    rate = total.acceptance_rate_frac if total else None
    yield "" if rate is None else f"{100 * rate:.2f}"
