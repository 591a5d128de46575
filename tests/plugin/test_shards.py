"""A run in shards, merged, and by workers of pytest-xdist: the same as one process says."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from specreg.report.document import RunVerdict
from specreg.report.files import FILE_NAME, load_run_report
from tests.doubles.vllm.script import Script
from tests.plugin.conftest import Suite, decided
from tests.plugin.preloaded import PreloadedPython
from tests.unit.builders.sharded_runs import CASES, CHOSEN, TIER

SHARED = (*CHOSEN[2:], "-n", "2")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, preloaded: PreloadedPython) -> Suite:
    """A suite of three servers, of which acceptance was recorded by merging two shards."""
    suite = Suite(tmp_path_factory.mktemp("shards"), preloaded)
    suite.write_tier(TIER)
    update = ("--update-baselines", "--reason=test", "--specreg-launches=1")
    for number in (1, 2):
        done = suite.run(*CHOSEN, f"--specreg-shard={number}/2", *update)
        assert done.returncode == 0, done.stdout
        assert suite.recorded() == {}, "a shard writes none"
    done = suite.merge(
        *suite.runs.iterdir(), into=suite.folder / "recording", arguments=["--update-baselines"]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(suite.recorded()) == CASES
    return suite


def words(verdict: RunVerdict) -> Mapping[tuple[str, str], tuple[str, float | None]]:
    """By case and metric, the outcome and the value."""
    return {
        (metric_verdict.case_id, metric_verdict.metric): (
            metric_verdict.outcome,
            metric_verdict.value,
        )
        for metric_verdict in verdict.verdicts
    }


def beside(recorded: Suite, name: str) -> Suite:
    """The same suite with a folder of runs of its own."""
    recorded.runs = recorded.folder / name
    return recorded


def test_shards_that_are_merged_say_what_one_process_says(recorded: Suite) -> None:
    alone = beside(recorded, "alone")
    assert alone.run(*CHOSEN).returncode == 0
    expected = words(alone.verdict())
    suite = beside(recorded, "cut")
    for number in (1, 2):
        done = suite.run(*CHOSEN, f"--specreg-shard={number}/2")
        assert done.returncode == 0, done.stdout
    shards = sorted(suite.runs.iterdir(), key=lambda run: run.name[-4:])
    parts = [words(decided(run)) for run in shards]
    assert not parts[0].keys() & parts[1].keys()
    into = suite.folder / "merged"
    done = suite.merge(*shards[::-1], into=into)
    assert done.returncode == 0, done.stdout + done.stderr
    assert words(decided(into)) == expected == {**parts[0], **parts[1]}
    assert (into / "report.html").exists()
    assert (into / "junit.xml").read_text().count("<testcase") == len(expected)
    before = contents(into)
    assert suite.merge(*shards[::-1], into=into).returncode == 0
    assert contents(into) == before, "merged again: the same bytes"

    half_merge = suite.merge(shards[0], into=suite.folder / "half")
    assert half_merge.returncode == 10, half_merge.stdout
    cure = "run it with --specreg-shard=2/2, and merge again"
    assert f"SHARD_MISSING: shard 2/2 isn't there; {cure}" in half_merge.stdout
    half = words(decided(suite.folder / "half"))
    assert half.keys() == expected.keys()
    assert {half[key][0] for key in parts[1]} == {"INVALID"}

    empty = suite.folder / "empty"
    empty.mkdir()
    begun = suite.merge(empty, shards[0], into=suite.folder / "begun")
    assert begun.returncode == 10, begun.stderr
    assert f"'{empty}': no plan.json, so it ended before it measured anything" in begun.stdout

    document = json.loads((shards[1] / "report.json").read_text())
    document["run"]["exit_status"] = 1
    (shards[1] / "report.json").write_text(json.dumps(document))
    failed = suite.merge(*shards, into=suite.folder / "failed")
    assert failed.returncode == 1
    assert "shard 2/2 ended with status 1, which its verdicts don't explain" in failed.stdout

    (shards[1] / "report.json").unlink()  # it was killed after it had measured
    died = suite.merge(*shards, into=suite.folder / "died")
    assert "shard 2/2 died before it was done" in died.stdout
    assert words(decided(suite.folder / "died")) == expected, "what it had finished counts"

    itself = suite.merge(*shards, into=shards[0])
    assert itself.returncode == 10
    assert "is one of the shards; name another folder" in itself.stderr
    assert (shards[0] / "ledger.jsonl").stat().st_size

    plan = json.loads((shards[1] / "plan.json").read_text())
    for name, value in (("commit", "other"), ("shards", plan["shards"][:1])):
        (shards[1] / "plan.json").write_text(json.dumps(plan | {name: value}))
        refused = suite.merge(*shards, into=suite.folder / "other")
        assert refused.returncode == 10
        assert f"{name} differs: " in refused.stderr
        assert "merge only the shards of one run" in refused.stderr


def contents(folder: Path) -> Mapping[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_workers_of_xdist_say_what_one_process_says(recorded: Suite) -> None:
    suite = beside(recorded, "workers")
    done = suite.run(*CHOSEN, "-n", "2")
    assert done.returncode == 0, done.stdout
    assert "24 passed" in done.stdout
    (run,) = suite.runs.iterdir()
    names = {path.name for path in run.iterdir()}
    assert "shards" not in names
    assert {"report.html", "ledger.jsonl", "verdict.json", "logs"} <= names
    assert {outcome for outcome, _ in words(decided(run)).values()} == {"PASS"}
    time = load_run_report(run / FILE_NAME).time
    assert time is not None
    assert len(time.pairs) == 2, "where the time of the workers went"
    again = suite.run(*CHOSEN, "-n", "2", "--specreg-resume")
    assert again.returncode == 0, again.stdout
    assert words(suite.verdict()) == words(decided(run))
    assert len(list(suite.runs.iterdir())) == 1
    assert (run / "ledger.jsonl").read_text().count('"Launched"') == 4, "nothing is measured again"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("-n", "2"), 4, "without a GPU servers share the processor, and speeds measured at the"),
        (("-k", "ngram and c1 and acceptance_length", "-n", "2", "--dist=load"), 0, ""),
        ((*SHARED, "--dist=worksteal"), 4, "leave out --dist, or give --dist=loadgroup"),
        ((*SHARED, "--specreg-shard=1/2"), 4, "a shard is measured by one process"),
        (("--specreg-shards=1/2",), 4, "did you mean: --specreg-shard"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(
    recorded: Suite, arguments: tuple[str, ...], status: int, message: str
) -> None:
    suite = beside(recorded, f"refused-{len(list(recorded.folder.iterdir()))}")
    done = suite.run("tests/perf", "-q", *arguments)
    assert done.returncode == status, done.stdout + done.stderr
    assert message in (done.stdout + done.stderr).replace("\n", " ")


def test_the_shards_are_listed(recorded: Suite) -> None:
    done = beside(recorded, "listed").run(*CHOSEN, "--specreg-shard=list/2")
    assert done.returncode == 0, done.stdout
    assert "shard  GPUs  GiB of each  minutes  cases" in done.stdout
    assert "\nas JSON: " in done.stdout
    assert not recorded.runs.exists()


def test_an_unreadable_baseline_ends_the_workers_before_anything_starts(recorded: Suite) -> None:
    suite = beside(recorded, "unreadable")
    (path,) = suite.baselines.glob("*/vllm-eagle3-tiny-toy-c1.json")
    content = path.read_text()
    path.write_text("{")
    done = suite.run(*CHOSEN, "-n", "2")
    path.write_text(content)
    assert done.returncode == 11, done.stdout
    assert f"baseline '{path}'" in done.stdout


@pytest.mark.parametrize("stop", ["-x", "--maxfail=1"])
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_a_regression_that_stops_the_run_has_status_1(
    recorded: Suite, stop: str, workers: tuple[str, ...]
) -> None:
    """pytest-xdist calls this an interrupt, whose status is 2."""
    suite = beside(recorded, f"stopped{stop}{len(workers)}")
    suite.script = Script(acceptance_probs=(0.1,))
    done = suite.run(*CHOSEN, stop, *workers)
    assert done.returncode == 1, done.stdout
    assert done.stdout.splitlines()[-1].startswith("exit status 1: ")
    verdict = suite.verdict()
    assert verdict.exit_status == 1
    assert "REGRESSED" in {outcome for outcome, _ in words(verdict).values()}
