"""A GPU is one run's at a time, and has its memory back before the next server starts."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.doubles.nvml.device import (
    Process,
    ScriptedGpu,
    Throttle,
    environment,
    write_script,
)
from tests.unit import builders
from tests.unit.servers.test_server import at_most

# A machine that gives back what is free has two seconds for it here, and ten in a run.
SOON = """
from specreg.servers import gpu_lease
from specreg.telemetry import devices
gpu_lease._BACK_WITHIN_S = devices._FREE_WITHIN_S = 2.0
"""
# Claims so many GPUs, says what it is told and that it has them, and gives them back when asked to.
CLAIM = """
import os, sys
from specreg.servers.gpu_lease import lease_gpus
from specreg.core.errors import SensorError
def tell(text):
    print(text, flush=True)
try:
    with lease_gpus(int(sys.argv[1]), os.environ, tell=tell, waits=len(sys.argv) < 3):
        tell("claimed")
        sys.stdin.readline()
    tell("given back")
except SensorError as error:
    tell(f"{type(error).__name__}: {error}")
"""
# Two servers of one run on one GPU, and a second GPU that is claimed while the first is held.
NESTED = """
import os, sys
from specreg.servers.gpu_lease import _LOCKS, lease_gpus
from specreg.core.errors import SensorError
with lease_gpus(1, os.environ, tell=print):
    with lease_gpus(1, os.environ, tell=print):
        pass
    print("one", len(_LOCKS), flush=True)
    sys.stdin.readline()
    try:
        with lease_gpus(2, os.environ, tell=print):
            print("two", flush=True)
    except SensorError as error:
        print(type(error).__name__, flush=True)
