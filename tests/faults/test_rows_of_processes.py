"""The faults of servers and of ourselves, on the scripted server; each test is named by its row.

Each sees that nothing is left, within the row's time: no process, port, lock, temporary file or
shared memory; and that no request is lost which had ended.
"""

import dataclasses
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from specreg.core.errors import ServerStartError
from tests.doubles.nvml.device import Process, ScriptedGpu
from tests.doubles.vllm.script import Fault, Script
from tests.faults.running import (
    CASES,
    MATRIX,
    ROOT,
    Hurt,
    end_of_leader,
    is_free,
    lives,
    ports_of,
    wait_until,
)
from tests.unit.builders.started_servers import at_most, left_of, start

GIB = 2**30
IDLE = ScriptedGpu(uuid="GPU-a", memory_used_bytes=GIB // 2)


@pytest.mark.parametrize(
    ("last_words", "status", "failure", "hint"),
    [
        ("CUDA out of memory.", 1, "out of memory", "lower gpu_memory_frac"),
        ("error: unrecognized arguments: --spec", 2, "unknown or refused argument", "engine_args"),
        ("GatedRepoError: 401 Client Error", 1, "model can't be fetched", "HF_TOKEN"),
        ("RepositoryNotFoundError: 404", 1, "model can't be fetched", "check the model's name"),
        ("INFO done", 0, "unknown cause", "read the log"),
    ],
    ids=["out-of-memory", "bad-flag", "gated", "missing", "status-0"],
)
@pytest.mark.usefixtures("empty_afterwards")
def test_row_01_a_server_that_exits_at_start(
    tmp_path: Path, last_words: str, status: int, failure: str, hint: str
) -> None:
    """Of a port that is in use it is started on another: row 9."""
    log = "\n".join([*(f"line {number}" for number in range(100)), last_words])
    script = Script(fault=Fault.EXIT_AT_START, exit_status=status, exit_log=log, ready_after_s=1.0)
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(end_of_leader, lambda: left_of(tmp_path))
        with pytest.raises(ServerStartError) as error, start(tmp_path, script):
            pytest.fail("it never started")
        assert time.monotonic() - ended.result() < 2
    assert error.value.failure == f"ended with status {status}: {failure}"
    assert hint in str(error.value).splitlines()[0]
    assert error.value.log_tail.splitlines() == log.splitlines()[-40:]
    assert str(error.value.log_path) in str(error.value)
    assert left_of(tmp_path) == []


@pytest.mark.parametrize("fault", [Fault.NEVER_READY, Fault.HEALTHY_BUT_MUTE])
@pytest.mark.usefixtures("empty_afterwards")
def test_row_02_a_server_that_is_never_ready(tmp_path: Path, fault: Fault) -> None:
    with (
        at_most(20),
        pytest.raises(ServerStartError, match=r"(?s)no token in time.* -m vllm.*\nlast lines of "),
        start(tmp_path, Script(fault=fault), ready_within_s=2.0),
    ):
        pytest.fail("it is never ready")
    assert left_of(tmp_path) == []


def test_row_03_a_server_that_hangs_in_the_run(run: Hurt) -> None:
    """One of two client processes asks it, and says so."""
    run.settings = "client_processes = 2"
    with run.start() as pytest_run:
        wait_until(run.is_measuring())
        finished = run.finished(CASES[0])
        server = run.server()
        server.send_signal(signal.SIGSTOP)
        took_s = wait_until(lambda: not lives(server))
        output, _ = pytest_run.communicate(timeout=120)
    assert took_s >= 60, "a minute of silence"
    assert took_s < 60 + 10  # and row 5's time to be gone
    assert run.finished(CASES[0], attempt=0) >= finished
    outcomes = {
        verdict.case_id: (verdict.outcome, verdict.explanation)
        for verdict in run.verdict().verdicts
    }
    assert outcomes[CASES[0]][0] == "INVALID", output
    assert outcomes[CASES[0]][1].startswith("HUNG: no token came for 60 s"), output
    assert [outcomes[case][0] for case in CASES[1:]] == ["NO_BASELINE", "NO_BASELINE"], output
    assert len(run.logs()) == 2


def test_row_04_a_server_that_crashes_in_the_run(run: Hurt) -> None:
    with run.start() as pytest_run:
        wait_until(run.is_measuring())
        finished = run.finished(CASES[0])
        server = run.server()
        server.kill()
        wait_until(lambda: run.attempts(CASES[0]) == 2)
        output, _ = pytest_run.communicate(timeout=120)
    assert run.finished(CASES[0], attempt=0) >= finished, "what was finished is on disk"
    assert (
        f"{CASES[0]}: measured again, SERVER_DIED: server 'vllm-ngram-tiny': ended with status -9"
        in output
    )
    assert run.logs() == ["vllm-ngram-tiny.log", "vllm-ngram-tiny~2.log"]
    assert run.replays().keys() == set(CASES)
    assert len(run.replays()[CASES[0]].traces) == 20, "the second attempt alone, and all of it"


def test_row_04_a_server_that_crashes_each_time_is_tried_twice(run: Hurt) -> None:
    run.script = Script(fault=Fault.CRASH_MID_RUN, fault_after_requests=8)
    done = run.run()
    assert run.attempts(CASES[0]) == 2, done.stdout
    assert {verdict.outcome for verdict in run.verdict().verdicts} == {"INVALID"}


def test_row_05_a_worker_that_survives_its_server(run: Hurt) -> None:
    run.script = Script(step_ms=8.0, fault=Fault.SURVIVOR, survivor_s=600.0, shares_memory=True)
    with run.start() as pytest_run:
        wait_until(run.is_measuring())
        finished = run.finished(CASES[0])
        server = run.server()
        (worker,) = server.children()
        server.kill()
        took_s = wait_until(lambda: not lives(worker))
        output, _ = pytest_run.communicate(timeout=120)
    assert took_s < 10
    assert run.finished(CASES[0], attempt=0) >= finished
    assert "measured again" in output


def test_row_05_gpu_memory_that_is_not_back_stops_the_run(run: Hurt) -> None:
    run.gpus = (IDLE,)
    with run.start() as pytest_run:
        wait_until(run.is_measuring())
        run.show_gpus(dataclasses.replace(IDLE, memory_used_bytes=41 * GIB))
        run.server().kill()
        output, _ = pytest_run.communicate(timeout=60)
    assert pytest_run.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "server's end 40.5 GiB are still taken" in output
    assert run.attempts(CASES[0]) == 1
    assert run.logs() == ["vllm-ngram-tiny.log"]


def test_row_05_gpu_memory_that_is_not_back_of_two_servers_at_once(run: Hurt) -> None:
    run.gpus = (IDLE,)
    run.script = Script(step_ms=20.0)
    run.matrix = MATRIX.replace('["ngram"]', '["none", "ngram"]')
    with run.start("-k", "lossless") as pytest_run:
        wait_until(lambda: len(run.listening()) == 2)
        run.show_gpus(dataclasses.replace(IDLE, memory_used_bytes=41 * GIB))
        output, _ = pytest_run.communicate(timeout=120)
    assert pytest_run.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "server's end 40.5 GiB are still taken" in output
    assert run.logs() == ["vllm-ngram-tiny.log", "vllm-none-tiny.log"]


def test_row_05_a_worker_that_cannot_be_killed_ends_the_run(run: Hurt) -> None:
    run.script = Script(step_ms=8.0, fault=Fault.SURVIVOR, survivor_s=600.0)
    path = f"{ROOT / 'tests/faults/unkillable'}:{ROOT / 'tests/doubles'}"
    run.variables = {"PYTHONPATH": path, "UNKILLABLE": "SIG_IGN"}
    with run.start() as pytest_run:
        wait_until(run.is_measuring())
        server = run.server()
        (worker,) = server.children()
        server.kill()
        output, _ = pytest_run.communicate(timeout=120)
    assert pytest_run.returncode == pytest.ExitCode.INTERRUPTED, output
    assert f"process {worker.pid} (" in output
    assert (
        "): still there 30 s after it was killed, and nothing can be measured beside it" in output
    )
    assert run.attempts(CASES[0]) == 1
    assert run.logs() == ["vllm-ngram-tiny.log"]
    wait_until(lambda: run.left() == [])


def test_row_06_pytest_is_killed(run: Hurt) -> None:
    run.gpus = (IDLE,)
    run.script = Script(step_ms=8.0, fault=Fault.SURVIVOR, survivor_s=600.0, shares_memory=True)
    with run.start() as pytest_run:
        wait_until(run.is_measuring(CASES[1]))
        (port,) = ports_of(run.server())
        assert len(run.processes()) > 3
        assert f"lock {IDLE.uuid}.lock" in run.left()
        finished = run.finished(CASES[1])
        pytest_run.kill()
        took_s = wait_until(lambda: run.left() == [] and is_free(port))
    assert took_s < 5
    assert run.finished(CASES[1]) >= finished
    assert run.replays().keys() == {CASES[0]}


def test_row_07_ctrl_c_once(run: Hurt) -> None:
    run.script = Script(step_ms=40.0, shares_memory=True)  # on a busy machine the case ended before
    with run.start() as pytest_run:
        wait_until(run.is_measuring(CASES[1]))
        finished = run.finished(CASES[1])
        server = run.server()
        pytest_run.send_signal(signal.SIGINT)
        wait_until(lambda: any(run.runs.glob("*/verdict.json")))
        assert not lives(server), "a report takes its time, and comes after the clean-up"
        output, _ = pytest_run.communicate(timeout=60)
        assert run.left() == []
    assert run.finished(CASES[1]) >= finished
    assert "type the same command with --specreg-resume" in output
    assert {verdict.case_id for verdict in run.verdict().verdicts} == {CASES[0]}


@pytest.mark.parametrize("pause_s", [0.1, 1.0])
def test_row_07_ctrl_c_twice(run: Hurt, pause_s: float) -> None:
    """The second may come before the first has got far."""
    run.script = Script(step_ms=8.0, ignore_sigterm=True, shares_memory=True)
    with run.start() as pytest_run:
        wait_until(run.is_measuring())
        pytest_run.send_signal(signal.SIGINT)
        time.sleep(pause_s)
        pytest_run.send_signal(signal.SIGINT)
        took_s = wait_until(lambda: run.left() == [])
    assert took_s < 5


def test_row_08_another_process_on_the_gpu(run: Hurt) -> None:
    with subprocess.Popen(("/bin/sleep", "600")) as stranger:
        run.gpus = (dataclasses.replace(IDLE, processes=(Process(stranger.pid, GIB),)),)
        done = run.run()
        assert stranger.poll() is None
        stranger.kill()
    user = psutil.Process().username()
    assert f"used by process {stranger.pid} (sleep, user {user}); end it" in done.stdout
    assert done.returncode != 0
    assert run.logs() == []


def test_row_12_speculation_that_is_silently_off(run: Hurt) -> None:
    run.script = Script(fault=Fault.SPEC_DISABLED)
    done = run.run()
    assert done.returncode == 10, done.stdout
    reasons = {verdict.explanation.partition(":")[0] for verdict in run.verdict().verdicts}
    assert reasons == {"SPEC_DISABLED"}


def test_row_14_two_runs_at_once_on_one_gpu(run: Hurt) -> None:
    run.gpus = (IDLE,)
    run.script = Script(step_ms=20.0)
    waiting = run.beside("waiting")
    hasty = run.beside("hasty")
    with run.start() as first:
        wait_until(run.is_measuring())
        first.send_signal(signal.SIGSTOP)  # it has the GPU for as long as the others take
        with waiting.start() as second, hasty.start("--specreg-no-wait") as third:
            refused, _ = third.communicate(timeout=120)
            assert first.poll() is None
            assert hasty.logs() == waiting.logs() == []
            first.send_signal(signal.SIGCONT)
            output, _ = first.communicate(timeout=120)
            waited, _ = second.communicate(timeout=120)
    who = f"GPU 0 (Scripted NVIDIA H100, GPU-a): used by process {first.pid} ("
    assert who in refused
    assert {verdict.outcome for verdict in hasty.verdict().verdicts} == {"INVALID"}
    assert who in waited
    assert "; waiting until it is done" in waited
    assert {verdict.outcome for verdict in waiting.verdict().verdicts} == {"NO_BASELINE"}, (
        output + waited
    )
    assert waiting.left() == hasty.left() == []


def test_row_15_a_run_that_still_goes_on_is_left_alone(run: Hurt) -> None:
    with run.start() as pytest_run:
        wait_until(run.is_measuring(CASES[1]))
        pytest_run.send_signal(signal.SIGSTOP)  # it goes on for as long as the other takes
        refused = subprocess.run(
            run.command("--specreg-resume"),
            check=False,
            cwd=ROOT,
            env=run.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        pytest_run.send_signal(signal.SIGCONT)
        output, _ = pytest_run.communicate(timeout=120)
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR, refused.stdout
    (folder,) = run.runs.iterdir()
    message = f"'{folder}': is still running; wait for its end"
    assert message in refused.stderr
    assert {verdict.case_id for verdict in run.verdict().verdicts} == set(CASES), output
    assert [run.attempts(case) for case in CASES] == [1, 1, 1]


COLD = (40.0, 25.0, 16.0, 10.0, 6.0, 4.0, 2.5, 1.6)


def test_row_22_slow_first_requests(run: Hurt) -> None:
    """The one that shows that it is ready is the first of them."""
    run.script = Script(step_ms=10.0, stretches=COLD)
    done = run.run()
    assert {verdict.outcome for verdict in run.verdict().verdicts} == {"NO_BASELINE"}, done.stdout
    rounds = run.replays()[CASES[0]].rounds
    gap_ms = max(part.gaps.quantile_ns(0.5) for part in rounds) / 1e6
    assert gap_ms < 10 * 1.6, "none of the slow ones was measured"


def test_row_22_steps_that_are_never_steady(run: Hurt) -> None:
    run.script = Script(step_ms=4.0, stretches=(1.0, 1.0, 2.0, 4.0) * 20)
    done = run.run()
    assert {verdict.outcome for verdict in run.verdict().verdicts} == {"NO_BASELINE"}, done.stdout
