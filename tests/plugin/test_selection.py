"""Which cases run, in which order, and how often a server starts."""

import shlex

import pytest

from specreg.correctness.checks import CHECKS
from specreg.matrix.tier import load_tier, tier_names
from specreg.measurement.metrics import METRICS
from specreg.suite.document import LOGS_FOLDER
from specreg.telemetry.identity import find_gpus
from tests.plugin.conftest import ROOT, Suite
from tests.plugin.preloaded import PreloadedPython

TIERS = ROOT / "fixtures/matrix"


def _ids(output: str) -> list[str]:
    return [line.split("[")[1].rstrip("]") for line in output.splitlines() if "::" in line]


@pytest.mark.parametrize("name", tier_names(TIERS))
def test_each_tier_here_has_a_test_of_each_case_and_metric_on_any_machine(
    name: str, preloaded: PreloadedPython
) -> None:
    done = preloaded.run(
        (
            *("pytest", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"),
            *("tests/perf", "--collect-only", "-q", f"--specreg-tier={name}"),
        )
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = {
        f"{case.id}-{metric.name}"
        for case in load_tier(TIERS, name).chosen(find_gpus().memory_gib).cases
        for metric in METRICS.values()
        if metric.is_judged(case)
    }
    collected = set(_ids(done.stdout))
    assert wanted <= collected
    assert {test_id.rpartition("-")[2] for test_id in collected - wanted} <= CHECKS.keys()


def test_acceptance_comes_before_speeds_and_both_in_the_order_of_the_servers(suite: Suite) -> None:
    done = suite.run("tests/perf", "--co", "-q")

    test_ids = _ids(done.stdout)
    assert "vllm-eagle3-tiny-toy-c4-throughput_tokens_per_s" in test_ids
    by_launch = {name for name, metric in METRICS.items() if metric.by_launch}
    order = [
        (item.rsplit("-", 1)[1] in by_launch, ["none", "eagle3"].index(item.split("-")[1]))
        for item in test_ids
    ]
    assert order == sorted(order)
    speeds = {"throughput_tokens_per_s", "ttft_p50_ms", "tpot_p50_ms"}
    plain = {item.rsplit("-", 1)[1] for item in test_ids if "-none-" in item}
    assert plain == speeds | {"energy_j_per_token", "power_w"}


def test_a_single_file_and_a_subfolder_know_the_options(suite: Suite) -> None:
    of_file = suite.run("tests/perf/test_speedup.py", "--co", "-q")
    of_folder = suite.run("--co", "-q", cwd=ROOT / "tests" / "perf")
    assert len(_ids(of_file.stdout)) == 2
    assert len(_ids(of_folder.stdout)) > 2


@pytest.mark.parametrize("recording", [(), ("--update-baselines",)], ids=["night", "recording"])
def test_a_mistyped_name_gets_the_command_that_was_meant_and_leaves_no_run(
    suite: Suite, recording: tuple[str, ...]
) -> None:
    done = suite.run("tests/perf", "-q", "-k", "eagel3 and c4", *recording)

    (hint,) = (line for line in done.stdout.splitlines() if line.startswith("  pytest -k"))
    typed = shlex.split(hint)
    assert typed[:3] == ["pytest", "-k", "eagle3 and c4"]
    assert set(recording) <= set(typed)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not suite.runs.exists()


def test_a_name_that_is_like_no_other_gets_the_command_that_lists_the_cases(suite: Suite) -> None:
    done = suite.run("tests/perf", "-q", "-k", "llama70b")
    assert "specreg matrix --tier cpu" in done.stdout
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not suite.runs.exists()


def test_each_server_starts_once_for_the_acceptance_and_the_speeds_of_all_its_cases(
    recorded_suite: Suite,
) -> None:
    words = "acceptance_length or throughput"
    recorded_suite.run_undisturbed("tests/perf", "-q", "-k", words)

    # Each start has a log of its own. A launch that confirms a loss isn't one of the planned ones.
    run = max(recorded_suite.runs.iterdir())
    logs = [path.stem for path in (run / LOGS_FOLDER).glob("*.log") if "launch" not in path.stem]
    assert sorted(logs) == ["vllm-eagle3-tiny", "vllm-none-tiny"]
