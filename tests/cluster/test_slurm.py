"""Servers as jobs: of submitit's own local executor, and of a Slurm that is scripted.

The scripted one takes what submitit gives to `sbatch`, `srun`, `sacct` and `scancel`.
"""

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.doubles.nvml.device import ScriptedGpu, build, environment, write_script
from tests.faults.running import ROOT, Hurt, wait_until
from tests.many.test_one_node import FAST, SLOW, cases, figures, gpus, hurt, lines_of

LOCAL = "--specreg-slurm=cluster=local"
PROGRAMS = ROOT / "tests" / "scripted" / "slurm"
_TIMES = 3


def running(run: Hurt, word: str) -> list[psutil.Process]:
    """Its processes with a word in their command."""
    found = []
    for one in run.processes():
        with contextlib.suppress(psutil.Error):
            if word in " ".join(one.cmdline()):
                found.append(one)
    return found


def outcomes(run: Hurt) -> set[str]:
    """What was said of all cases."""
    return {outcome for outcome, _ in figures(run.verdict()).values()}


def left_of(run: Hurt) -> list[str]:
    """What is left of it, and the desks of its jobs; its servers share no memory."""
    left = [line for line in run.left() if not line.startswith("shared")]
    return [*left, *lines_of(run), *(path.name for path in run.runs.glob("*/jobs/*"))]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Path]:
    """The folder of the jobs of a scripted queue."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    yield folder
    for path in folder.glob("*.group"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(path.read_text()), signal.SIGKILL)


def on_slurm(run: Hurt, queue: Path) -> Hurt:
    """The same on a machine that belongs to a cluster."""
    run.variables |= {
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "SCRIPTED_SLURM": str(queue),
    }
    return run


def jobs(queue: Path) -> list[Path]:
    """What the jobs that measure asked for, in the order of their submission."""
    found = [path for path in queue.glob("*.sh") if "specreg-survey" not in path.read_text()]
    return sorted(found, key=lambda path: int(path.stem))


def show_on_nodes(run: Hurt, queue: Path, *gpus: ScriptedGpu) -> None:
    """Gives the nodes GPUs, which the machine of the run hasn't."""
    library = run.folder / "libnvidia-ml.so.1"
    library = library if library.exists() else build(run.folder)
    variables = environment(library, write_script(run.folder / "gpus", gpus))
    exports = [f"export {name}={shlex.quote(text)}\n" for name, text in variables.items()]
    (queue / "node").write_text("".join(exports))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Hurt:
    """A run without jobs, of two servers on one GPU; a busy machine may make it invalid."""
    run, seen = hurt(tmp_path_factory.mktemp("plain"), 2, 1, FAST), set[str]()
    for _ in range(_TIMES):
        done = run.run()
        if (seen := outcomes(run)) == {"NO_BASELINE"}:
            return run
    pytest.fail(f"{_TIMES} plain runs, and the last one said {sorted(seen)}:\n{done.stdout}")


def test_the_verdicts_are_those_of_a_plain_run(tmp_path: Path, plain: Hurt) -> None:
    run = hurt(tmp_path, 2, 2, FAST)
    done = run.run(LOCAL)
    assert list(figures(run.verdict()).items()) == list(figures(plain.verdict()).items()), (
        done.stdout
    )
    assert [run.attempts(case) for case in cases(2)] == [1] * 6
    assert "--specreg-slurm: servers ran for" in done.stdout
    assert left_of(run) == []
    assert list(run.runs.glob("*/jobs")) == []


def test_a_worker_that_is_killed_loses_no_finished_case(tmp_path: Path) -> None:
    run = hurt(tmp_path, 1, 1, SLOW)
    first, second, third = cases(1)
    with run.start(LOCAL) as pytest_run:
        wait_until(run.is_measuring(second))
        (worker,) = running(run, "specreg.many.worker")
        worker.kill()
        output, _ = pytest_run.communicate(timeout=180)
    assert "begun again, its worker was killed by signal 9, in job " in output
    assert [run.attempts(case) for case in (first, second, third)] == [1, 2, 1]
    assert outcomes(run) == {"NO_BASELINE"}
    assert left_of(run) == []


@pytest.mark.parametrize(
    "words",
    [("submitit.core._submit",), ("submitit.local._local", "submitit.core._submit")],
    ids=["job", "job-and-queue"],
)
def test_a_job_that_is_lost_loses_no_finished_case(tmp_path: Path, words: tuple[str, ...]) -> None:
    run = hurt(tmp_path, 1, 1, SLOW)
    with run.start(LOCAL) as pytest_run:
        wait_until(run.is_measuring(cases(1)[1]))
        for word in words:
            (process,) = running(run, word)
            process.kill()
        output, _ = pytest_run.communicate(timeout=180)
    assert "begun again, its worker is gone: job " in output
    assert [run.attempts(case) for case in cases(1)] == [1, 2, 1]
    assert outcomes(run) == {"NO_BASELINE"}
    assert left_of(run) == []


