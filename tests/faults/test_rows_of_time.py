"""The faults that come with time: a GPU that gets hot or slow, a server that gets worse.

Each test is named by its row; that of processes are in `test_rows_of_processes.py`.
"""

import dataclasses
import re
import shutil
import signal
import threading
from pathlib import Path

import msgspec
import pytest

from specreg.core.families import Family
from specreg.matrix.tier import load_tier
from specreg.measurement.metrics import METRICS
from tests.doubles.nvml.device import ScriptedGpu, Throttle
from tests.doubles.vllm.script import Script
from tests.faults.running import CASES, Hurt, wait_until
from tests.unit import builders

GPU = ScriptedGpu(uuid="GPU-a", memory_used_bytes=2**29)
HOT = dataclasses.replace(GPU, throttle=(Throttle(0x20),), temperature_c=92, sm_clock_mhz=1_200)
SLOW = dataclasses.replace(GPU, sm_clock_mhz=1_500)
_TIMES = 3
RECORD = ("-k", "toy-c1", "--update-baselines", "--reason", "test", "--specreg-launches=1")
ORDER = ("acceptance_length_tokens", "throughput_tokens_per_s", "power_w")


@pytest.fixture
def run(run: Hurt) -> Hurt:
    run.gpus = (GPU,)
    run.script = Script(step_ms=2.0)
    return run


def run_while_it_gets_hot(run: Hurt, *arguments: str) -> str:
    """What a run prints whose GPU gets too hot as soon as it is watched.

    A client that is late on a busy machine is INVALID too, which says nothing of the GPU.
    """

    def heat() -> None:
        wait_until(lambda: any(path.stat().st_size for path in run.runs.glob("*/power/*.jsonl")))
        run.show_gpus(HOT)

    for _ in range(_TIMES):
        run.show_gpus(GPU)
        shutil.rmtree(run.runs, ignore_errors=True)
        heating = threading.Thread(target=heat)
        heating.start()
        done = run.run(*arguments)
        heating.join()
        if not any(code in done.stdout for code in ("CLIENT_BEHIND", "ANSWERS_AT_ONCE")):
            break
    assert done.returncode == 10, done.stdout
    return done.stdout


def baseline_of(run: Hurt) -> Path:
    """A baseline of the first case, recorded while the GPU ran at its clock."""
    run.command()  # writes the matrix
    case = next(case for case in load_tier(run.folder, "cpu").cases if case.id == CASES[0])
    launches = ({"throughput_tokens_per_s": 100.0},) * 3
    return builders.record_on_gpu(run.folder / "baselines", GPU, case, *launches)


def test_row_19_a_gpu_that_gets_too_hot(run: Hurt) -> None:
    output = run_while_it_gets_hot(run, "-k", "toy-c1 and (throughput or power_w or length)")
    counted, speed, watts = sorted(
        run.verdict().verdicts, key=lambda verdict: ORDER.index(verdict.metric)
    )
    for verdict in (speed, watts):
        assert verdict.outcome == "INVALID"
        assert verdict.explanation.startswith(
            "THROTTLED: Scripted NVIDIA H100 was held back in 100% of"
        )
        assert "software thermal slowdown, 92 °C at 1200 MHz; cool it" in verdict.explanation
    assert counted.outcome == "NO_BASELINE", output
    assert counted.value is not None


def test_row_19_no_speed_is_recorded_from_a_gpu_that_is_too_hot(run: Hurt) -> None:
    """What it accepts would be, were the GPU no scripted one."""
    path = baseline_of(run)
    before = path.read_bytes()
    run_while_it_gets_hot(run, *RECORD)
    for verdict in run.verdict().verdicts:
        counted = METRICS[verdict.metric].family is Family.ACCEPTANCE
        assert verdict.outcome == ("MEASURED" if counted else "INVALID")
        assert counted or verdict.explanation.startswith("THROTTLED: "), verdict.explanation
    assert path.read_bytes() == before
    assert [path.name for path in (run.folder / "baselines").rglob("*.json")] == [path.name]


