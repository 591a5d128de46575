"""A GPU is one run's at a time, and has its memory back before the next server starts."""

import dataclasses
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from specreg.core.processes import SupervisedProcess, child_process
from specreg.servers.gpu_lease import own_cores
from tests.doubles.nvml.device import Process, ScriptedGpu, environment, write_script
from tests.unit import builders
from tests.unit.builders.started_servers import at_most

# Takes orders from its input, `VERB NAME [KEY=VALUE …]`, and says what comes of each.
PROGRAM = """
import contextlib, json, os, pathlib, sys
from specreg.core.errors import SensorError, UnkillableError
from specreg.core.processes import start_process
from specreg.servers import gpu_lease
from specreg.servers.gpu_lease import _LOCKS, GpuClaim, lease_gpus
from specreg.telemetry import devices
def say(text):
    print(json.dumps(text), flush=True)
gpu_lease._BACK_WITHIN_S, devices._FREE_WITHIN_S = 3.0, 1.0
opened = {}
for line in sys.stdin:
    verb, name, *options = json.loads(line).split()
    told = dict(option.split("=") for option in options)
    variables = os.environ | {key: value for key, value in told.items() if key.isupper()}
    gpus, stack = int(told.get("gpus", 1)), contextlib.ExitStack()
    try:
        if verb == "lease":
            found = devices.devices_of(gpus, variables) if gpus else ()
            lease = lease_gpus(found, tell=say, waits="no_wait" not in told)
            stack.enter_context(lease)
        elif verb == "claim":
            claim = GpuClaim()
            stack.callback(claim.give_back)
            claim.take(gpus, say)
        elif verb == "see":
            say(str(os.environ.get("CUDA_VISIBLE_DEVICES")))
            continue
        elif verb == "start":
            here = pathlib.Path(name)
            start_process(["/bin/sleep", "120"], environment={}, log_path=here / "log", cwd=here)
        elif verb == "fail":
            with opened.pop(name):
                raise UnkillableError("process 7 lives")
        else:
            opened.pop(name).close()
        opened[name] = stack
        say(f"{verb}: {sum(lock.is_locked for lock in _LOCKS.values())} locked")
    except SensorError as error:
        say(f"{type(error).__name__}: {error}")
"""
GIB = 2**30
IDLE = ScriptedGpu(uuid="GPU-a", memory_used_bytes=GIB // 2)
BUSY = dataclasses.replace(IDLE, memory_used_bytes=41 * GIB)
OTHER = ScriptedGpu(uuid="GPU-b", memory_used_bytes=GIB // 2)


class Run(NamedTuple):
    process: SupervisedProcess

    def read(self) -> str:
        with at_most(30):
            return self.process.receive(str) or ""

    def do(self, text: str) -> str:
        self.process.send(text)
        return self.read()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Scripted GPUs, and processes that lease them."""

    folder: Path
    library: Path

    def play(self, *gpus: ScriptedGpu) -> None:
        write_script(self.folder / "gpus", gpus)

    @contextmanager
    def run(self, *orders: str) -> Iterator[Run]:
        """A process that has done what it was ordered, and is gone afterwards."""
        driver = environment(self.library, self.folder / "gpus")
        variables = {"PYTHONPATH": str(builders.ROOT), "SPECREG_CACHE": str(self.folder / "cache")}
        command = (sys.executable, "-c", PROGRAM)
        log_path = self.folder / f"{uuid.uuid4()}.log"
        with child_process(
            command, log_path=log_path, environment=os.environ | driver | variables
        ) as process:
            run = Run(process)
            for order in orders:
                assert run.do(order).endswith("locked")
            yield run
            assert process.popen.stdin is not None
            process.popen.stdin.close()
            process.popen.wait()  # ends by itself once it has no orders


@pytest.fixture
def machine(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = Machine(folder=tmp_path, library=library)
    machine.play(IDLE, OTHER)
    return machine


@pytest.mark.parametrize("ends", ["in order", "killed"])
def test_a_second_run_waits_until_the_first_is_gone_and_is_told_for_whom(
    machine: Machine, ends: str
) -> None:
    with machine.run("lease a") as first, machine.run() as second:
        output = second.do("lease a no_wait=1")
        assert output.startswith("SensorError: GPU 0 (Scripted NVIDIA H100, GPU-a): used by")
        assert output.endswith(
            "; wait until it is done, or choose another GPU with CUDA_VISIBLE_DEVICES"
        )
        output = second.do("lease a")
        who = f"used by process {first.process.popen.pid} (python"
        assert output.startswith(f"GPU 0 (Scripted NVIDIA H100, GPU-a): {who}")
        assert f", in {Path.cwd()}; waiting until it is done" in output
        if ends == "killed":
            first.process.popen.kill()
        else:
            assert first.do("close a") == "close: 0 locked"
        assert second.read() == "lease: 1 locked"


def test_two_runs_never_wait_for_one_another(machine: Machine) -> None:
    """Each holds a GPU and wants the other's: whoever holds one doesn't wait."""
    with (
        machine.run("lease a CUDA_VISIBLE_DEVICES=0", "lease b CUDA_VISIBLE_DEVICES=0") as first,
        machine.run("lease a CUDA_VISIBLE_DEVICES=1") as second,
    ):
        assert first.do("close b") == "close: 1 locked"
        assert first.do("lease c gpus=2").startswith("SensorError")
        assert first.do("close a") == "close: 0 locked"
        assert second.do("lease c gpus=2") == "lease: 2 locked"


def test_without_gpus_there_is_nothing_to_lock(machine: Machine) -> None:
    with machine.run("lease a gpus=0") as first:
        assert first.do("lease b gpus=0") == "lease: 0 locked"
    assert not (machine.folder / "cache").exists()


def test_memory_that_comes_back_is_waited_for(machine: Machine) -> None:
    with machine.run("lease a") as run:
        machine.play(BUSY, OTHER)
        run.process.send("close a")
        time.sleep(1.5)
        machine.play(IDLE, OTHER)
        assert run.read() == "close: 0 locked"


LOST = "MemoryHeldError: GPU 0 (Scripted NVIDIA H100, GPU-a): 3 s after its server's end 40.5 GiB"


def test_of_memory_that_is_not_back_whose_it_is_is_said(machine: Machine) -> None:
    """A process of the server couldn't be killed, and that is the error."""
    with machine.run("lease a") as run:
        machine.play(BUSY, OTHER)
        assert run.do("fail a") == "UnkillableError: process 7 lives"


def test_a_claim_outlasts_the_servers_on_it(machine: Machine) -> None:
    leases = ("lease a", "close a", "lease a", "close a")
    with machine.run("claim all gpus=2", *leases) as first_run, machine.run() as second_run:
        assert second_run.do("claim all gpus=2") == "waiting for 2 of 2 GPUs"
        assert first_run.do("close all") == "close: 0 locked"
        assert second_run.read() == "claim: 2 locked"


def test_each_claim_sees_gpus_of_its_own_and_a_wide_one_is_not_overtaken(machine: Machine) -> None:
    with (
        machine.run("claim a") as first,
        machine.run("claim a") as second,
        machine.run() as wide,
        machine.run() as late,
    ):
        assert {run.do("see a") for run in (first, second)} == {"GPU-a", "GPU-b"}
        assert wide.do("claim a gpus=2") == "waiting for 2 of 2 GPUs"
        late.process.send("claim a")
        for run in (first, second):
            assert run.do("close a") == "close: 0 locked"
            assert run.do("see a") == "None"
        assert wide.read() == "claim: 2 locked", "before the one that came later"
        assert late.read() == "waiting for 1 of 2 GPUs", "it is first in line only now"
        assert wide.do("see a") == "GPU-a,GPU-b"
        assert wide.do("close a") == "close: 0 locked"
        assert late.read() == "claim: 1 locked"
        advice = "use a machine that has enough"
        assert wide.do("claim a gpus=3") == f"SensorError: 3 GPUs: this process sees 2; {advice}"


@pytest.mark.parametrize(
    ("afterwards", "words"), [(BUSY, LOST), (IDLE, "close: 0 locked")], ids=["lost", "back"]
)
@pytest.mark.parametrize(("first", "last"), [("a", "b"), ("b", "a")])
def test_of_two_servers_on_a_gpu_the_last_one_answers_for_both(
    machine: Machine, first: str, last: str, afterwards: ScriptedGpu, words: str
) -> None:
    with machine.run("lease a") as run:
        machine.play(BUSY, OTHER)
        assert run.do("lease b") == "lease: 1 locked"
        assert run.do(f"close {first}") == "close: 1 locked"
        machine.play(afterwards, OTHER)
        assert run.do(f"close {last}").startswith(words)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("0", "lease: 1 locked"),
        ("1", "SensorError: DEVICE_SHARED: Scripted NVIDIA H100, number 1: used by process {pid}"),
    ],
    ids=["the-same", "another"],
)
def test_only_on_a_gpu_that_ours_are_on_may_a_number_that_is_not_known_be_ours(
    machine: Machine, wanted: str, words: str
) -> None:
    """As in a container, whose driver may number processes as the host does."""
    with (
        subprocess.Popen(("/bin/sleep", "120")) as stranger,
        machine.run("lease a", f"start {machine.folder}") as run,
    ):
        machine.play(
            dataclasses.replace(IDLE, processes=(Process(4_000_000, GIB),)),
            dataclasses.replace(OTHER, processes=(Process(stranger.pid, GIB),)),
        )
        output = run.do(f"lease b CUDA_VISIBLE_DEVICES={wanted}")
        stranger.kill()
    assert output.startswith(words.format(pid=stranger.pid))


