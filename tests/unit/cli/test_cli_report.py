"""`specreg report`: a finished run again, and what is said where one can't be."""

from pathlib import Path

import pytest

from specreg.core.errors import ReportError, UnknownNameError
from specreg.report.files import record_document
from tests.unit.builders import reports
from tests.unit.builders.command_line import specreg
from tests.unit.builders.histories import write_nights

RUN = reports.REPORT.run.run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with two judged runs, and one that was cut off before."""
    for name in ("20260101T000000-1", RUN):
        folder = tmp_path / ".specreg/runs" / name
        record_document(folder / "verdict.json", reports.REPORT.run)
        record_document(folder / "report.json", reports.REPORT)
    (tmp_path / ".specreg/runs/20270101T000000-1").mkdir()
    return tmp_path


def test_the_last_judged_run_is_rendered_into_its_own_folder(root: Path) -> None:
    done = specreg(root, "report")
    folder = root / ".specreg/runs" / RUN
    assert done.stdout.split() == [str(folder / "report.html"), str(folder / "report.md")]
    assert "is worse in throughput" in (folder / "report.html").read_text()


def test_an_empty_run_is_not_the_last_one(root: Path) -> None:
    empty = root / ".specreg/runs/20270201T000000-1"
    record_document(empty / "verdict.json", reports.EMPTY.run)
    record_document(empty / "report.json", reports.EMPTY)
    done = specreg(root, "report")
    assert done.stderr == f"the last run, '{empty.name}', judged nothing; this is '{RUN}'\n"
    assert f"/{RUN}/" in done.stdout
    assert f"/{empty.name}/" in specreg(root, "report", empty.name).stdout


def test_a_run_is_named_or_pointed_at_and_goes_where_one_says(root: Path) -> None:
    for run in ("20260101T000000-1", str(root / ".specreg/runs/20260101T000000-1")):
        out = root / "out"
        done = specreg(
            root, "report", run, "--to", "csv", "--to", "prometheus", "--folder", str(out)
        )
        names = ["verdicts.csv", "specreg.prom"]
        assert [Path(line).name for line in done.stdout.split()] == names
        assert (out / "specreg.prom").read_text().startswith("# HELP specreg_value")


def test_a_second_run_is_shown_beside_the_first(root: Path) -> None:
    done = specreg(root, "report", "20260101T000000-1", RUN)
    folder = root / ".specreg/runs" / RUN / f"against-{RUN}"
    assert done.stdout.split() == [str(folder / "report.html"), str(folder / "report.md")]
    assert "B against A: " in (folder / "report.html").read_text()
    assert "Two runs side by side" not in (root / ".specreg/runs" / RUN / "report.json").read_text()
    again = specreg(root, "report", str(folder), "--to", "csv")
    assert (folder / "verdicts.csv").read_text().count("MEASURED") == 2
    assert again.exit_code == 0


def test_what_is_not_there_is_named_with_what_is(root: Path) -> None:
    for arguments, known in ((("x",), RUN), (("--to", "x"), "markdown")):
        error = specreg(root, "report", *arguments).exception
        assert isinstance(error, UnknownNameError)
        assert known in str(error).partition("known: ")[2]


def test_before_any_run_it_says_what_to_do(tmp_path: Path) -> None:
    error = specreg(tmp_path, "report").exception
    assert isinstance(error, ReportError)
    assert "run the suite first" in str(error)


def test_the_nights_of_all_cases_are_one_page(root: Path) -> None:
    write_nights(root / ".specreg/history/gpu-h100.jsonl", cases=2, nights=3)
    done = specreg(root, "report", "--history")
    page = root / ".specreg/history/history.html"
    assert done.stdout.split() == [str(page)]
    assert "none of 2 cases is proven worse or wrong" in page.read_text()


def test_histories_of_several_machines_are_named_and_go_where_one_says(root: Path) -> None:
    for machine in ("gpu-h100", "gpu-h200"):
        write_nights(root / "kept" / f"{machine}.jsonl", cases=1, nights=2)
    folder = root / "site"
    done = specreg(root, "report", "--history", str(root / "kept"), "--folder", str(folder))
    assert done.stdout.split() == [str(folder / "history.html")]
    text = (folder / "history.html").read_text()
    assert "gpu-h100" in text
    assert "gpu-h200" in text


def test_a_page_of_no_nights_is_refused_with_what_to_do(root: Path) -> None:
    error = specreg(root, "report", "--history").exception
    assert isinstance(error, ReportError)
    assert "run the suite first" in str(error)


def test_the_page_of_nights_has_no_other_form(root: Path) -> None:
    write_nights(root / ".specreg/history/gpu-h100.jsonl", cases=1, nights=2)
    error = specreg(root, "report", "--history", "--to", "csv").exception
    assert isinstance(error, ReportError)
    assert "--to csv: --history writes one page" in str(error)


def test_three_runs_are_refused(root: Path) -> None:
    error = specreg(root, "report", RUN, RUN, RUN).exception
    assert isinstance(error, ReportError)
    assert "3 runs are named, needed at most two" in str(error)