print(len(_LOCKS), flush=True)
"""
GIB = 2**30
IDLE = ScriptedGpu(uuid="GPU-a", memory_used_bytes=GIB // 2)
BUSY = dataclasses.replace(IDLE, memory_used_bytes=41 * GIB)
OTHER = ScriptedGpu(uuid="GPU-b", memory_used_bytes=GIB // 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Scripted GPUs, and processes that claim them."""

    folder: Path
    library: Path

    def play(self, *gpus: ScriptedGpu) -> None:
        """What the driver shows from now on."""
        write_script(self.folder / "gpus", gpus)

    @contextmanager
    def running(
        self, *arguments: str, code: str = CLAIM, **said: str
    ) -> Iterator[subprocess.Popen[str]]:
        """A process of a run, which is gone afterwards."""
        driver = environment(self.library, self.folder / "gpus")
        own = {"PYTHONPATH": str(builders.ROOT), "SPECREG_CACHE": str(self.folder / "cache")}
        with subprocess.Popen(
            (sys.executable, "-c", SOON + code, *arguments),
            env=os.environ | driver | own | said,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextmanager
    def claiming(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A process that has claimed what it wants."""
        with self.running(*arguments) as process:
            assert heard(process) == "claimed"
            yield process


@pytest.fixture
def machine(tmp_path: Path, library: Path) -> Machine:
    """A machine with two idle GPUs."""
    machine = Machine(folder=tmp_path, library=library)
    machine.play(IDLE, OTHER)
    return machine


def heard(process: subprocess.Popen[str]) -> str:
    """The next line that a process says."""
    assert process.stdout is not None
    with at_most(30):
        return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    """Lets a process give back what it claimed."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_second_run_waits_and_is_told_for_whom(machine: Machine) -> None:
    with machine.claiming("1") as first, machine.running("1") as second:
        said = heard(second)
        assert said.startswith(
            f"GPU 0 (Scripted NVIDIA H100, GPU-a): used by process {first.pid} (python"
        )
        assert f", in {Path.cwd()}; waiting until it is done" in said
        end(first)
        assert heard(first) == "given back"
        assert heard(second) == "claimed"
        end(second)
        assert heard(second) == "given back"


def test_a_second_run_fails_at_once_where_it_is_asked_to(machine: Machine) -> None:
    with machine.claiming("1"), machine.running("1", "no-wait") as second:
        said = heard(second)
        assert said.startswith("DeviceHeldError: GPU 0 (Scripted NVIDIA H100, GPU-a): used by")
        assert said.endswith(
            "; wait until it is done, or choose another GPU with CUDA_VISIBLE_DEVICES"
        )


def test_the_lock_of_a_run_that_is_killed_is_free(machine: Machine) -> None:
    with machine.claiming("1") as first, machine.running("1") as second:
        assert "waiting" in heard(second)
        first.send_signal(signal.SIGKILL)
        with at_most(5):
            assert heard(second) == "claimed"


def test_runs_on_different_gpus_do_not_wait(machine: Machine) -> None:
    with (
        machine.running("1", CUDA_VISIBLE_DEVICES="0") as first,
        machine.running("1", CUDA_VISIBLE_DEVICES="1") as second,
    ):
        assert heard(first) == heard(second) == "claimed"


def test_two_runs_never_wait_for_one_another(machine: Machine) -> None:
    """Each holds a GPU and wants the other's: whoever holds one doesn't wait."""
    with (
        machine.running(code=NESTED, CUDA_VISIBLE_DEVICES="0,1") as first,
        machine.running(code=NESTED, CUDA_VISIBLE_DEVICES="1,0") as second,
    ):
        assert heard(first) == heard(second) == "one 1"
        end(first)
        assert heard(first) == "DeviceHeldError"
        assert heard(first) == "0"
        end(second)
        assert heard(second) == "two"
        assert heard(second) == "0"


def test_without_gpus_there_is_nothing_to_lock(machine: Machine) -> None:
    with machine.running("0") as first, machine.running("0") as second:
        assert heard(first) == heard(second) == "claimed"
    assert not (machine.folder / "cache").exists()


def test_a_gpu_that_is_too_hot_is_waited_for_and_claimed_all_the_same(machine: Machine) -> None:
    """What a server on it accepts is counted, not timed."""
    machine.play(dataclasses.replace(IDLE, throttle=(Throttle(0x20),)), OTHER)
    with machine.claiming("1") as run:
        end(run)
        assert heard(run) == "given back"


def test_memory_that_comes_back_is_waited_for(machine: Machine) -> None:
    with machine.claiming("1") as run:
        machine.play(BUSY, OTHER)
        end(run)
        time.sleep(1.5)
        machine.play(IDLE, OTHER)
        assert heard(run) == "given back"


def test_memory_that_does_not_come_back_is_an_error_that_says_how_much(machine: Machine) -> None:
    with machine.claiming("1") as run:
        machine.play(BUSY, OTHER)
        end(run)
        said = heard(run)
    assert said.startswith("MemoryHeldError: GPU 0 (Scripted NVIDIA H100, GPU-a): 2 s after its")
    assert "40.5 GiB are still taken" in said


# Two servers on leased GPUs, one after the other; who else has them is asked from outside.
LEASE = """
import os, sys
from specreg.servers.gpu_lease import _LOCKS, hold, is_held, lease
from specreg.telemetry.devices import devices_of
devices = devices_of(2, os.environ)
print([is_held(device) for device in devices], flush=True)
with hold(devices, waits=True, tell=print):
    for _ in range(2):
        with lease(devices[:1], waits=True, tell=print):
            pass
    print("leased", len(_LOCKS), flush=True)
    sys.stdin.readline()
print("given back", len(_LOCKS), flush=True)
"""


def test_a_lease_outlasts_the_servers_on_it(machine: Machine) -> None:
    machine.play(IDLE, OTHER)
    with machine.running(code=LEASE) as one:
        assert heard(one) == "[False, False]"
        assert heard(one) == "leased 2"
        with machine.running(code=LEASE) as other:
            assert heard(other) == "[True, True]"
            assert "used by process" in heard(other)
            end(one)
            assert heard(one) == "given back 0"
            assert heard(other) == "leased 2"
            end(other)


# A server of which a process can't be killed, with what it holds of the GPU.
UNKILLED = """
import os, sys
from specreg.servers.gpu_lease import lease_gpus
from specreg.core.errors import SensorError, UnkillableError
try:
    with lease_gpus(1, os.environ, tell=print):
        print("claimed", flush=True)
        sys.stdin.readline()
        raise UnkillableError("process 7 lives")
except SensorError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""


def test_of_memory_that_is_not_back_whose_it_is_is_said(machine: Machine) -> None:
    with machine.running(code=UNKILLED) as run:
        assert heard(run) == "claimed"
        machine.play(BUSY, OTHER)
        end(run)
        assert heard(run) == "UnkillableError: process 7 lives"


# Two servers on a GPU, of which the first ends first.
CROSSED = """
import contextlib, os, sys
from specreg.servers.gpu_lease import lease_gpus
from specreg.core.errors import SensorError
first, second = contextlib.ExitStack(), contextlib.ExitStack()
first.enter_context(lease_gpus(1, os.environ, tell=print))
print("first", flush=True)
sys.stdin.readline()
second.enter_context(lease_gpus(1, os.environ, tell=print))
first.close()
print("second alone", flush=True)
sys.stdin.readline()
try:
    second.close()
    print("given back", flush=True)
except SensorError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""


@pytest.mark.parametrize(
    ("afterwards", "words"), [(BUSY, "40.5 GiB are still taken"), (IDLE, "given back")]
)
def test_what_a_server_left_that_ended_first_is_missed_when_the_last_one_ends(
    machine: Machine, afterwards: ScriptedGpu, words: str
) -> None:
    with machine.running(code=CROSSED) as run:
        assert heard(run) == "first"
        machine.play(BUSY, OTHER)
        end(run)
        assert heard(run) == "second alone"
        machine.play(afterwards, OTHER)
        end(run)
        assert words in heard(run)


# Two servers that take their memory at the same time, of which the second ends first.
TOGETHER = """
import contextlib, os, sys
from specreg.servers.gpu_lease import lease_gpus
from specreg.core.errors import SensorError
first, second = contextlib.ExitStack(), contextlib.ExitStack()
first.enter_context(lease_gpus(1, os.environ, tell=print))
second.enter_context(lease_gpus(1, os.environ, tell=print, beside_starting=True))
print("both", flush=True)
sys.stdin.readline()
second.close()
print("first alone", flush=True)
sys.stdin.readline()
try:
    first.close()
    print("given back", flush=True)
except SensorError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""


@pytest.mark.parametrize(
    ("afterwards", "words"), [(BUSY, "40.5 GiB are still taken"), (IDLE, "given back")]
)
def test_of_two_that_started_at_once_the_last_one_answers_for_both(
    machine: Machine, afterwards: ScriptedGpu, words: str
) -> None:
    with machine.running(code=TOGETHER) as run:
        assert heard(run) == "both"
        machine.play(BUSY, OTHER)  # what the first one holds is no debt of the second's
        end(run)
        assert heard(run) == "first alone"
        machine.play(afterwards, OTHER)
        end(run)
        assert words in heard(run)


# A server of a run on one GPU, and a second GPU that the run wants.
BESIDE = """
import os, pathlib, sys
from specreg.servers.gpu_lease import lease_gpus
from specreg.core.errors import SensorError
from specreg.core.processes import start_process, stop_process
folder, sleep = pathlib.Path(sys.argv[1]), ("/bin/sleep", "120")
with lease_gpus(1, os.environ, tell=print):
    ours = start_process(sleep, environment=os.environ, log_path=folder / "log", cwd=folder)
    print("ours", flush=True)
    sys.stdin.readline()
    try:
        with lease_gpus(1, os.environ | {"CUDA_VISIBLE_DEVICES": sys.argv[2]}, tell=print):
            print("claimed", flush=True)
    except SensorError as error:
        print(error, flush=True)
    finally:
        stop_process(ours)
"""


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("0", "claimed"),
        ("1", "DEVICE_SHARED: Scripted NVIDIA H100, number 1: used by process {pid} (sleep, user "),
    ],
    ids=["the-same", "another"],
)
def test_only_on_a_gpu_that_ours_are_on_may_a_number_that_is_not_known_be_ours(
    machine: Machine, wanted: str, words: str
) -> None:
    """As in a container, whose driver may number processes as the host does."""
    with (
        subprocess.Popen(("/bin/sleep", "120")) as stranger,
        machine.running(str(machine.folder), wanted, code=BESIDE) as run,
    ):
        assert heard(run) == "ours"
        machine.play(
            dataclasses.replace(IDLE, processes=(Process(4_000_000, GIB),)),
            dataclasses.replace(OTHER, processes=(Process(stranger.pid, GIB),)),
        )
        end(run)
        said = heard(run)
        stranger.kill()
    assert said.startswith(words.format(pid=stranger.pid))
