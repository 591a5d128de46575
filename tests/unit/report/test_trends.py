"""What `specreg history` prints, and what it says of lines that are torn."""

from pathlib import Path

import msgspec

from specreg.core.errors import ReportError, UnknownNameError
from specreg.report.cases import render_trends
from specreg.report.charts import charts_of
from specreg.verdicts.history import RunRecord, record_history
from tests.unit.cli.test_cli import specreg
from tests.unit.reports import CASE, CASE_REPORT, past_run

LENGTH = "acceptance_length_tokens"


def row_of(*values: float) -> list[RunRecord]:
    """A run a day with such an acceptance length."""
    return [past_run(day, **{LENGTH: value}) for day, value in enumerate(values, start=1)]


def lines(text: str) -> list[str]:
    """Each line, its words a blank apart."""
    return [" ".join(line.split()) for line in text.splitlines()]


def folder_of(root: Path, *values: float) -> Path:
    """A history of one machine."""
    path = root / ".specreg/history/cpu-x.jsonl"
    record_history(path, row_of(*values))
    return path


def test_a_trend_says_how_many_runs_and_how_far_they_came_and_better_is_positive() -> None:
    slower = [past_run(day, ttft_p50_ms=value) for day, value in enumerate((100.0, 130.0), start=1)]
    history = {CASE.id: row_of(2.0, 2.5, 3.0), "b": slower}
    rows = lines(render_trends(history, [LENGTH, "ttft_p50_ms"], width=110))
    assert rows[1:3] == [CASE.id, f"{LENGTH} 3 2 3 +100.0% ▁▅█"]
    assert rows[4].startswith("ttft_p50_ms 2 100 130 -30.0%")


def test_only_runs_that_judged_the_figure_are_counted() -> None:
    words = ("PASS", "NOT_COMPARABLE", "NO_BASELINE", "MEASURED", "INVALID", "REGRESSED")
    rows = [
        msgspec.structs.replace(one, outcomes={LENGTH: word})
        for one, word in zip(row_of(*[2.0, 9.0, 9.0, 9.0, 9.0, 1.5]), words, strict=True)
    ]
    shown = lines(render_trends({CASE.id: rows}, [LENGTH], width=110))
    assert f"{LENGTH} 2 2 1.5 -50.0%" in shown[2]
    case = msgspec.structs.replace(CASE_REPORT, history=tuple(rows))
    (chart,) = [one for one in charts_of(case) if one.title == "History of acceptance length"]
    assert "The last 2 runs that judged it" in chart.note


def test_one_run_is_no_trend(tmp_path: Path) -> None:
    folder_of(tmp_path, 2.0)
    assert render_trends({CASE.id: row_of(2.0)}, [LENGTH], width=110) == ""
    assert "no case has two runs" in specreg(tmp_path, "history").stdout


def test_a_torn_line_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    path = folder_of(tmp_path, 2.0, 3.0)
    with path.open("ab") as file:
        file.write(b'{"run": "2026')
    done = specreg(tmp_path, "history")
    assert "1 line(s) can't be read; the rest is shown" in done.output
    assert "+100.0%" in done.stdout


def test_what_is_not_there_is_named_with_what_is(tmp_path: Path) -> None:
    assert isinstance(specreg(tmp_path, "history").exception, ReportError)
    folder_of(tmp_path, 2.0, 3.0)
    for arguments in (("nowhere",), ("--metric", "z")):
        assert isinstance(specreg(tmp_path, "history", *arguments).exception, UnknownNameError)
