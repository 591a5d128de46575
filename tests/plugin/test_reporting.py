"""What a run leaves behind for people and programs."""

from specreg.report.document import load_report
from tests.plugin.conftest import Suite


def test_a_run_leaves_all_that_it_knows_in_its_folder(recorded_suite: Suite) -> None:
    done = recorded_suite.run("tests/perf", "-q", "-k", "c4 and (acceptance or throughput)")

    (folder,) = recorded_suite.runs.iterdir()
    report = load_report(folder / "report.json")
    assert report.run == recorded_suite.verdict()
    plain, drafted = report.cases
    assert (plain.method, drafted.method) == ("none", "eagle3")
    assert drafted.expected is not None
    assert drafted.figures is not None
    assert drafted.figures.acceptance is not None
    assert drafted.expected.histogram[0] > 0
    assert sum(bar.count for bar in drafted.spreads.ttft_ms) == 10
    assert drafted.spreads.step_ms
    assert drafted.spreads.control_step_ms
    assert len(drafted.history) == 1
    assert "-k 'c4 and (acceptance or throughput)'" in report.origin.command
    assert done.returncode in {0, 1, 10}
