"""A run against recorded baselines: what is green, what is red, and what it says."""

import json

import msgspec

from tests.plugin.conftest import Suite
from tests.scripted.vllm.script import Fault, Script

# The scripted server's steps are seeded, so acceptance repeats exactly; its times don't.
ACCEPTANCE = ("tests/perf", "-q", "-k", "acceptance_length")


def test_an_unchanged_server_holds(recorded_suite: Suite) -> None:
    done = recorded_suite.run(*ACCEPTANCE)

    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASS") == 2


def test_a_worse_drafter_turns_its_cases_red_and_names_them(recorded_suite: Suite) -> None:
    recorded_suite.script = Script(acceptance_probs=(0.6, 0.5, 0.4))

    done = recorded_suite.run(*ACCEPTANCE)

    assert done.returncode == 1
    assert "REGRESSED: acceptance_length_tokens of 'vllm-eagle3-tiny-toy-c1'" in done.stdout
    assert "REGRESSED: acceptance_length_tokens of 'vllm-eagle3-tiny-toy-c4'" in done.stdout
    assert "by category: coding 2." in done.stdout
    assert 'look again, on a fresh launch:\n  pytest -k "vllm-eagle3-tiny-toy-c1- or' in done.stdout


def test_a_better_drafter_passes_and_is_said_to_be_better(recorded_suite: Suite) -> None:
    recorded_suite.script = Script(acceptance_probs=(0.95, 0.95, 0.95))

    done = recorded_suite.run(*ACCEPTANCE)

    assert done.returncode == 0, done.stdout
    assert done.stdout.count("IMPROVED") == 2


def test_a_slower_step_turns_speed_red_and_leaves_acceptance_green(recorded_suite: Suite) -> None:
    recorded_suite.script = Script(step_ms=6.0)

    done = recorded_suite.run("tests/perf", "-q", "-k", "c4 and (throughput or acceptance)")

    assert done.returncode == 1
    assert "seen twice" in done.stdout
    assert "REGRESSED: throughput_tokens_per_s of 'vllm-none-tiny-toy-c4'" in done.stdout
    assert "REGRESSED: acceptance" not in done.stdout


def test_without_a_baseline_the_case_fails_with_the_command_that_records_one(suite: Suite) -> None:
    done = suite.run(*ACCEPTANCE, "-x")

    assert done.returncode == 1
    assert "NO_BASELINE" in done.stdout
    assert 'pytest -k vllm-eagle3-tiny-toy-c1- --update-baselines --reason "…"' in done.stdout


def test_changed_settings_are_no_baseline_and_are_named(recorded_suite: Suite) -> None:
    recorded_suite.write_matrix(draft_tokens=2)

    done = recorded_suite.run(*ACCEPTANCE)

    assert done.returncode == 1
    assert "draft_tokens: 3 -> 2" in done.stdout


def test_silent_loss_of_speculation_is_invalid(recorded_suite: Suite) -> None:
    recorded_suite.script = Script(fault=Fault.SPEC_DISABLED)

    done = recorded_suite.run(*ACCEPTANCE, "-x")

    assert done.returncode == 1
    assert "INVALID" in done.stdout
    assert "SPEC_DISABLED" in done.stdout


def test_another_machine_judges_acceptance_and_skips_speed(recorded_suite: Suite) -> None:
    (folder,) = recorded_suite.baselines.iterdir()
    foreign = folder.with_name("cpu-some-other-avx2-8c")
    folder.rename(foreign)
    for path in foreign.iterdir():
        content = json.loads(path.read_text())
        content["environment"]["cpu"] = "some other"
        path.write_text(json.dumps(content))

    done = recorded_suite.run("tests/perf", "-q", "-rs", "-k", "c4")

    assert done.returncode == 0, done.stdout
    assert "NOT_COMPARABLE: throughput_tokens_per_s of 'vllm-none-tiny-toy-c4'" in done.stdout
    assert "against 'cpu-some-other-avx2-8c'" not in done.stdout.split("short test summary")[0]
    assert "record what this machine does" in done.stdout
    assert done.stdout.count("PASS") == 5


def test_a_corrupt_baseline_names_file_and_place_and_is_left_alone(recorded_suite: Suite) -> None:
    (path,) = recorded_suite.baselines.glob("*/vllm-eagle3-tiny-toy-c1.json")
    torn = path.read_text()[:100]
    path.write_text(torn)

    done = recorded_suite.run(*ACCEPTANCE)

    assert done.returncode == 1
    assert f"baseline '{path}': not JSON at line" in done.stdout
    assert "restore it with git" in done.stdout
    assert "Traceback" not in done.stdout
    assert path.read_text() == torn


def test_the_baselines_on_disk_are_what_the_server_did(recorded_once: Suite) -> None:
    content = msgspec.json.decode(recorded_once.recorded()["vllm-eagle3-tiny-toy-c1"])

    assert len(content["acceptance"]["prompts"]) == 10
    assert len(content["launches"]) == 2
    assert content["provenance"]["engine_version"] == "0.0.0+scripted"
    assert content["provenance"]["reason"] == "test"
