"""Several servers at once on one machine of scripted GPUs: the same verdicts, in less time."""

import contextlib
import dataclasses
import signal
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from specreg.measurement.journal import load_journal
from specreg.report.document import RunVerdict
from tests.doubles.nvml.device import ScriptedGpu
from tests.doubles.vllm.script import Script
from tests.faults.running import Hurt, wait_until

GIB = 2**30
MATRIX = """
needs_gpus = 1

[models.tiny]
target = "fixtures/models/tiny/target"
drafts = {{{{ eagle3 = "fixtures/models/tiny/eagle3" }}}}

[[cases]]
engine = "vllm"
methods = {methods}
models = "tiny"
dataset = "toy"
draft_tokens = {draft_tokens}
concurrency = [1, 2, 3]
prompts = 20
output_cap_tokens = 64
dtype = "float32"
"""
FAST, SLOW = Script(step_ms=2.0), Script(step_ms=16.0)
MOST = 1.25


def gpus(count: int) -> tuple[ScriptedGpu, ...]:
    """So many idle GPUs of one kind."""
    return tuple(
        ScriptedGpu(uuid=f"GPU-{number:08d}", memory_used_bytes=GIB // 2) for number in range(count)
    )


def hurt(folder: Path, servers: int, count: int, script: Script) -> Hurt:
    """Three cases on each of so many servers, on a machine of so many GPUs."""
    folder.mkdir(exist_ok=True)
    methods, drafts = _servers(servers)
    matrix = MATRIX.format(methods=msgspec.json.encode(methods).decode(), draft_tokens=drafts)
    return Hurt(folder=folder, matrix=matrix, gpus=gpus(count), script=script)


def cases(servers: int) -> list[str]:
    """Their cases, in the order of the matrix."""
    methods, drafts = _servers(servers)
    names = [(method, "" if many == 3 else f"-k{many}") for method in methods for many in drafts]
    return [f"vllm-{method}-tiny{name}-toy-c{load}" for method, name in names for load in (1, 2, 3)]


def workers(run: Hurt) -> list[psutil.Process]:
    """Its workers."""
    return [one for one in run.processes() if "specreg.many.worker" in " ".join(one.cmdline())]


def seen_gpus(run: Hurt) -> list[str]:
    """What each server that runs now sees, sorted."""
    found = []
    for one in run.processes():
        with contextlib.suppress(psutil.Error):
            if "vllm.entrypoints" in " ".join(one.cmdline()):
                found.append(one.environ()["CUDA_VISIBLE_DEVICES"])
    return sorted(found)


def figures(verdict: RunVerdict) -> dict[tuple[str, str], tuple[str, float | None]]:
    """What was said of each metric of each case."""
    return {(one.case_id, one.metric): (one.outcome.value, one.value) for one in verdict.verdicts}


def lines_of(run: Hurt) -> list[str]:
    """The files that its workers left and the run didn't take into its own journal."""
    return [path.name for path in run.runs.glob("*/parts/*")]


def is_part_of(path: Path, case_id: str) -> bool:
    """Whether a file is what an attempt at a case writes."""
    return path.suffix == ".jsonl" and path.name.startswith(f"{case_id}.")


def alone_s(run: Hurt) -> float:
    """How long the only server of a run was measured: from the first case's begin to the end."""
    (journal,) = run.runs.glob("*/journal.jsonl")
    begun = [line["at_s"] for line in run.journal() if line["type"] == "Begun"]
    assert isinstance(begun[0], float)
    return journal.stat().st_mtime - begun[0]


def test_the_verdicts_are_those_of_a_plain_run(tmp_path: Path) -> None:
    plain = hurt(tmp_path / "plain", 3, 1, FAST)
    many = hurt(tmp_path / "many", 3, 4, FAST)
    said = plain.run()
    done = many.run("--specreg-workers", "auto")
    assert done.returncode == said.returncode, done.stdout
    assert figures(many.verdict()) == figures(plain.verdict())
    assert list(figures(many.verdict())) == list(figures(plain.verdict()))
    assert [many.attempts(case) for case in cases(3)] == [1] * 9
    assert len(list(many.runs.iterdir())) == 1
    assert lines_of(many) == many.left() == []
    assert {path.name for path in many.runs.glob("*/*")} - {
        path.name for path in plain.runs.glob("*/*")
    } <= {"parts", "workers"}


def test_each_server_has_a_gpu_of_its_own(tmp_path: Path) -> None:
    run = hurt(tmp_path, 3, 2, SLOW)
    seen = set()

    def two() -> bool:
        now = seen_gpus(run)
        seen.add(tuple(now))
        return len(now) == 2

    with run.start("--specreg-workers=auto") as pytest_run:
        wait_until(two)
        held = {line for line in run.left() if line.startswith("lock")}
        while pytest_run.poll() is None:
            two()
            time.sleep(0.2)
        output, _ = pytest_run.communicate()
    both = tuple(gpu.uuid for gpu in gpus(2))
    assert both in seen
    assert seen <= {(), both, both[:1], both[1:]}
    assert held == {f"lock {uuid}.lock" for uuid in both}
    assert "the 2 GPU(s) stood idle for" in output


def test_seventy_two_cases_on_eight_gpus(tmp_path: Path) -> None:
    """The ideal: three servers' cases on each GPU, measured without a pause."""
    slow = Script(step_ms=40.0)
    alone = hurt(tmp_path / "alone", 1, 1, slow)
    alone.run()
    ideal_s = 24 / 8 * alone_s(alone)
    many = hurt(tmp_path / "many", 24, 8, slow)
    started = time.monotonic()
    many.patience_s = 500.0
    done = many.run("--specreg-workers=auto")
    took_s = time.monotonic() - started
    print(f"ideal {ideal_s:.1f} s, ratio {took_s / ideal_s:.2f}")  # noqa: T201 - shown by -rP
    print([line for line in done.stdout.splitlines() if "idle" in line])  # noqa: T201
    assert {case for case, _ in figures(many.verdict())} == set(cases(24))
    assert {outcome for outcome, _ in figures(many.verdict()).values()} == {"NO_BASELINE"}
    assert took_s <= MOST * ideal_s


def test_a_worker_that_is_killed_loses_no_finished_case(tmp_path: Path) -> None:
    run = hurt(tmp_path, 2, 2, SLOW)
    first, second, third = cases(2)[:3]
    with run.start("--specreg-workers=auto") as pytest_run:
        wait_until(run.is_measuring(second))
        (victim,) = [one for one in workers(run) if _measures(one, second)]
        victim.kill()
        output, _ = pytest_run.communicate(timeout=180)
    assert "vllm-ngram-tiny-k1: begun again, its worker was killed by signal 9" in output
    assert [run.attempts(case) for case in (first, second, third)] == [1, 2, 1]
    assert [run.attempts(case) for case in cases(2)[3:]] == [1, 1, 1]
    assert {outcome for outcome, _ in figures(run.verdict()).values()} == {"NO_BASELINE"}
    assert lines_of(run) == run.left() == []


def test_ctrl_c_once(tmp_path: Path) -> None:
    run = hurt(tmp_path, 2, 2, SLOW)
    with run.start("--specreg-workers=auto") as pytest_run:
        wait_until(run.is_measuring(cases(2)[2]))
        pytest_run.send_signal(signal.SIGINT)
        output, _ = pytest_run.communicate(timeout=60)
        assert run.left() == []
    assert "type the same again with --specreg-resume" in output
    measured = {case for case, _ in figures(run.verdict())}
    assert measured
    assert lines_of(run) == []
    again = run.run("--specreg-workers=auto", "--specreg-resume")
    assert {case for case, _ in figures(run.verdict())} == set(cases(2)), again.stdout
    assert all(run.attempts(case) == 1 for case in measured)


@pytest.mark.parametrize("pause_s", [0.1, 1.0])
def test_ctrl_c_twice(tmp_path: Path, pause_s: float) -> None:
    run = hurt(tmp_path, 2, 2, Script(step_ms=16.0, ignore_sigterm=True))
    with run.start("--specreg-workers=auto") as pytest_run:
        wait_until(run.is_measuring(cases(2)[0]))
        pytest_run.send_signal(signal.SIGINT)
        time.sleep(pause_s)
        pytest_run.send_signal(signal.SIGINT)
        wait_until(lambda: run.left() == [], 15.0)


def test_a_killed_run_is_gone_on_with(tmp_path: Path) -> None:
    run = hurt(tmp_path, 2, 2, SLOW)
    with run.start("--specreg-workers=auto") as pytest_run:
        wait_until(run.is_measuring(cases(2)[2]))
        pytest_run.kill()
        wait_until(lambda: run.left() == [], 15.0)
    done = run.run("--specreg-resume")
    (journal,) = run.runs.glob("*/journal.jsonl")
    assert {key.case_id for key in load_journal(journal)} == set(cases(2))
    assert [run.attempts(case) for case in cases(2)[:2]] == [1, 1]
    assert f"{cases(2)[0]}, {cases(2)[1]}" in done.stdout
    assert run.left() == []


@pytest.mark.parametrize(
    ("kinds", "arguments", "said"),
    [
        (("H100", "L4"), (), "the GPUs are of several kinds (0: Scripted H100"),
        (("H100",), ("--specreg-workers=none",), "'none': needs a number, 1 or more, or auto"),
        (("H100",), ("--specreg-workers=0",), "'0': needs a number, 1 or more, or auto"),
    ],
    ids=["kinds", "word", "none"],
)
def test_what_cannot_be_is_named_before_anything_starts(
    tmp_path: Path, kinds: tuple[str, ...], arguments: tuple[str, ...], said: str
) -> None:
    run = hurt(tmp_path, 1, 1, FAST)
    run.variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    run.gpus = tuple(
        dataclasses.replace(gpu, name=f"Scripted {kind}")
        for gpu, kind in zip(gpus(2), kinds, strict=False)
    )
    done = run.run("--specreg-workers=auto", *arguments)
    assert said in done.stdout
    assert done.returncode == 4
    assert "Traceback" not in done.stdout
    assert run.logs() == []
    assert run.left() == []


def test_a_case_that_chooses_its_own_gpu_is_refused(tmp_path: Path) -> None:
    run = hurt(tmp_path, 1, 2, FAST)
    run.matrix += 'engine_env = {{ CUDA_VISIBLE_DEVICES = "1" }}\n'
    done = run.run("--specreg-workers=auto")
    assert "its engine_env sets CUDA_VISIBLE_DEVICES" in done.stdout
    assert done.returncode == 4
    assert run.logs() == []


def test_a_case_that_no_machine_holds_is_skipped_with_its_reason(tmp_path: Path) -> None:
    run = hurt(tmp_path, 2, 2, FAST)
    run.matrix += "\n[cases.parallel]\ntensor = 4\n"
    done = run.run("--specreg-workers=auto", "-rs")
    assert "4 GPU" in done.stdout
    assert run.logs() == []


def _servers(count: int) -> tuple[list[str], list[int]]:
    """Methods and drafts of a step, of which each pair is a server; 16 drafts at most."""
    methods = ["ngram", "eagle3"] if count > 16 else ["ngram"]
    return methods, list(range(1, count // len(methods) + 1))


def _measures(worker: psutil.Process, case_id: str) -> bool:
    """Whether the part of the journal that a worker has open is a case's."""
    with contextlib.suppress(psutil.Error):
        return any(is_part_of(Path(one.path), case_id) for one in worker.open_files())
    return False
