"""What a run leaves behind for people and programs."""

import shlex
from pathlib import Path

import msgspec
import pytest

from specreg.report.document import RunReport
from tests.plugin.conftest import Suite


def test_a_run_leaves_all_that_it_knows_in_its_folder(recorded_suite: Suite) -> None:
    done = recorded_suite.run("tests/perf", "-q", "-k", "c4 and (acceptance or throughput)")

    (folder,) = recorded_suite.runs.iterdir()
    report = msgspec.json.decode((folder / "report.json").read_bytes(), type=RunReport)
    assert report.run == recorded_suite.verdict()
    plain, drafted = report.cases
    assert (plain.method, drafted.method) == ("none", "eagle3")
    assert drafted.expected is not None
    assert drafted.figures is not None
    assert drafted.figures.acceptance is not None
    assert drafted.expected.marginal_frac[0] > 0
    assert len(drafted.history) == 1
    assert "-k 'c4 and (acceptance or throughput)'" in report.origin.command
    assert report.ended_at
    assert report.run.load is not None
    assert report.run.load.cores == report.machine.cores
    assert set(drafted.logs) == {f"logs/{path.name}" for path in (folder / "logs").iterdir()}
    typed = shlex.split(drafted.reproduce)
    assert typed[:3] == ["pytest", "-k", f"{drafted.case_id}-"]
    assert "--specreg-tier=cpu" in typed
    assert set(report.origin.options) <= set(typed)
    assert done.returncode in {0, 1, 10}


def test_a_run_leaves_a_page_and_adds_to_the_summary_of_a_job(
    recorded_suite: Suite, tmp_path: Path
) -> None:
    recorded_suite.job_summary = summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    past = f"--specreg-history={tmp_path / 'past'}"
    done = recorded_suite.run("tests/perf", "-q", "-k", "c1 and acceptance_length", past)
    (folder,) = recorded_suite.runs.iterdir()
    assert len(list((tmp_path / "past").glob("*.jsonl"))) == 1
    assert f"report: {folder / 'report.html'}" in done.stdout
    page = (folder / "report.html").read_text()
    assert "✓ 1 figure holds</h1>" in page
    assert "This was not the whole tier" in page
    assert summary.read_text() == "before\n" + (folder / "report.md").read_text()

    before = recorded_suite.verdict()  # a run that is continued in vain stays as it was
    assert recorded_suite.run("tests/perf", "-q", "-k", "x", "--specreg-resume").returncode == 5
    assert recorded_suite.verdict() == before


def test_a_history_that_fails_takes_no_verdict_with_it(recorded_suite: Suite) -> None:
    past = recorded_suite.folder / "past"
    past.write_text("")  # no folder

    arguments = ("-k", "c1 and acceptance_length", f"--specreg-history={past}")
    done = recorded_suite.run("tests/perf", "-q", *arguments)

    assert done.returncode == 0, done.stdout
    assert "PASS" in done.stdout
    assert "this run isn't in it" in done.stdout
    assert recorded_suite.verdict().outcomes == {"PASS": 1}


@pytest.mark.parametrize(
    "arguments",
    [("tests/perf", "--co"), ("tests/perf", "tests/unit/test_names.py", "-k", "fraction")],
    ids=["listed", "other-tests"],
)
def test_what_is_not_to_judge_leaves_nothing(suite: Suite, arguments: tuple[str, ...]) -> None:
    assert suite.run("-q", *arguments).returncode == 0
    assert not suite.runs.exists()


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["here", "in-a-worker"])
def test_a_test_that_fails_beside_the_suite_makes_the_status_1(
    suite: Suite, workers: tuple[str, ...]
) -> None:
    """A property of a test that isn't the suite's is no verdict."""
    test_file = suite.folder / "test_another.py"
    test_file.write_text(
        "def test_another(record_property):\n"
        "    record_property('owner', 'somebody')\n"
        "    assert not 'true'\n"
    )

    selected = ("tests/perf", str(test_file), "-k", "another or c1-acceptance_length")
    done = suite.run("-q", *selected, *workers)

    assert "NO_BASELINE" in done.stdout
    assert done.returncode == 1, done.stdout


def test_an_own_test_that_fails_beside_its_verdict_is_shown(recorded_suite: Suite) -> None:
    """The verdict of the test holds, so only pytest's own report says why the test failed."""
    test_file = recorded_suite.folder / "test_own.py"
    test_file.write_text(
        "import pytest\n"
        "@pytest.mark.family('acceptance')\n"
        "def test_own(verdict):\n"
        "    assert not 'longer than any answer'\n"
    )

    selected = ("tests/perf", str(test_file), "-k", "test_own and c1-acceptance_length")
    done = recorded_suite.run("-q", *selected)

    assert "longer than any answer" in done.stdout
    assert done.returncode == 1, done.stdout