def test_gpus_on_one_side_of_a_machine_divide_its_cores(tmp_path: Path) -> None:
    first, second, far, unknown = (
        builders.device(f"{n}", bus_id=bus) for n, bus in enumerate(("0:1", "0:2", "0:3", ""))
    )
    for device, near in ((first, "0-3,8\n"), (second, "0-3,8\n"), (far, "4-7\n")):
        folder = tmp_path / "bus/pci/devices" / device.bus_id
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text(near)
    everything = (first, second, far, unknown)
    for given_gpus, cores in (
        ((first,), {0, 1}),
        ((second, far), {2, 3, 4, 5, 6}),
        ((unknown,), set()),
    ):
        assert own_cores(given_gpus, everything, set(range(7)), tmp_path) == cores


def test_threads_of_one_core_stay_together(tmp_path: Path) -> None:
    """As Linux numbers them: the second threads of all cores come after the first ones."""
    gpus = [builders.device(name, bus_id="0:1") for name in ("a", "b")]
    (tmp_path / "bus/pci/devices/0:1").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0:1/local_cpulist").write_text("0-7\n")
    for core in range(8):
        folder = tmp_path / f"devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    cores = [own_cores([gpu], gpus, set(range(8)), tmp_path) for gpu in gpus]
    assert cores == [{0, 4, 1, 5}, {2, 6, 3, 7}]
