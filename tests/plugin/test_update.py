"""`--update-baselines`: writes the cases that ran, says what changed, refuses what is unsound."""

from tests.plugin.conftest import Suite
from tests.scripted.vllm.script import Fault, Script

UPDATE = ("tests/perf", "-q", "--update-baselines", "--reason", "test", "--specreg-launches", "2")


def test_only_the_cases_that_ran_are_written(suite: Suite) -> None:
    done = suite.run(*UPDATE, "-k", "none and c1")

    assert done.returncode == 0, done.stdout
    assert set(suite.recorded()) == {"vllm-none-tiny-toy-c1"}


def test_all_other_baselines_stay_as_they_are(recorded_suite: Suite) -> None:
    before = recorded_suite.recorded()
    recorded_suite.script = Script(acceptance_probs=(0.6, 0.5, 0.4))

    done = recorded_suite.run(*UPDATE, "-k", "eagle3 and c1")

    after = recorded_suite.recorded()
    changed = {case_id for case_id in before if before[case_id] != after[case_id]}
    assert done.returncode == 0, done.stdout
    assert set(after) == set(before)
    assert changed == {"vllm-eagle3-tiny-toy-c1"}
    assert "lossless_frac" not in done.stdout  # what was can be recorded, what must be can't


def test_old_and_new_values_are_printed(recorded_suite: Suite) -> None:
    recorded_suite.script = Script(acceptance_probs=(0.6, 0.5, 0.4))

    done = recorded_suite.run(*UPDATE, "-k", "eagle3 and c1 and acceptance_length")

    (row,) = (
        line
        for line in done.stdout.splitlines()
        if "acceptance_length" in line[:30] and line.split()[-1] == "2"
    )
    old, new = (float(word) for word in row.split()[1:3])
    assert old > new > 1


def test_a_reason_is_required(suite: Suite) -> None:
    done = suite.run("tests/perf", "--update-baselines")

    assert done.returncode == 4
    assert "--reason" in done.stderr
    assert not suite.recorded()


def test_in_a_terminal_the_reason_is_asked_for(suite: Suite) -> None:
    done = suite.run_in_terminal(
        *("tests/perf", "-q", "--update-baselines", "--specreg-launches=2", "-k", "none and c1"),
        answer="new head",
    )

    assert "why do the baselines change?" in done
    (content,) = suite.recorded().values()
    assert '"reason": "new head"' in content


def test_an_invalid_measurement_is_not_written(recorded_suite: Suite) -> None:
    before = recorded_suite.recorded()
    recorded_suite.script = Script(fault=Fault.SPEC_DISABLED)

    done = recorded_suite.run(*UPDATE, "-k", "eagle3 and c1")

    assert done.returncode == 10
    assert "not written, SPEC_DISABLED" in done.stdout
    assert recorded_suite.recorded() == before


def test_a_corrupt_baseline_is_not_overwritten(recorded_suite: Suite) -> None:
    (path,) = recorded_suite.baselines.glob("*/vllm-none-tiny-toy-c1.json")
    path.write_text("<<<<<<< HEAD\n{}\n")

    done = recorded_suite.run(*UPDATE, "-k", "none and c1")

    assert done.returncode == 1
    assert path.read_text() == "<<<<<<< HEAD\n{}\n"