def test_a_job_that_has_to_go_is_begun_again(tmp_path: Path) -> None:
    run = hurt(tmp_path, 1, 1, SLOW)
    with run.start(LOCAL) as pytest_run:
        wait_until(run.is_measuring(cases(1)[1]))
        (job,) = running(run, "submitit.core._submit")
        job.send_signal(signal.SIGUSR2)
        output, _ = pytest_run.communicate(timeout=180)
    assert "begun again, its worker had to go (SIGUSR2)" in output
    assert [run.attempts(case) for case in cases(1)] == [1, 2, 1]
    assert outcomes(run) == {"NO_BASELINE"}
    assert left_of(run) == []


def test_ctrl_c_once(tmp_path: Path) -> None:
    run = hurt(tmp_path, 1, 1, SLOW)
    with run.start(LOCAL) as pytest_run:
        wait_until(run.is_measuring(cases(1)[2]))
        pytest_run.send_signal(signal.SIGINT)
        output, _ = pytest_run.communicate(timeout=60)
        assert left_of(run) == []
    assert "type the same again with --specreg-resume" in output
    measured = {case for case, _ in figures(run.verdict())}
    assert measured == set(cases(1)[:2])
    again = run.run(LOCAL, "--specreg-resume")
    assert {case for case, _ in figures(run.verdict())} == set(cases(1)), again.stdout
    assert [run.attempts(case) for case in cases(1)[:2]] == [1, 1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("partition", "'partition': needs KEY=VALUE"),
        ("partiton=fast", "unknown setting 'partiton'; did you mean 'partition'?"),
        ("time=1:00:00", "time=1:00:00: needs whole minutes, 1 or more"),
        ("cluster=lsf", "unknown cluster 'lsf'"),
        ("partition=fast", "no 'sbatch' on PATH"),
        ("partition=fast --specreg-ray=auto", "--specreg-ray with --specreg-slurm"),
    ],
    ids=["word", "name", "number", "cluster", "nowhere", "two"],
)
def test_what_cannot_be_is_named_before_anything_starts(
    tmp_path: Path, settings: str, said: str
) -> None:
    run = hurt(tmp_path, 1, 1, FAST)
    done = run.run(*f"--specreg-slurm={settings}".split())
    assert said in done.stdout
    assert done.returncode == 4
    assert "Traceback" not in done.stdout
    assert run.logs() == left_of(run) == []


def test_a_job_asks_slurm_for_what_its_server_needs_and_the_user_says(
    tmp_path: Path, queue: Path, plain: Hurt
) -> None:
    run = on_slurm(hurt(tmp_path, 2, 2, FAST), queue)
    done = run.run("--specreg-slurm=partition=fast,exclude=a1,a2,time=7,mem_gb=64,gpu_type=h100")
    assert list(figures(run.verdict()).items()) == list(figures(plain.verdict()).items()), (
        done.stdout
    )
    assert len(jobs(queue)) == 2
    assert left_of(run) == []
    asked = {line for line in jobs(queue)[0].read_text().splitlines() if "SBATCH" in line}
    assert {
        "#SBATCH --partition=fast",
        "#SBATCH --exclude=a1,a2",
        "#SBATCH --time=7",
        "#SBATCH --mem=64GB",
        "#SBATCH --gpus-per-node=h100:1",
        "#SBATCH --cpus-per-task=3",
        "#SBATCH --nodes=1",
        "#SBATCH --no-requeue",
        "#SBATCH --signal=USR2@90",
    } <= asked
    assert not any("--exclusive" in line for line in asked)


def test_an_engine_does_not_look_for_its_modules_among_ours(tmp_path: Path, queue: Path) -> None:
    run = on_slurm(hurt(tmp_path, 1, 1, SLOW), queue)
    with run.start("--specreg-slurm=partition=fast"):
        wait_until(lambda: len(running(run, "vllm.entrypoints")) == 1)
        (server,) = running(run, "vllm.entrypoints")
        assert server.environ()["PYTHONPATH"] == run.environment()["PYTHONPATH"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--specreg-launches=0", "--specreg-launches: got 0, needed 1 or more"),
        ("--engine=sglang", "unknown engine 'sglang'"),
        ("--update-baselines --num-prompts=3 --reason=x", "--update-baselines with --num-prompts"),
        ("--specreg-resume", "--specreg-resume: there is no run in"),
        ("-n 2", "pytest-xdist: cases measured at the same time disturb one another; leave out -n"),
    ],
    ids=["launches", "engine", "prompts", "resume", "xdist"],
)
def test_nobody_waits_in_a_queue_for_what_cannot_be(
    tmp_path: Path, queue: Path, arguments: str, said: str
) -> None:
    run = on_slurm(hurt(tmp_path, 1, 1, FAST), queue)
    done = run.run("--specreg-slurm=partition=fast", *arguments.split())
    assert said in done.stdout
    assert done.returncode == 4
    assert "Traceback" not in done.stdout
    assert list(queue.glob("*.sh")) == []


