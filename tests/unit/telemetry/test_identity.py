"""The machine's facts, and the name of the environment they make."""

import dataclasses
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from specreg.telemetry.identity import (
    Environment,
    Gpus,
    _read_cpu,
    _slug,
    current_environment,
    find_gpus,
)
from tests.doubles.nvml.device import ScriptedGpu
from tests.unit import builders
from tests.unit.playing import Player

XEON = "Intel(R) Xeon(R) CPU @ 2.50GHz"
PROGRAM = """
import msgspec, os, sys
from specreg.telemetry.identity import current_environment
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(sys.argv[1])])
print(msgspec.json.encode(current_environment(needs_gpus=int(sys.argv[2]))).decode())
"""

GPUS = """
import msgspec
from specreg.telemetry.identity import find_gpus
print(msgspec.json.encode(find_gpus()).decode())
"""


H200 = ScriptedGpu(name="Scripted NVIDIA H200", memory_total_bytes=150_754_820_096)
TWO = (H200, dataclasses.replace(H200, uuid="GPU-2"))


def seen_with_two_gpus(library: Path, *, cores: int, needs_gpus: int) -> Environment:
    """This machine in a process of its own that may use some cores, and whose driver shows GPUs."""
    said = said_with(library, TWO, PROGRAM, str(cores), str(needs_gpus))
    return msgspec.json.decode(said, type=Environment)


def said_with(
    library: Path, gpus: Sequence[ScriptedGpu], program: str, *arguments: str, **variables: str
) -> str:
    player = Player(library=library, folder=library.parent, more=variables)
    done = player.run(gpus, "-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def gpus_with(library: Path, *gpus: ScriptedGpu, **variables: str) -> Gpus:
    return msgspec.json.decode(said_with(library, gpus, GPUS, **variables), type=Gpus)


@pytest.mark.parametrize(
    ("flags", "instruction_set"),
    [
        pytest.param("fpu sse2 avx avx2 avx512f avx512bw amx_bf16 amx_tile", "amx", id="amx"),
        pytest.param("fpu avx2 avx512f avx512bw", "avx512", id="avx512"),
        pytest.param("fpu avx avx2 fma", "avx2", id="avx2"),
        pytest.param("fpu sse2 avx", "scalar", id="older"),
        pytest.param("fpu my_avx2_like", "scalar", id="no-whole-word"),
    ],
)
def test_the_widest_instruction_set_is_found(
    tmp_path: Path, flags: str, instruction_set: str
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    core = f"processor\t: 0\nmodel name\t: {XEON}\nflags\t\t: {flags}\nbugs\t\t: spectre\n\n"
    cpuinfo.write_text(core * 2)
    assert _read_cpu(cpuinfo) == (XEON, instruction_set)


def test_an_arm_processor_has_features_and_no_name_and_a_machine_without_the_file_neither(
    tmp_path: Path,
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    assert _read_cpu(cpuinfo) == (platform.machine(), "scalar")
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd evtstrm aes\nCPU part\t: 0xd40\n")
    assert _read_cpu(cpuinfo) == (platform.machine(), "asimd")


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        (XEON, "intel-xeon-2.50ghz"),
        ("AMD EPYC 7B13", "amd-epyc-7b13"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "amd-ryzen-9-7950x-16-core"),
        ("Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz", "intel-core-i7-9750h-2.60ghz"),
        ("NVIDIA H200", "nvidia-h200"),
        ("a/../b", "a-..-b"),
    ],
)
def test_a_name_becomes_part_of_a_path(name: str, slug: str) -> None:
    assert _slug(name) == slug
    assert "/" not in _slug(name)


def test_an_environment_is_named_by_its_processor_or_by_its_gpus() -> None:
    assert builders.ENVIRONMENT.name == "cpu-intel-xeon-2.50ghz-avx512-2c"
    two = Environment(kind="gpu", gpus=("NVIDIA H200", "NVIDIA H200"), gpu_memory_gb=151)
    assert two.name == "h200-141gb-x2"
    h100 = Environment(kind="gpu", gpus=("NVIDIA H100 80GB HBM3",), gpu_memory_gb=86)
    assert h100.name == "h100-80gb-hbm3-x1"


def test_what_is_known_of_a_gpu_is_in_its_name() -> None:
    """So two of one name are equal: a fact beside them would make one machine two."""
    h200 = Environment(kind="gpu", gpus=("NVIDIA H200",), gpu_memory_gb=151)
    h100 = msgspec.structs.replace(h200, gpus=("NVIDIA H100",))
    smaller = msgspec.structs.replace(h200, gpu_memory_gb=141)
    two = msgspec.structs.replace(h200, gpus=h200.gpus * 2)
    assert len({one.name for one in (h200, h100, smaller, two)}) == 4
    assert (h200.cpu, h200.instruction_set, h200.cores) == ("", "", 0)


@pytest.mark.parametrize("cores", [1, len(os.sched_getaffinity(0))])
def test_a_machine_is_described_by_its_gpus_alone_for_the_gpu_tier(
    library: Path, cores: int
) -> None:
    assert seen_with_two_gpus(library, cores=cores, needs_gpus=1) == Environment(
        kind="gpu", gpus=("Scripted NVIDIA H200",), gpu_memory_gb=151
    )


def test_a_machine_with_gpus_is_described_without_them_for_the_cpu_tier(library: Path) -> None:
    environment = seen_with_two_gpus(library, cores=1, needs_gpus=0)
    assert environment == msgspec.structs.replace(current_environment(needs_gpus=0), cores=1)


@pytest.mark.parametrize("change", [{"instruction_set": "avx2"}, {"cores": 4}, {"cpu": "Other"}])
def test_another_machine_has_another_name(change: dict[str, object]) -> None:
    other = msgspec.structs.replace(builders.ENVIRONMENT, **change)
    assert other.name != builders.ENVIRONMENT.name


def test_this_machine_is_described_without_its_gpus_for_the_cpu_tier() -> None:
    environment = current_environment(needs_gpus=0)
    assert (environment.kind, environment.gpus, environment.gpu_memory_gb) == ("cpu", (), 0)
    assert environment.cores == len(os.sched_getaffinity(0))
    assert environment == current_environment(needs_gpus=0)


def test_each_gpu_has_its_memory(library: Path) -> None:
    """An H200 as NVIDIA's data sheet has it: 141 GB."""
    gpus = gpus_with(library, *TWO)
    assert gpus.memory_gib == pytest.approx((140.4, 140.4), abs=0.01)
    assert gpus.driver_version == "580.scripted"


def test_gpus_that_are_hidden_are_none_of_ours(library: Path) -> None:
    gpus = gpus_with(library, *TWO, CUDA_VISIBLE_DEVICES="1")
    assert [device.id for device in gpus.devices] == ["GPU-2"]
    hidden = gpus_with(library, *TWO, CUDA_VISIBLE_DEVICES="")
    assert hidden.why_none == (
        "NVML: CUDA_VISIBLE_DEVICES= leaves none of 2 GPU(s); unset it, or name one that is there"
    )


def test_a_power_limit_that_somebody_lowered_makes_another_machine(library: Path) -> None:
    program = PROGRAM.replace("os.sched_setaffinity", "#")
    lowered = dataclasses.replace(H200, power_limit_w=500.0)
    said = said_with(library, (lowered,), program, "1", "1")
    found = msgspec.json.decode(said, type=Environment)
    assert found.power_limit_w == 500.0
    assert found.name == "scripted-h200-141gb-500w-x1"


def test_a_machine_without_gpus_says_why() -> None:
    gpus = find_gpus()
    assert bool(gpus.names) != bool(gpus.why_none)
