"""The machine's facts, and the name of the environment they make."""

import dataclasses
import os
import platform
from pathlib import Path

import msgspec
import pytest

from specreg.core.names import is_name
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
from tests.unit.playing import run_python

XEON = "Intel(R) Xeon(R) CPU @ 2.50GHz"
# Its answer is the machine's GPUs, and its environments with none of them and with one.
PROGRAM = """
import msgspec, os
from specreg.telemetry.identity import current_environment, find_gpus
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
seen = find_gpus(), current_environment(needs_gpus=0), current_environment(needs_gpus=1)
print(msgspec.json.encode(seen).decode())
"""

H200 = ScriptedGpu(name="Scripted NVIDIA H200", memory_total_bytes=150_754_820_096)
TWO = (H200, dataclasses.replace(H200, uuid="GPU-2"))


def seen(
    library: Path, *gpus: ScriptedGpu, **variables: str
) -> tuple[Gpus, Environment, Environment]:
    """What a process that has one core sees of a machine with these GPUs, as `PROGRAM` says."""
    said = run_python(library, library.parent, gpus, PROGRAM, **variables)
    return msgspec.json.decode(said, type=tuple[Gpus, Environment, Environment])


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


def test_a_machine_is_described_by_its_gpus_or_by_its_processors_as_a_tier_needs_them(
    library: Path,
) -> None:
    """An H200 as NVIDIA's data sheet has it: 141 GB."""
    gpus, without, with_one = seen(library, *TWO)
    assert gpus.memory_gib == pytest.approx((140.4, 140.4), abs=0.01)
    assert gpus.driver_version == "580.scripted"
    assert with_one == Environment(kind="gpu", gpus=("Scripted NVIDIA H200",), gpu_memory_gb=151)
    here = current_environment(needs_gpus=0)
    assert (here.kind, here.gpus, here.gpu_memory_gb) == ("cpu", (), 0)
    assert here.cores == len(os.sched_getaffinity(0))
    assert without == msgspec.structs.replace(here, cores=1)


def test_a_power_limit_that_was_lowered_makes_another_machine(library: Path) -> None:
    _, _, found = seen(library, dataclasses.replace(H200, power_limit_w=500.0))
    assert found.power_limit_w == 500.0
    assert found.name == "scripted-h200-141gb-500w-x1"


def test_gpus_that_are_hidden_are_none_of_ours(library: Path) -> None:
    gpus, _, _ = seen(library, *TWO, CUDA_VISIBLE_DEVICES="1")
    assert [device.id for device in gpus.devices] == ["GPU-2"]
    hidden, _, _ = seen(library, *TWO, CUDA_VISIBLE_DEVICES="")
    assert hidden.why_none == (
        "NVML: CUDA_VISIBLE_DEVICES= leaves none of 2 GPU(s); unset it, or name one that is there"
    )


def test_a_machine_without_gpus_says_why() -> None:
    gpus = find_gpus()
    assert bool(gpus.devices) != bool(gpus.why_none)


@pytest.mark.parametrize(
    "environment",
    [
        Environment(kind="cpu", cpu="../../x", instruction_set="../../../etc", cores=2),
        Environment(kind="cpu", cpu="x" * 300, instruction_set="avx2", cores=2),
        Environment(kind="cpu", cpu="\uff41\x00\n", instruction_set="\n", cores=2),
        Environment(kind="gpu", gpus=("..", "/etc"), power_limit_w=1e308),
        Environment(kind="gpu", gpus=tuple(f"card {number}" for number in range(50))),
        Environment(kind="gpu"),
    ],
)
def test_whatever_a_machine_says_of_itself_its_name_is_one_folder(environment: Environment) -> None:
    assert is_name(environment.name)


def test_long_names_of_different_machines_differ() -> None:
    long, longer = (Environment(kind="cpu", cpu="x" * length, cores=2) for length in (200, 201))
    assert long.name != longer.name
