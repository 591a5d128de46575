"""Real vLLM in two shards at once, a core each: the figures are those of each shard alone.

`nox -s shards -- -m vllm`.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from specreg.verdicts.verdict import Verdict
from tests.plugin.conftest import PAIR, Suite, cases_of, decided, start_here

pytestmark = pytest.mark.vllm
SETTINGS = {"prompts": 20, "output_cap_tokens": 128, "dtype": "float32"}
SPEEDS = ("throughput_tokens_per_s", "ttft_p50_ms", "tpot_p50_ms")
OWN = {"engine_env.OMP_NUM_THREADS": "1", **{f"tolerances.{name}": 0.6 for name in SPEEDS}}
"""By 0.6 the launches of a core differ here."""
CASES = cases_of("tiny", methods=["eagle3", "ngram"], **SETTINGS, **OWN)
TIER = f"needs_gpus = 0\n{PAIR.format(name='tiny')}{CASES}"
SHARDS = (1, 2)


def start(suite: Suite, number: int, *arguments: str) -> subprocess.Popen[str]:
    """A shard that has one core of this machine."""
    command = suite.command("tests/perf", "-q", "-k", "acceptance or throughput")
    own_arguments = [
        argument for argument in command if not argument.startswith("--specreg-engine-python")
    ]
    shard = f"--specreg-shard={number}/{len(SHARDS)}"
    return start_here(
        ("/usr/bin/taskset", "-c", str(number - 1), *own_arguments, shard, *arguments)
    )


def end(shard: subprocess.Popen[str], *statuses: int) -> None:
    output, _ = shard.communicate(timeout=1200)
    assert shard.returncode in statuses, output


def verdicts_of(runs: Sequence[Path]) -> Mapping[tuple[str, str], Verdict]:
    """By case and metric."""
    return {
        (verdict.case_id, verdict.metric): verdict
        for run in runs
        for verdict in decided(run).verdicts
    }


def test_two_shards_at_once_measure_what_each_does_alone(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    suite.write_tier(TIER)
    for number in SHARDS:
        end(start(suite, number, "--update-baselines", "--reason=alone"), 0)
    recording = suite.merge(
        *suite.runs.iterdir(), into=tmp_path / "recording", arguments=["--update-baselines"]
    )
    assert recording.returncode == 0, recording.stdout + recording.stderr
    alone = verdicts_of([tmp_path / "recording"])

    suite.runs = tmp_path / "together"
    for shard in [start(suite, number) for number in SHARDS]:
        end(shard, 0, 10)  # a speed may be undecided
    together = verdicts_of(list(suite.runs.iterdir()))

    assert together.keys() == alone.keys()
    for key, verdict in together.items():
        of_baseline = verdict.comparison
        cited = (of_baseline.expected, verdict.value, of_baseline.low_frac, of_baseline.high_frac)
        print(*key, *cited)  # noqa: T201 - cited
        if verdict.metric.startswith("acceptance"):
            assert (str(verdict.outcome), verdict.value) == ("PASS", alone[key].value), verdict
        else:
            assert verdict.comparison.low_frac is not None, verdict
            assert verdict.comparison.high_frac is not None, verdict
            assert verdict.comparison.low_frac <= 0 <= verdict.comparison.high_frac, (
                "within what launches alone differ by"
            )
