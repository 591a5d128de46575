"""72 cases in 18 server groups on eight scripted GPUs, whose servers take a fifth of real times.

On an H100 a pair of servers took 100 s to start and a case 80 s (fixtures/recordings/h100).
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from specreg.report.document import RunReport
from specreg.report.files import FILE_NAME, load_run_report
from tests.doubles.nvml.device import ScriptedGpu, build, environment, write_script
from tests.doubles.vllm.script import Script
from tests.plugin.conftest import PAIR, Suite, cases_of

GPUS = 8
SIZES = (8, 8, 7, 7, 6, 6, 5, 5, 4, 4, 3, 2, 2, 1, 1, 1, 1, 1)
"""How many cases each server group has."""
START_S = 20.0
CHOSEN = ("tests/perf", "-q", "-k", "throughput or acceptance")


def tier() -> str:
    """Eighteen pairs of servers; a case takes as long at any concurrency."""
    parts = ["needs_gpus = 1"]
    for group, size in enumerate(SIZES):
        parts.append(PAIR.format(name=f"m{group}"))
        for number in range(1, size + 1):
            load = {"concurrency": [number], "prompts": 8 * number, "output_cap_tokens": 32}
            parts.append(cases_of(f"m{group}", **load))
    return "\n".join(parts)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    """The suite on a machine with eight GPUs; locks of GPUs are its own."""
    folder = tmp_path_factory.mktemp("gpus")
    new_suite = Suite(folder)
    new_suite.script = Script(ready_after_s=START_S, step_ms=37.0)
    uuids = (f"GPU-{number}c217ed0-0000-4000-8000-000000000000" for number in range(GPUS))
    new_suite.gpus = tuple(ScriptedGpu(uuid=uuid) for uuid in uuids)
    new_suite.write_tier(tier())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECREG_CACHE", str(folder / "cache"))
        yield new_suite


def figures(report: RunReport) -> Mapping[tuple[str, str], float]:
    """By case and metric."""
    return {
        (verdict.case_id, verdict.metric): verdict.value or 0.0 for verdict in report.run.verdicts
    }


@pytest.fixture(scope="module")
def alone(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """What the tenth group measures with the machine for itself: four cases."""
    chosen = (*CHOSEN[:-1], "(throughput or acceptance) and m9-")
    report, _ = run(suite, tmp_path_factory.mktemp("alone"), *chosen)
    return report


def check_near_ideal(alone: RunReport, took_s: float, most_ratio: float) -> None:
    """Ideally the last GPU is done where each free one begins the longest group that is left."""
    assert alone.time is not None
    (pair,) = alone.time.pairs
    start_s = pair.phases_s["starting"]
    case_s = (pair.total_s - start_s) / SIZES[9]
    free_s = [0.0] * GPUS
    for size in sorted(SIZES, reverse=True):
        free_s[free_s.index(min(free_s))] += start_s + size * case_s
    ratio = took_s / max(free_s)
    times = f"start {start_s:.1f} s, case {case_s:.1f} s, ideal {max(free_s):.0f} s"
    print(f"{times}, took {took_s:.0f} s ({ratio:.3f})")  # noqa: T201 - what the test measured
    assert ratio <= most_ratio


def run(suite: Suite, runs: Path, *arguments: str) -> tuple[RunReport, float]:
    """The document of a run, and how many seconds it took."""
    suite.runs = runs
    suite.patience_s = 900.0
    began_s = time.monotonic()
    done = suite.run(*arguments)
    took_s = time.monotonic() - began_s
    assert done.returncode == 11, done.stdout + done.stderr
    (folder,) = runs.iterdir()
    return load_run_report(folder / FILE_NAME), took_s


def test_workers_come_near_the_ideal_and_measure_what_one_alone_does(
    suite: Suite, alone: RunReport, tmp_path: Path
) -> None:
    together, took_s = run(suite, tmp_path, *CHOSEN, "-n", str(GPUS))
    assert len(together.cases) == sum(SIZES)
    check_near_ideal(alone, took_s, 1.15)

    shared = figures(together)
    for (case_id, metric), value in figures(alone).items():
        tolerance_frac = 0.05 if metric == "throughput_tokens_per_s" else 0.0
        assert shared[case_id, metric] == pytest.approx(value, rel=tolerance_frac, abs=0), (
            case_id,
            metric,
        )


def test_four_nodes_of_two_gpus_come_near_the_ideal(
    suite: Suite, alone: RunReport, tmp_path: Path
) -> None:
    pytest.importorskip("ray.cluster_utils")
    from tests.shards.test_ray import cluster_of, own_options  # noqa: PLC0415 - needs an extra

    nodes = [node_variables(suite, tmp_path / str(number), number) for number in range(4)]
    into = tmp_path / "merged"
    with cluster_of(4, variables=nodes, num_cpus=2, num_gpus=2) as cluster:
        began_s = time.monotonic()
        suite.patience_s = 900.0
        done = suite.specreg(
            *("ray", f"--address={cluster.address}"),
            # Not carried: nodes of one machine unpack it into one folder, and take it away.
            *("--shared", "--shards=8", "--memory-gib=1", f"--into={into}", "--"),
            *(*CHOSEN[2:], *own_options(suite)),
        )
        took_s = time.monotonic() - began_s
    assert done.returncode == 11, done.stdout + done.stderr
    assert len(load_run_report(into / FILE_NAME).cases) == sum(SIZES)
    check_near_ideal(alone, took_s, 1.25)


def node_variables(suite: Suite, folder: Path, number: int) -> dict[str, str]:
    """The variables of a node that has two of the GPUs, and locks of its own."""
    folder.mkdir()
    library = build(folder)
    script = write_script(folder / "gpus", suite.gpus[2 * number : 2 * number + 2])
    variables = environment(library, script) | {"SPECREG_CACHE": str(folder / "cache")}
    return suite.environment() | variables
