"""`specreg power`, as a user types it, on GPUs whose true power is known."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specreg.cli import app
from specreg.core.errors import SensorError
from specreg.telemetry.rapl import SENSOR as RAPL
from specreg.telemetry.samples import load_traces
from tests.doubles.nvml.device import Process, ScriptedGpu, constant
from tests.unit.playing import Player, running

_TRIES = 4
_KEPT = re.compile("the sampler was kept|no samples at an end")
"""What is said where a machine has no time for the sampler: other tests run beside this one."""

FIRST = ScriptedGpu(uuid="GPU-00", load=constant(400.0))
SECOND = ScriptedGpu(uuid="GPU-01", load=constant(300.0))


@pytest.fixture
def player(library: Path, tmp_path: Path) -> Player:
    return Player(library=library, folder=tmp_path)


def power(
    player: Player, *gpus: ScriptedGpu, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs the command on GPUs that have run for long; anew where it was kept from sampling."""
    for _ in range(_TRIES):
        done = player.run(list(map(running, gpus)), "-m", "specreg", "power", *options)
        if not _KEPT.search(done.stdout):
            break
    return done


def off_frac(block: str, truth_w: float) -> tuple[float, float]:
    """How far a mean is from the truth, and how far it says that it may be, both relative."""
    found = re.search(r"energy counter +([\d.]+) W, .* off by ([\d.]+)% at most", block)
    assert found is not None, block
    return abs(float(found[1]) / truth_w - 1), float(found[2]) / 100


def check_mean(block: str, truth_w: float) -> None:
    off, bound = off_frac(block, truth_w)
    assert off <= bound + 0.05 / truth_w  # it has one decimal
    assert bound < 0.2


def test_all_gpus_in_sight_are_watched_and_summed(player: Player) -> None:
    used = ScriptedGpu(uuid="GPU-00", load=constant(400.0), processes=(Process(os.getpid(), 9),))
    output = player.folder / "new" / "samples.jsonl"
    done = power(player, used, SECOND, options=("--seconds", "2", "--output", str(output)))
    assert done.returncode == 0, done.stderr
    first, second, total = done.stdout.split("\n\n")
    check_mean(first, 400.0)
    assert f"process {os.getpid()} (" in first
    check_mean(second, 300.0)
    assert re.search(r"processes +none", second)
    assert float(total.split()[1]) == pytest.approx(700, rel=0.1)
    assert "2 of 2 device(s) in 2.0 s" in total
    assert [trace.device.id for trace in load_traces(output)] == ["GPU-00", "GPU-01"]
    assert list(output.parent.iterdir()) == [output]


def test_a_wrong_counter_is_said_and_makes_the_status_1(player: Player) -> None:
    off = dataclasses.replace(FIRST, counter_factor=1.7)
    done = power(player, off, options=("--seconds", "3"))
    assert done.returncode == 1, done.stdout
    assert re.search(r"average field +400\.0 W", done.stdout)
    assert re.search(r"INVALID +.*its energy counter says 1\.7", done.stdout)


def test_ctrl_c_ends_the_watch_early_and_shows_what_there_is(player: Player) -> None:
    output = player.folder / "samples.jsonl"
    command = (sys.executable, "-m", "specreg", "power", "--output", str(output))
    with subprocess.Popen(
        command,
        env=player.variables([running(FIRST)]),
        cwd=player.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not output.exists() or b'"Sample"' not in output.read_bytes():
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(2.0)
        os.killpg(process.pid, signal.SIGINT)
        said, errors = process.communicate(timeout=20)
    assert "watching 1 device(s) for 60 s" in errors
    assert float(said.rpartition(" in ")[2].split()[0]) < 20


def test_a_gpu_that_tells_no_power_is_left_out_and_one_alone_is_refused(player: Player) -> None:
    closed = ScriptedGpu(uuid="GPU-01", permission=False)
    done = power(player, FIRST, closed, options=("--seconds", "1"))
    assert done.returncode == 0, done.stderr
    assert "number 1: NVML: its power can't be read, Insufficient Permissions" in done.stderr
    assert "1 of 1 device(s)" in done.stdout
    alone = power(player, closed)
    assert alone.returncode == 1
    assert alone.stderr.startswith("NVML: its power can't be read, Insufficient Permissions")
    assert "Traceback" not in alone.stderr


def test_samples_are_written_to_a_file_that_can_be(player: Player) -> None:
    (player.folder / "file").touch()
    below = power(player, FIRST, options=("--output", "file/samples.jsonl"))
    assert below.returncode == 1
    assert "--output 'file/samples.jsonl': " in below.stderr
    assert "; name a file that can be written" in below.stderr


def test_the_processors_are_watched_or_the_reason_is_told() -> None:
    done = CliRunner().invoke(app, ["power", "--processors", "--seconds", "1"])
    try:
        readable = not any(device.why_not for device in RAPL.find({}))
    except SensorError:
        readable = False
    assert (done.exit_code == 0) == readable
    assert readable or str(done.exception).startswith("RAPL: no ")
