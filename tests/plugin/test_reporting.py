"""What a run leaves behind for people and programs."""

import shlex
import time
from pathlib import Path

import pytest

from specreg.report.document import load_report
from tests.plugin.conftest import Suite

FILE = "report.json"


def test_a_run_leaves_all_that_it_knows_in_its_folder(recorded_suite: Suite) -> None:
    chosen = ("-k", "c4 and (acceptance or throughput)", "--specreg-verbose")
    done = recorded_suite.run("tests/perf", "-q", *chosen)

    assert done.stdout.count("time to first token, ms") == 2
    (folder,) = recorded_suite.runs.iterdir()
    report = load_report(folder / "report.json")
    assert report.run == recorded_suite.verdict()
    plain, drafted = report.cases
    assert (plain.method, drafted.method) == ("none", "eagle3")
    assert drafted.expected is not None
    assert drafted.figures is not None
    assert drafted.figures.acceptance is not None
    assert drafted.expected.histogram[0] > 0
    assert len(drafted.history) == 1
    assert "-k 'c4 and (acceptance or throughput)'" in report.origin.command
    assert report.ended_at
    assert report.run.load is not None
    assert report.run.load.cores == report.machine.cores
    assert set(drafted.logs) == {f"logs/{path.name}" for path in (folder / "logs").iterdir()}
    typed = shlex.split(drafted.reproduce)
    assert typed[:4] == ["pytest", "tests/perf", "-k", f"{drafted.case_id}-"]
    assert "--specreg-tier=cpu" in typed
    assert set(report.origin.options) <= set(typed)
    assert done.returncode in {0, 1, 10}


def test_the_time_of_each_server_pair_and_none_is_that_of_the_process(suite: Suite) -> None:
    before_s = time.monotonic()
    done = suite.run("tests/perf", "-q", "-k", "eagle3 and c1 and (speedup or lossless)")
    passed_s = time.monotonic() - before_s

    (folder,) = suite.runs.iterdir()
    spent = load_report(folder / FILE).time
    assert spent is not None
    (pair,) = spent.pairs
    assert pair.total_s + spent.idle_s == pytest.approx(spent.wall_s)
    assert 0 < pair.total_s < spent.wall_s < passed_s
    assert set(pair.ready_s) == {"vllm-eagle3-tiny", "vllm-none-tiny"}
    assert max(pair.ready_s.values()) <= pair.phases_s["starting"] + pair.phases_s["installing"]
    assert {"warming up", "measuring", "checking", "judging", "stopping"} <= set(pair.phases_s)
    table = done.stdout.partition("where the time went, s")[2].splitlines()
    assert table[1].split()[0] == "vllm-eagle3-tiny"
    assert table[1].split()[-1] == f"{pair.total_s:.1f}"
    assert "| vllm-eagle3-tiny |" in (folder / "report.md").read_text()


def test_a_run_leaves_a_page_and_adds_to_the_summary_of_a_job(
    recorded_suite: Suite, tmp_path: Path
) -> None:
    recorded_suite.draws = True
    recorded_suite.job_summary = tmp_path / "summary.md"
    past = f"--specreg-history={tmp_path / 'past'}"
    done = recorded_suite.run("tests/perf", "-q", "-k", "c1 and acceptance_length", past)
    (folder,) = recorded_suite.runs.iterdir()
    assert len(list((tmp_path / "past").glob("*.jsonl"))) == 1
    assert f"report: {folder / 'report.html'}" in done.stdout
    page = (folder / "report.html").read_text()
    assert "acceptance:</strong> holds in the case that ran" in page
    assert "This was not the whole tier" in page
    assert (tmp_path / "summary.md").read_text() == (folder / "report.md").read_text()

    before = recorded_suite.verdict()  # a run that is gone on with in vain stays as it was
    assert recorded_suite.run("tests/perf", "-q", "-k", "x", "--specreg-resume").returncode == 5
    assert recorded_suite.verdict() == before


def test_a_drawing_and_a_history_that_fail_take_no_verdict_with_them(recorded_suite: Suite) -> None:
    past = recorded_suite.folder / "past"
    past.write_text("")  # no folder
    recorded_suite.draws = True
    recorded_suite.python_path = recorded_suite.folder / "broken"
    recorded_suite.python_path.mkdir()
    broken = "def vegalite_to_svg(*_, **__):\n    raise ValueError('no ink')\n"
    (recorded_suite.python_path / "vl_convert.py").write_text(broken)

    arguments = ("-k", "c1 and acceptance_length", f"--specreg-history={past}")
    done = recorded_suite.run("tests/perf", "-q", *arguments)

    assert done.returncode == 0, done.stdout
    assert "PASS" in done.stdout
    assert "this run isn't in it" in done.stdout
    assert "not whole, ValueError: no ink; the verdicts stand" in done.stdout
    assert recorded_suite.verdict().outcomes == {"PASS": 1}


def test_without_the_extra_the_page_lacks_its_charts(recorded_suite: Suite) -> None:
    done = recorded_suite.run("tests/perf", "-q", "-k", "none and c1 and throughput")

    (folder,) = recorded_suite.runs.iterdir()
    assert f"report: {folder / 'report.html'}" in done.stdout
    assert "<svg" not in (folder / "report.html").read_text()


def test_a_machine_that_nothing_fits_leaves_the_reasons(suite: Suite) -> None:
    suite.write_matrix(needs_gpus=1)
    done = suite.run("tests/perf", "-q")

    assert done.returncode == 0
    assert "nothing was judged: tier 'cpu' needs 1 GPU(s), this machine has 0" in done.stdout
    (folder,) = suite.runs.iterdir()
    assert r"needs 1 GPU\(s\)" in (folder / "report.md").read_text()
    assert len(suite.verdict().skipped) == 4


@pytest.mark.parametrize(
    "arguments",
    [("tests/perf", "--co"), ("tests/perf", "tests/unit/core/test_errors.py", "-k", "bounded")],
    ids=["listed", "other-tests"],
)
def test_what_is_not_to_judge_leaves_nothing(suite: Suite, arguments: tuple[str, ...]) -> None:
    assert suite.run("-q", *arguments).returncode == 0
    assert not suite.runs.exists()


def test_the_command_is_told_with_what_the_environment_adds(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k 'eagel3 or mpt'")
    assert suite.run("tests/perf", "-q").returncode == 5
    (folder,) = suite.runs.iterdir()
    assert "pytest -k 'eagel3 or mpt' -p" in load_report(folder / FILE).origin.command
