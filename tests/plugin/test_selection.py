"""Which cases run, in which order, and how often a server starts."""

from tests.plugin.conftest import ROOT, Suite


def _ids(output: str) -> list[str]:
    return [line.split("[")[1].rstrip("]") for line in output.splitlines() if "::" in line]


def test_an_id_names_engine_method_models_dataset_load_and_metric(suite: Suite) -> None:
    done = suite.run("tests/perf", "--co", "-q", "-k", "eagle3 and c4 and throughput")

    assert _ids(done.stdout) == ["vllm-eagle3-tiny-toy-c4-throughput_tokens_per_s"]


def test_a_case_without_speculation_has_no_acceptance_and_no_speedup(suite: Suite) -> None:
    done = suite.run("tests/perf", "--co", "-q", "-k", "none and c1")

    metrics = {item.rsplit("-", 1)[1] for item in _ids(done.stdout)}
    speeds = {"throughput_tokens_per_s", "ttft_p50_ms", "tpot_p50_ms"}
    assert metrics == speeds | {"energy_j_per_token", "power_w"}


def test_the_cases_of_a_server_stand_together(suite: Suite) -> None:
    done = suite.run("tests/perf", "--co", "-q")

    methods = [item.split("-")[1] for item in _ids(done.stdout)]
    assert methods == sorted(methods, key=["none", "eagle3"].index)
    assert set(methods) == {"none", "eagle3"}


def test_a_single_file_and_a_subfolder_know_the_options(suite: Suite) -> None:
    of_file = suite.run("tests/perf/test_speedup.py", "--co", "-q")
    of_folder = suite.run("--co", "-q", cwd=ROOT / "tests" / "perf")

    assert len(_ids(of_file.stdout)) == 2
    assert len(_ids(of_folder.stdout)) > 2


def test_each_server_starts_once_for_all_its_cases(recorded_suite: Suite) -> None:
    done = recorded_suite.run("tests/perf", "-v", "--setup-show", "-k", "acceptance_length")

    lines = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("SETUP")]
    started = [line[2].split("[")[0] for line in lines]
    assert started.count("control") == 1
    assert started.count("server") == 1
    assert started.count("measurement") == 2


def test_a_drafter_that_learns_gets_a_server_for_each_case_and_launch(suite: Suite) -> None:
    text = (suite.folder / "cpu.toml").read_text()
    suite.write_tier(text.replace('"eagle3"]', '"suffix"]'))

    suite.run("tests/perf", "-q", "-k", "acceptance_length", "--specreg-launches=2")

    (logs,) = suite.runs.glob("*/logs")
    started = {path.stem for path in logs.glob("*.log")}
    assert {name for name in started if "suffix" in name} == {
        "vllm-suffix-tiny-toy-c1",
        "vllm-suffix-tiny-toy-c4",
        "vllm-suffix-tiny-toy-c1-launch2",
        "vllm-suffix-tiny-toy-c4-launch2",
    }


def test_an_unknown_tier_lists_the_known_ones(suite: Suite) -> None:
    done = suite.run("tests/perf", "--specreg-tier=gpuu", "--specreg-matrix=fixtures/matrix")

    assert done.returncode == 4
    assert "unknown tier 'gpuu'; did you mean 'gpu'? known: cpu, cpu_drawn, gpu" in done.stderr


def test_an_unknown_method_lists_the_known_ones(suite: Suite) -> None:
    text = (suite.folder / "cpu.toml").read_text()
    suite.write_tier(text.replace('"eagle3"]', '"eagle33"]'))

    done = suite.run("tests/perf")

    assert done.returncode == 4
    assert "unknown method 'eagle33'; did you mean 'eagle3'?" in done.stderr


def test_a_missing_model_folder_is_named_before_a_server_starts(suite: Suite) -> None:
    text = (suite.folder / "cpu.toml").read_text()
    suite.write_tier(text.replace("tiny/target", "tiny/gone"))

    done = suite.run("tests/perf", "-x", "-k", "none and c1")

    assert done.returncode == 10
    assert "fixtures/models/tiny/gone': config.json is missing" in done.stdout
    assert "Traceback" not in done.stdout


def test_without_a_gpu_the_gpu_tier_is_skipped_with_that_reason(suite: Suite) -> None:
    suite.write_matrix(needs_gpus=64)

    done = suite.run("tests/perf", "-q", "-rs", "-k", "none and c1")

    assert done.returncode == 0
    assert "needs 64 GPU(s), this machine has" in done.stdout
    assert "5 skipped" in done.stdout


def test_without_a_gpu_a_required_gpu_tier_fails_at_once(suite: Suite) -> None:
    suite.write_matrix(needs_gpus=64)

    done = suite.run("tests/perf", "--specreg-require-tier")

    assert done.returncode == 4
    assert "needs 64 GPU(s), this machine has" in done.stderr


def test_what_no_case_has_leaves_no_test_behind(suite: Suite) -> None:
    """Nothing stands beside an attached server: no speedup, and no text to hold its own against."""
    attached = ("--specreg-attach=http://127.0.0.1:9", "--co", "-q", "-k", "not none")

    done = suite.run("tests/perf", *attached)

    assert done.returncode == 0, done.stdout
    assert "test_speedup" not in done.stdout
    assert "test_lossless" not in done.stdout
    assert "test_acceptance" in done.stdout