def test_no_more_jobs_than_workers(tmp_path: Path, queue: Path) -> None:
    run = on_slurm(hurt(tmp_path, 2, 2, FAST), queue)
    (queue / "held").touch()
    with run.start("--specreg-slurm=partition=fast", "--specreg-workers=1") as pytest_run:
        wait_until(lambda: len(jobs(queue)) == 1)
        time.sleep(2)
        assert len(jobs(queue)) == 1
        (queue / "held").unlink()
        pytest_run.communicate(timeout=180)
    assert len(jobs(queue)) == 2
    assert outcomes(run) == {"NO_BASELINE"}


def test_a_queue_that_refuses_is_named_before_anything_starts(tmp_path: Path, queue: Path) -> None:
    run = on_slurm(hurt(tmp_path, 1, 1, FAST), queue)
    done = run.run("--specreg-slurm=partition=none")
    assert "can't be submitted, sbatch: error: invalid partition specified: none" in done.stdout
    assert done.returncode == 4
    assert "Traceback" not in done.stdout
    assert run.logs() == left_of(run) == []


def test_a_case_that_no_node_holds_fails_with_the_words_of_the_queue(
    tmp_path: Path, queue: Path
) -> None:
    run = on_slurm(hurt(tmp_path, 1, 1, FAST), queue)
    run.matrix += "\n[cases.parallel]\ntensor = 4\n"
    done = run.run("--specreg-slurm=partition=fast")
    assert "Batch job submission failed: Requested node configuration is not" in done.stdout
    assert "Traceback" not in done.stdout
    assert outcomes(run) == {"INVALID"}
    assert left_of(run) == []


def test_a_run_begins_where_there_is_no_gpu(tmp_path: Path, queue: Path, plain: Hurt) -> None:
    run = on_slurm(hurt(tmp_path, 2, 0, FAST), queue)
    show_on_nodes(run, queue, *gpus(2))
    done = run.run("--specreg-slurm=partition=fast")
    assert list(figures(run.verdict()).items()) == list(figures(plain.verdict()).items()), (
        done.stdout
    )
    assert run.verdict().environment == plain.verdict().environment
    assert left_of(run) == []


def test_a_node_without_a_gpu_is_named_before_anything_starts(tmp_path: Path, queue: Path) -> None:
    run = on_slurm(hurt(tmp_path, 1, 0, FAST), queue)
    done = run.run("--specreg-slurm=partition=fast")
    assert "the job that looked at a node had no GPU there" in done.stdout
    assert done.returncode == 4
    assert run.logs() == left_of(run) == []


def test_a_node_of_another_kind_measures_nothing(tmp_path: Path, queue: Path) -> None:
    run = on_slurm(hurt(tmp_path, 1, 0, FAST), queue)
    (one,) = gpus(1)
    show_on_nodes(run, queue, one)
    (queue / "held").touch()
    with run.start("--specreg-slurm=partition=fast") as pytest_run:
        wait_until(lambda: len(jobs(queue)) == 1)
        show_on_nodes(run, queue, replace(one, name="Scripted L4"))
        (queue / "held").unlink()
        output, _ = pytest_run.communicate(timeout=60)
    assert "it is 'gpu-scripted-l4" in output
    assert outcomes(run) == {"INVALID"}
    assert run.logs() == left_of(run) == []


def test_a_job_that_waits_is_taken_out_of_the_queue(tmp_path: Path, queue: Path) -> None:
    run = on_slurm(hurt(tmp_path, 2, 2, FAST), queue)
    (queue / "held").touch()
    with run.start("--specreg-slurm=partition=fast") as pytest_run:
        wait_until(lambda: len(jobs(queue)) == 2)
        pytest_run.send_signal(signal.SIGINT)
        pytest_run.communicate(timeout=30)
        states = [path.with_suffix(".state").read_text() for path in jobs(queue)]
        assert states == ["CANCELLED\n"] * 2
        assert left_of(run) == []


def test_a_node_that_fails_loses_no_finished_case(tmp_path: Path, queue: Path) -> None:
    run = on_slurm(hurt(tmp_path, 1, 1, SLOW), queue)
    with run.start("--specreg-slurm=partition=fast") as pytest_run:
        wait_until(run.is_measuring(cases(1)[1]))
        job = jobs(queue)[0].stem
        (queue / f"{job}.state").write_text("NODE_FAIL\n")
        os.killpg(int((queue / f"{job}.group").read_text()), signal.SIGKILL)
        wait_until(lambda: len(jobs(queue)) == 2)
        output, _ = pytest_run.communicate(timeout=180)
    assert f"begun again, its worker is gone: job {job} on node " in output
    assert "is NODE_FAIL" in output
    assert [run.attempts(case) for case in cases(1)] == [1, 2, 1]
    assert outcomes(run) == {"NO_BASELINE"}
    assert left_of(run) == []