def test_row_19_a_gpu_that_is_too_hot_already(run: Hurt) -> None:
    """Its server starts after 10 s in which it may cool down."""
    run.gpus = (HOT,)
    done = run.run("-k", "toy-c1 and (throughput or length)")
    counted, speed = sorted(run.verdict().verdicts, key=lambda verdict: ORDER.index(verdict.metric))
    assert speed.outcome == "INVALID"
    assert speed.explanation.startswith("THROTTLED: Scripted NVIDIA H100 was held back in 100% of")
    assert counted.outcome == "NO_BASELINE", done.stdout
    assert counted.value is not None


def test_row_19_a_gpu_at_a_lower_clock(run: Hurt) -> None:
    """Nobody says that it throttles; it is slower than when it was recorded."""
    baseline_of(run)
    run.gpus = (SLOW,)
    done = run.run("-k", "toy-c1 and (throughput or acceptance_length)")
    assert done.returncode == 10, done.stdout
    by_metric = {verdict.metric: verdict for verdict in run.verdict().verdicts}
    assert by_metric["acceptance_length_tokens"].outcome == "NO_BASELINE"
    verdict = by_metric["throughput_tokens_per_s"]
    assert verdict.outcome == "INVALID"
    low = "CLOCK_LOW: Scripted NVIDIA H100 ran at 1500 MHz, it was recorded at 1980"
    assert verdict.explanation.startswith(low)


SOAK_MIN = 0.5
BUSY = Script(step_ms=2.0)
FINE = "--tolerance=1"
"""In an hour."""


@pytest.fixture
def soak(run: Hurt) -> Hurt:
    run.gpus = ()
    return run


def rows_of(output: str) -> dict[str, str]:
    """By figure, its row of the table at the end."""
    lines = (line.split() for line in output.splitlines())
    outcomes = {"PASS", "IMPROVED", "REGRESSED", "INCONCLUSIVE"}
    return {words[0]: words[-1] for words in lines if words and words[-1] in outcomes}


def segments_in(path: Path) -> int:
    return path.read_bytes().count(b'"Segment"') if path.exists() else 0


def test_row_23_acceptance_that_falls_slowly(soak: Hurt) -> None:
    """By a hundredth of what it was in each second; the soak ends at two thirds of it."""
    fall_frac = 0.01
    soak.script = msgspec.structs.replace(BUSY, falls_per_s_frac=fall_frac)
    # Twenty prompts, so that each eighth of the soak loses many steps and not one or none.
    with soak.start_soak(f"--minutes={SOAK_MIN}", "--prompts=20", FINE) as soaking:
        output, _ = soaking.communicate(timeout=120)
    assert soaking.returncode == 1, output
    assert rows_of(output)["acceptance_length-1"] == "REGRESSED"
    warning = re.search(
        r"^acceptance_length_tokens: worse by (\d+\.\d)% in an hour", output, re.MULTILINE
    )
    assert warning, output
    # Relative to the first judged segments, before which the server had lived some seconds.
    assert fall_frac * 3600 * 0.9 < float(warning[1]) / 100 < 1.5 * fall_frac * 3600
    alarm = re.search(
        r"^after (\d+\.\d) min: acceptance_length_tokens: worse", output, re.MULTILINE
    )
    assert alarm, output
    assert 0 < float(alarm[1]) <= SOAK_MIN + 0.1


@pytest.mark.parametrize(
    ("worse", "figure"),
    [
        (msgspec.structs.replace(BUSY, slows_per_s_frac=0.05), "step_ms"),
        (msgspec.structs.replace(BUSY, leak_bytes=400_000), "memory_bytes"),
    ],
    ids=["step time", "memory"],
)
def test_row_23_step_time_and_memory_that_grow(soak: Hurt, worse: Script, figure: str) -> None:
    soak.script = worse
    with soak.start_soak(f"--minutes={SOAK_MIN}", FINE) as soaking:
        output, _ = soaking.communicate(timeout=120)
    assert soaking.returncode == 1, output
    assert rows_of(output)[figure] == "REGRESSED", output
    assert rows_of(output)["acceptance_length-1"] == "PASS"


