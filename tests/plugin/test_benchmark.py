"""Each measured case is a benchmark of pytest-benchmark, whose rounds are those of the ledger."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from specreg.measurement.metrics import METRICS, tpot_ms
from specreg.runs.ledger import read_ledger
from tests.plugin.conftest import WITHOUT_TOLERANCES, Suite

SPEEDS = ["throughput_tokens_per_s", "ttft_p50_ms", "tpot_p50_ms", "energy_j_per_token", "power_w"]
FIRST = ("--benchmark-autosave", "--benchmark-compare")
BUSY = {0, 1, 10}
"""What a run may end with whose speeds aren't looked at."""


@pytest.fixture(scope="module")
def benched(recorded_once: Suite, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """A suite that was run once with pytest-benchmark, which wrote a file and saved another."""
    suite = Suite(tmp_path_factory.mktemp("benched"), recorded_once.preloaded)
    suite.baselines = recorded_once.baselines
    suite.benchmarks = True
    assert "benchmark 'vllm" not in run(suite, "first.json"), "its table wasn't asked for"
    return suite


def run(suite: Suite, name: str, *arguments: str) -> str:
    """What a run says that writes and saves its benchmarks."""
    store = f"--benchmark-storage={suite.folder / 'saved'}"
    saving = (f"--benchmark-json={suite.folder / name}", "--benchmark-autosave", store)
    done = suite.run("tests/perf", "-q", *saving, *arguments)
    assert done.returncode in BUSY, done.stdout + done.stderr
    return done.stdout + done.stderr


def entries(path: Path) -> dict[str, dict[str, Any]]:
    """The benchmarks of a file by the cases' ids."""
    benchmarks = json.loads(path.read_text())["benchmarks"]
    return {entry["param"].removesuffix("-tpot_s"): entry for entry in benchmarks}


def rounds_s(folder: Path) -> dict[str, list[float]]:
    """By case the median TPOT of each round of its last launch, by the requests of the ledger."""
    launches = sorted(
        read_ledger(folder / "ledger.jsonl").measured.items(), key=lambda launch: launch[0].launch
    )
    return {
        key.case_id: [
            statistics.median(
                time_ms for time_ms in map(tpot_ms, part.traces) if time_ms is not None
            )
            / 1000
            for part in (measured.replay.rounds if measured.replay else ())
        ]
        for key, measured in launches
    }


def test_the_statistics_are_of_the_rounds_in_the_ledger(benched: Suite) -> None:
    (folder,) = benched.runs.iterdir()
    benchmarks = entries(benched.folder / "first.json")
    times_s = rounds_s(folder)
    data = {name: entry["stats"]["data"] for name, entry in benchmarks.items()}
    assert data == times_s
    assert len(times_s) == 4
    for name, entry in benchmarks.items():
        assert f"test_throughput.py::test_throughput_is_recorded[{name}-" in entry["fullname"]

    drafted = benchmarks["vllm-eagle3-tiny-toy-c4"]
    assert drafted["group"] == "vllm tiny toy c4"
    assert drafted["params"]["method"] == "eagle3"
    verdicts = [v for v in benched.verdict().verdicts if v.case_id == "vllm-eagle3-tiny-toy-c4"]
    values = {
        verdict.metric: verdict.value
        for verdict in verdicts
        if verdict.metric in METRICS and verdict.value is not None
    }
    assert drafted["extra_info"].pop("outcome") in {verdict.outcome for verdict in verdicts}
    assert drafted["extra_info"] == values
    assert {"acceptance_pos3_frac", "speedup_ratio", "ttft_p50_ms"} <= values.keys()


def test_a_run_is_compared_with_one_that_was_saved(benched: Suite) -> None:
    shown = ("--benchmark-compare", "--benchmark-group-by=param:load", "--benchmark-columns=ops")
    output = run(benched, "second.json", "-k", "c4", *shown)
    assert "benchmark 'load=c4': 4 tests" in output
    assert "[vllm-eagle3-tiny-toy-c4-tpot_s] (NOW)" in output
    assert "machine_info is different" not in output
    assert len(list((benched.folder / "saved").rglob("*.json"))) == 2


def test_shards_that_are_merged_have_the_same_file(benched: Suite) -> None:
    benched.runs = benched.folder / "cut"
    files = [benched.folder / f"{number}.json" for number in (1, 2)]
    for number, file in enumerate(files, start=1):
        run(benched, file.name, f"--specreg-shard={number}/2")
    into = benched.folder / "merged"
    done = benched.merge(*benched.runs.iterdir(), into=into)
    path = into / "benchmark.json"
    assert f"benchmarks of the run, as --benchmark-json writes them: {path}" in done.stdout
    merged = json.loads(path.read_text())
    alone = json.loads(files[0].read_text())
    assert merged.keys() == alone.keys()
    assert merged["machine_info"] == alone["machine_info"]
    parts = [entries(file) for file in files]
    assert all(parts)
    expected = parts[0] | parts[1]
    benchmarks = entries(path)
    for name, benchmark in benchmarks.items():
        for entry in (benchmark, expected[name]):
            del entry["extra_info"]["outcome"]  # more verdicts were looked at
        stats = benchmark.pop("stats")
        expected_stats = expected[name].pop("stats")
        for exact in ("data", "outliers"):
            assert stats.pop(exact) == expected_stats.pop(exact)
        assert stats == pytest.approx(expected_stats, rel=1e-9)
    assert benchmarks == expected


def test_a_case_whose_speeds_are_only_shown_is_a_benchmark_too(suite: Suite) -> None:
    suite.write_tier(f"{WITHOUT_TOLERANCES}    shown = {SPEEDS}\n")
    suite.benchmarks = True
    run(suite, "own.json", "-k", "recorded and c4")
    case_ids = set(entries(suite.folder / "own.json"))
    assert case_ids == {"vllm-eagle3-tiny-toy-c4"}, "nothing is judged of the other, nor measured"


@pytest.mark.parametrize(
    "options", [(), ("-n", "2", *FIRST), ("-k", "acceptance", *FIRST)], ids=str
)
def test_what_would_record_nothing_is_no_test(suite: Suite, options: tuple[str, ...]) -> None:
    suite.benchmarks = True
    storage = f"--benchmark-storage={suite.folder}"
    done = suite.run("tests/perf", "--co", "-q", storage, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recorded" not in done.stdout


def test_an_option_of_what_is_not_installed_says_what_to_type(suite: Suite) -> None:
    done = suite.run("tests/perf", "--benchmark-autosave")
    assert done.returncode == 4
    assert "pytest-benchmark isn't installed: uv pip install" in done.stderr
