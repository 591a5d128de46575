"""`--update-baselines`: writes the cases that ran, says what changed, refuses what is unsound."""

import json
import shlex

from tests.doubles.vllm.script import Fault, Script
from tests.plugin.conftest import Suite

UPDATE = ("tests/perf", "-q", "--update-baselines", "--reason", "test", "--specreg-launches", "2")


def test_all_other_baselines_stay_as_they_are(recorded_suite: Suite) -> None:
    before = recorded_suite.recorded()
    recorded_suite.script = Script(acceptance_probs=(0.6, 0.5, 0.4))

    done = recorded_suite.run(*UPDATE, "-k", "eagle3 and c1")

    after = recorded_suite.recorded()
    assert done.returncode == 0, done.stdout
    assert set(after) == set(before)
    assert dict(after.items() - before.items()).keys() == {"vllm-eagle3-tiny-toy-c1"}
    assert "lossless_frac" in done.stdout  # what must be is checked, before what was is recorded
    rows = [line.split() for line in done.stdout.splitlines() if "acceptance_length" in line[:30]]
    (row,) = [row for row in rows if row[-1] == "2"]
    assert float(row[1]) > float(row[2]) > 1


def test_without_a_reason_the_engine_and_its_version_are_it(suite: Suite) -> None:
    done = suite.run("tests/perf", "-q", "--update-baselines", "-k", "none and c1 and throughput")

    assert done.returncode == 0, done.stdout
    (content,) = suite.recorded().values()
    assert '"reason": "vllm 99.0+scripted"' in content
    recorded = json.loads(content)
    speeds = [launch["throughput_tokens_per_s"] for launch in recorded["launches"]]
    assert len(speeds) >= 3, "more where these don't tell"
    assert recorded["detects"]["throughput_tokens_per_s"]["tolerance_frac"] == 0.5


def test_a_recording_ends_with_the_files_and_what_to_type(suite: Suite) -> None:
    done = suite.record("-k", "c1")

    (folder,) = suite.baselines.iterdir()
    end = done.stdout[done.stdout.index("specreg: tier") :]
    rows = [line.strip() for line in end.splitlines()]
    for method in ("none", "eagle3"):
        assert f"{folder}/vllm-{method}-tiny-toy-c1.json" in rows
        assert rows.count(f"{folder.name}/vllm-{method}-tiny-toy-c1") == 1
    (again,) = (line for line in end.splitlines() if line.startswith("  pytest -k"))
    listed = suite.run(*shlex.split(again)[1:], "--co", "-q")
    assert listed.returncode == 0, listed.stdout
    assert "vllm-eagle3-tiny-toy-c1-lossless_frac" in listed.stdout


def test_an_invalid_measurement_is_not_written(recorded_suite: Suite) -> None:
    before = recorded_suite.recorded()
    recorded_suite.script = Script(fault=Fault.SPEC_DISABLED)

    done = recorded_suite.run(*UPDATE, "-k", "eagle3 and c1")

    assert done.returncode == 10
    assert "not written, SPEC_DISABLED" in done.stdout
    assert recorded_suite.recorded() == before


def test_what_was_recorded_is_the_first_night_and_counts_once(suite: Suite) -> None:
    """The history has the recording, and the baseline holds the same launches."""
    command = ("tests/perf", "-q", "-k", "eagle3 and c1 and acceptance_length")
    assert suite.run(*command, "--update-baselines", "--specreg-launches=2").returncode == 0
    assert suite.run(*command).returncode == 0
    (verdict,) = suite.verdict().verdicts
    assert verdict.nights == 0