def test_row_23_a_steady_server_raises_no_alarm(soak: Hurt) -> None:
    # Half a minute makes much of little. Python's heap grows by 100 KiB meanwhile, which is nothing
    # beside what a real server holds.
    assert soak.script is not None
    soak.script = msgspec.structs.replace(soak.script, held_bytes=2**28)
    with soak.start_soak(f"--minutes={SOAK_MIN}", FINE) as soaking:
        output, _ = soaking.communicate(timeout=120)
    assert not re.search(r"^after ", output, re.MULTILINE), output
    rows = rows_of(output)
    assert rows["acceptance_length-1"] == "PASS"
    assert "REGRESSED" not in rows.values()
    # A busy machine may leave the step time undecided, which is 10, unless half a minute was too
    # short to decide it.
    is_undecided = "INCONCLUSIVE" in rows.values()
    is_too_short = re.search(r"^step_ms: a soak of .*; soak longer$", output, re.MULTILINE)
    assert soaking.returncode == (10 if is_undecided and not is_too_short else 0), output


def test_row_23_ctrl_c_keeps_what_was_soaked(soak: Hurt) -> None:
    path = soak.soaked / "ledger.jsonl"
    with soak.start_soak("--minutes=10", "--prompts=2") as soaking:
        wait_until(lambda: segments_in(path) > 12)
        soaking.send_signal(signal.SIGINT)
        output, _ = soaking.communicate(timeout=60)
    assert soaking.returncode == 130, output
    assert "acceptance_length_tokens" in rows_of(output)
    assert f"{segments_in(path)} segments in " in output
    assert f"segments: {path}\n" in output
    assert f"with --resume --out {soak.soaked}\n" in output


def test_row_23_a_soak_that_is_killed_goes_on_with_another_server(soak: Hurt) -> None:
    path = soak.soaked / "ledger.jsonl"
    arguments = (f"--minutes={SOAK_MIN}", "--prompts=2", FINE)
    with soak.start_soak(*arguments) as soaking:
        wait_until(lambda: segments_in(path) > 1)
        assert segments_in(path) < 10, "each segment is there as it ends"
        wait_until(lambda: segments_in(path) > 4)
        soaking.kill()
        assert wait_until(lambda: soak.left() == []) < 5
    before = path.read_bytes()
    logs_before = sorted((soak.soaked / "logs").iterdir())
    assert segments_in(path) >= 3

    with soak.start_soak(*arguments, "--resume") as soaking:
        output, _ = soaking.communicate(timeout=120)

    after = path.read_bytes()
    assert after.startswith(before)
    assert after.count(b'"launch":2') >= 8
    assert f"{segments_in(path)} segments in " in output
    assert " min on 2 servers, each judged by itself, the last ones against the first; " in output
    assert rows_of(output)["acceptance_length-1"] == "PASS", output
    assert set(logs_before) < set((soak.soaked / "logs").iterdir())


def test_row_23_a_server_that_goes_away(soak: Hurt) -> None:
    path = soak.soaked / "ledger.jsonl"
    with soak.start_soak("--minutes=10", "--prompts=2") as soaking:
        wait_until(lambda: segments_in(path) > 4)
        soak.server().kill()
        output, _ = soaking.communicate(timeout=60)
    assert soaking.returncode == 10, output
    assert "ended with status -9" in output
    assert f"segments: {path}\n" in output
    assert "--resume" not in output

    # A server that isn't there any more is what the soak found.
    with soak.start_soak("--minutes=10", "--prompts=2", "--resume") as soaking:
        output, _ = soaking.communicate(timeout=60)
    assert soaking.returncode == 10, output
    assert "server 1 failed, which ended the soak: " in output
