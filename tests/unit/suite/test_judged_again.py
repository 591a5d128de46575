"""A recorded run is judged anew, and nothing is started or written."""

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from specreg.baselines.schema import stored_acceptance
from specreg.baselines.store import load_settings
from specreg.cli import app
from specreg.core.errors import UnsupportedError
from specreg.suite.configure import load_cases
from specreg.suite.options import Options
from specreg.suite.plan import PlanOptions
from tests.unit import builders
from tests.unit.builders.shard_folders import LENGTH, MergingMachine, merging_machine
from tests.unit.builders.tiers import tiny_tier


@pytest.fixture
def machine(tmp_path: Path) -> MergingMachine:
    return merging_machine(tmp_path)


def record(machine: MergingMachine) -> None:
    """Commit a baseline of the case whose steps accepted all drafts."""
    counts = builders.counts(0, 0, 0, 3)
    prompts = [builders.prompt_acceptance(counts, prompt_id=f"toy-{index}") for index in range(2)]
    acceptance = stored_acceptance(builders.acceptance_of(tuple(prompts)))
    baseline = builders.baseline(settings=load_settings(machine.root, machine.case))
    builders.record(
        machine.baselines, msgspec.structs.replace(baseline, acceptance=acceptance), machine.case.id
    )


def judge(machine: MergingMachine, run: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ("judge", str(run), f"--root={machine.root}", *arguments))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_judged_by_the_baseline_of_now_and_stays_as_it_is(machine: MergingMachine) -> None:
    run = machine.shard(commit="of another day")
    before = contents(run)
    assert judge(machine, run).exit_code == 11, "there is no baseline"

    record(machine)
    lost = judge(machine, run)

    assert lost.exit_code in {1, 10}, lost.output
    assert LENGTH in lost.output
    assert "commit of another d" in lost.output
    assert contents(run) == before
    assert not (machine.root / ".specreg").exists()


def test_a_tolerance_that_is_typed_replaces_that_of_the_case(machine: MergingMachine) -> None:
    run = machine.shard()
    record(machine)
    done = judge(machine, run, "--tolerance", f"{LENGTH}=0.9")
    assert "90 %" in done.output, done.output


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("acceptance=0.1", "unknown metric 'acceptance'"),
        (f"{LENGTH}=5", "'5' is no fraction between 0 and 1"),
    ],
)
def test_a_tolerance_that_makes_no_sense_is_refused(
    machine: MergingMachine, typed: str, problem: str
) -> None:
    done = judge(machine, machine.shard(), "--tolerance", typed)
    assert problem in str(done.exception)


def test_an_earlier_run_that_the_history_lacks_is_refused(machine: MergingMachine) -> None:
    done = judge(machine, machine.shard(), "--without", "20260101T000000-2")
    assert "unknown run '20260101T000000-2'; known: none" in str(done.exception)


def test_a_run_of_another_engine_version_is_judged_as_it_was_measured(
    machine: MergingMachine,
) -> None:
    """vLLM 0.31 runs `ngram` by V1 on a GPU, so its control was another server than today's."""
    tier = tiny_tier("none", "ngram", drafts={}, prompts=2, output_cap_tokens=8)
    with_gpus = tier.replace("needs_gpus = 0", "needs_gpus = 1")
    (machine.root / "fixtures/matrix/gpu.toml").write_text(with_gpus)
    measured = load_cases(machine.root, Options(engine_version="0.31.0"), "gpu")
    speculating = next(case for case in measured.cases if case.speculates)
    run = machine.shard(
        tier="gpu",
        gpus_gib=(80.0,),
        options=PlanOptions(engine_version="0.31.0"),
        names={speculating.id: (LENGTH,)},
        shards=((speculating.id,),),
        case=speculating,
    )
    done = judge(machine, run)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 11, "there is no baseline"


def test_a_run_of_an_earlier_version_of_specreg_is_refused(machine: MergingMachine) -> None:
    run = machine.shard()
    (run / "ledger.jsonl").rename(run / "journal.jsonl")
    for done in (judge(machine, run), machine.merge(run)):
        assert isinstance(done.exception, UnsupportedError)
        assert "journal.jsonl': was written by an earlier version" in str(done.exception)


def test_a_folder_without_a_run_is_named(machine: MergingMachine, tmp_path: Path) -> None:
    done = judge(machine, tmp_path)
    assert "plan.json" in str(done.exception)
