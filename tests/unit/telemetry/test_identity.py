"""The machine's facts, and the name of the environment they make."""

import dataclasses
import os
import platform
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from specreg.core.errors import NoGpuError, SensorError
from specreg.core.names import is_name
from specreg.core.readable import is_plain
from specreg.telemetry.identity import (
    UNKNOWN_ENVIRONMENT,
    Environment,
    Gpus,
    _read_cpu,
    _slug,
    current_environment,
    find_gpus,
    machine_identity,
)
from specreg.telemetry.sensor import DeviceState
from tests.doubles.nvml.device import Answer, Scope, ScriptedDriver, ScriptedGpu, Throttle
from tests.plugin.preloaded import PreloadedPython
from tests.unit import builders
from tests.unit.builders.scripted_gpus import run_python

XEON = "Intel(R) Xeon(R) CPU @ 2.50GHz"
# Its answer is the machine's GPUs, and its environments with none of them and with one.
PROGRAM = """
import msgspec, os
from specreg.telemetry.identity import current_environment, find_gpus
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
seen = find_gpus(), current_environment(gpus=0), current_environment(gpus=1)
print(msgspec.json.encode(seen).decode())
"""

H200 = ScriptedGpu(name="Scripted NVIDIA H200", memory_total_bytes=150_754_820_096)
TWO = (H200, dataclasses.replace(H200, uuid="GPU-2"))


def seen(
    gpu_python: PreloadedPython,
    *gpus: ScriptedGpu,
    answers: tuple[Answer, ...] = (),
    **variables: str,
) -> tuple[Gpus, Environment, Environment]:
    """What a process that has one core sees of a machine with these GPUs, as `PROGRAM` says."""
    driver = ScriptedDriver(gpus, answers)
    output = run_python(gpu_python, gpu_python.folder, driver, PROGRAM, **variables)
    return msgspec.json.decode(output, type=tuple[Gpus, Environment, Environment])


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


def test_an_arm_processor_or_a_missing_file_has_no_processor_name(tmp_path: Path) -> None:
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


def test_a_machine_is_described_by_its_gpus_or_processors_as_a_tier_needs(
    gpu_python: PreloadedPython,
) -> None:
    """An H200 as NVIDIA's data sheet has it: 141 GB."""
    gpus, without, with_one = seen(gpu_python, *TWO)
    assert gpus.memory_gib == pytest.approx((140.4, 140.4), abs=0.01)
    assert gpus.driver_version == "580.scripted"
    assert with_one == Environment(kind="gpu", gpus=("Scripted NVIDIA H200",), gpu_memory_gb=151)
    here = current_environment(gpus=0)
    assert (here.kind, here.gpus, here.gpu_memory_gb) == ("cpu", (), 0)
    assert here.cores == len(os.sched_getaffinity(0))
    assert without == msgspec.structs.replace(here, cores=1)


def test_a_power_limit_that_was_lowered_makes_another_machine(gpu_python: PreloadedPython) -> None:
    _, _, state = seen(gpu_python, dataclasses.replace(H200, power_limit_w=500.0))
    assert state.power_limit_w == 500.0
    assert state.name == "scripted-h200-141gb-500w-x1"


def test_gpus_that_are_hidden_are_none_of_ours(gpu_python: PreloadedPython) -> None:
    gpus, _, _ = seen(gpu_python, *TWO, CUDA_VISIBLE_DEVICES="1")
    assert [device.id for device in gpus.devices] == ["GPU-2"]
    hidden, _, _ = seen(gpu_python, *TWO, CUDA_VISIBLE_DEVICES="")
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


NOT_SUPPORTED = 3
NO_PERMISSION = 4
UNKNOWN = 999
LIMITS = ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit")


def answering(code: int, *functions: str, **changes: object) -> ScriptedGpu:
    """A GPU of which some functions answer an error."""
    answers = tuple(Answer(function, code) for function in functions)
    return dataclasses.replace(H200, answers=answers, **changes)  # type: ignore[arg-type]


def test_a_gpu_that_is_part_of_a_processor_has_the_machines_memory(
    gpu_python: PreloadedPython,
) -> None:
    """As GB10 answers, the processor of NVIDIA's DGX Spark."""
    spark = answering(
        NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo", *LIMITS, name="Scripted NVIDIA GB10"
    )
    gpus, _, environment = seen(gpu_python, spark)
    (device,) = gpus.devices
    assert (device.memory_bytes, device.shares_memory, device.limit_w) == (None, True, None)
    assert gpus.memory_gib == (psutil.virtual_memory().total / 2**30,)
    assert (environment.gpu_memory_gb, environment.power_limit_w) == (None, None)
    assert environment.name == "scripted-gb10-x1"


@pytest.mark.parametrize(
    "gpu",
    [
        answering(NO_PERMISSION, "nvmlDeviceGetMemoryInfo"),
        answering(UNKNOWN, "nvmlDeviceGetMemoryInfo"),
        dataclasses.replace(H200, memory_total_bytes=0, memory_used_bytes=0),
    ],
    ids=["no-permission", "unknown", "zero"],
)
def test_a_memory_that_is_not_known_is_unknown_and_not_zero(
    gpu_python: PreloadedPython, gpu: ScriptedGpu
) -> None:
    gpus, _, environment = seen(gpu_python, gpu, TWO[1])
    unknown_gib, other_gib = gpus.memory_gib
    assert unknown_gib is None
    assert other_gib == pytest.approx(140.4, abs=0.01)
    assert gpus.with_memory(24.0).memory_gib == (24.0, other_gib)
    assert environment.gpu_memory_gb is None
    assert environment.name == "scripted-h200-x1"


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize("function", LIMITS)
def test_a_power_limit_that_is_not_known_is_not_the_vendors(
    gpu_python: PreloadedPython, function: str, code: int
) -> None:
    _, _, environment = seen(gpu_python, answering(code, function))
    assert environment.power_limit_w is None
    assert environment.name == "scripted-h200-141gb-x1"


@pytest.mark.parametrize(
    ("change", "highest_w"),
    [
        ({}, 700.0),
        ({"power_limit_w": 300.0}, 700.0),
        ({"power_limit_w": 800.0}, 800.0),
        ({"module_extra_w": 200.0}, None),
        ({"scope": Scope.MODULE}, None),
    ],
    ids=["default", "lowered", "raised", "both scopes", "module"],
)
def test_the_highest_limit_is_that_of_what_the_power_covers(
    gpu_python: PreloadedPython, change: dict[str, Any], highest_w: float | None
) -> None:
    gpus, _, _ = seen(gpu_python, dataclasses.replace(H200, **change))
    (device,) = gpus.devices
    assert device.highest_limit_w == highest_w


def test_what_a_driver_cannot_know_is_unknown_and_makes_no_environment_that_nobody_reads(
    gpu_python: PreloadedPython,
) -> None:
    """NVML_VALUE_NOT_AVAILABLE, and a memory that no card has."""
    limit_w = (2**32 - 1) / 1000
    changes = ({"power_limit_w": limit_w}, {"default_power_limit_w": limit_w})
    for change in (*changes, {"memory_total_bytes": 2**63 - 1}):
        gpus, _, environment = seen(gpu_python, dataclasses.replace(H200, **change))
        (device,) = gpus.devices
        assert (device.memory_bytes is None) == ("memory_total_bytes" in change)
        assert (device.limit_w is None) == ("memory_total_bytes" not in change)
        assert msgspec.json.decode(msgspec.json.encode(environment), type=Environment)


def test_what_a_driver_says_is_plain_text(gpu_python: PreloadedPython) -> None:
    odd = dataclasses.replace(H200, name="Scripted \x1b[31mH200 \x07::error::")
    gpus, _, environment = seen(gpu_python, odd)
    assert is_plain(gpus.devices[0].name)
    assert environment.gpus == (gpus.devices[0].name,)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, UNKNOWN])
def test_a_gpu_without_a_name_is_of_no_known_environment(
    gpu_python: PreloadedPython, code: int
) -> None:
    gpus, _, environment = seen(gpu_python, answering(code, "nvmlDeviceGetName"))
    assert gpus.devices[0].name == ""
    assert environment == UNKNOWN_ENVIRONMENT


@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN, 15])
@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_gpu_that_cannot_be_opened_hides_itself_alone(
    gpu_python: PreloadedPython, function: str, code: int
) -> None:
    first = answering(code, function)
    gpus, _, environment = seen(gpu_python, first, TWO[1])
    assert [device.id for device in gpus.devices] == ["GPU-2"]
    assert gpus.devices[0].number == 1
    assert [hidden.number for hidden in gpus.hidden] == [0]
    assert "; " in gpus.hidden[0].reason
    assert environment.kind == "gpu"
    assert [
        device.id for device in seen(gpu_python, first, TWO[1], CUDA_VISIBLE_DEVICES="0")[0].devices
    ] == ["GPU-2"]
    alone, _, _ = seen(gpu_python, first)
    assert alone.is_unusable
    assert alone.why_none == gpus.hidden[0].reason


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            18,
            "the loaded driver and NVIDIA's library are of different versions, as after an upgrade",
        ),
        (9, "Driver Not Loaded; load the driver (modprobe nvidia) or reboot"),
        (NO_PERMISSION, "Insufficient Permissions; run as a user who may use the GPU"),
        (15, "GPU is lost; look at the kernel's log (dmesg) for Xid"),
        (17, "The operating system has blocked the request; look at the rights of /dev/nvidia*"),
        (16, "GPU requires restart; reset the GPU"),
        (13, "Function Not Found; install a newer driver"),
        (UNKNOWN, "Unknown Error; look at the kernel's log (dmesg) for Xid, and reload the driver"),
        (77, "; look at the kernel's log (dmesg) for Xid, and reload the driver or reboot"),
    ],
)
@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_driver_that_does_not_work_is_not_a_machine_without_a_gpu(
    gpu_python: PreloadedPython, function: str, code: int, says: str
) -> None:
    gpus, _, _ = seen(gpu_python, H200, answers=(Answer(function, code),))
    assert gpus.devices == ()
    assert gpus.is_unusable
    assert says in gpus.why_none
    with pytest.raises(SensorError, match="NVML: "):
        gpus.check_usable()


def test_driver_and_library_of_different_versions_are_mended_by_a_reload(
    gpu_python: PreloadedPython,
) -> None:
    gpus, _, _ = seen(gpu_python, H200, answers=(Answer("nvmlInit", 18),))
    assert gpus.why_none.endswith("; reload the driver or reboot")


def test_a_machine_without_a_driver_or_without_a_gpu_is_just_that(
    gpu_python: PreloadedPython,
) -> None:
    without_driver, _, _ = seen(gpu_python, answers=(Answer("nvmlInit", 12),))
    assert not without_driver.is_unusable
    assert without_driver.why_none.endswith("or start the container with --gpus")
    assert not seen(gpu_python)[0].is_unusable
    assert not seen(gpu_python, H200, CUDA_VISIBLE_DEVICES="-1")[0].is_unusable


def test_a_process_with_gpus_but_without_their_library_is_refused(
    gpu_python: PreloadedPython, tmp_path: Path
) -> None:
    program = (
        "import sys; from pathlib import Path; from specreg.telemetry import nvml\n"
        "try: nvml.find({}, Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    driver = ScriptedDriver(answers=(Answer("nvmlInit", 12),))
    node = tmp_path / "nvidiactl"
    without = run_python(gpu_python, tmp_path, driver, program, str(node))
    assert without.startswith(f"{NoGpuError.__name__} NVML: NVML Shared Library Not Found; install")
    node.touch()
    output = run_python(gpu_python, tmp_path, driver, program, str(node))
    assert output.startswith(f"{SensorError.__name__} NVML: NVML Shared Library Not Found, though")


def test_gpus_whose_order_is_unknown_are_not_none(gpu_python: PreloadedPython) -> None:
    mixed = dataclasses.replace(TWO[1], name="Scripted NVIDIA L4")
    gpus, _, _ = seen(gpu_python, H200, mixed)
    assert gpus.is_unusable
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in gpus.why_none


def test_a_gpu_in_slices_is_seen_as_its_first_slice(gpu_python: PreloadedPython) -> None:
    cut = dataclasses.replace(H200, mig=True, slices=2, slice_memory_bytes=18 * 2**30)
    unset = seen(gpu_python, cut)
    by_number = seen(gpu_python, cut, CUDA_VISIBLE_DEVICES="0")
    by_uuid = seen(gpu_python, cut, CUDA_VISIBLE_DEVICES=cut.uuid)
    for gpus, _, environment in (unset, by_number, by_uuid):
        (device,) = gpus.devices
        assert device.id == f"MIG-{cut.uuid}-0"
        assert gpus.memory_gib == (18.0,)
        assert "MIG is on" in device.why_not
        assert environment.gpus == ("Scripted NVIDIA H200 MIG 1g",)
    named, _, _ = seen(gpu_python, cut, CUDA_VISIBLE_DEVICES=f"MIG-{cut.uuid}-1")
    assert [device.id for device in named.devices] == [f"MIG-{cut.uuid}-1"]
    stranger, _, _ = seen(gpu_python, TWO[1], cut)
    assert [device.id for device in stranger.devices] == [f"MIG-{cut.uuid}-0"]


def test_a_gpu_in_slices_that_lists_none_is_not_the_whole_card(gpu_python: PreloadedPython) -> None:
    cut = dataclasses.replace(H200, mig=True, slices=0)
    empty, _, _ = seen(gpu_python, cut)
    assert empty.is_unusable
    assert "has no slice to compute on" in empty.why_none
    stranger, _, _ = seen(gpu_python, cut, TWO[1])
    assert [device.id for device in stranger.devices] == ["GPU-2"]
    assert [hidden.number for hidden in stranger.hidden] == [0]
    unlisted = answering(13, "nvmlDeviceGetMaxMigDeviceCount", mig=True)
    assert seen(gpu_python, unlisted)[0].memory_gib == (None,)


STATE = """
import msgspec, os
from specreg.telemetry.devices import devices_of, open_probe, throttling_of
(device,) = devices_of(1, os.environ)
state = open_probe(device).state()
print(msgspec.json.encode((state, throttling_of([state])[1])).decode())
"""


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetUtilizationRates", "utilisation_frac"),
        ("nvmlDeviceGetMemoryInfo", "used_bytes"),
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz"),
        ("nvmlDeviceGetClockInfo", "memory_clock_mhz"),
        ("nvmlDeviceGetCurrentClocks", "throttle_mask"),
    ],
)
def test_what_a_driver_does_not_tell_of_a_moment_is_none(
    gpu_python: PreloadedPython, function: str, field: str, code: int
) -> None:
    hot = answering(code, function, throttle=(Throttle(0x40),))
    output = run_python(gpu_python, gpu_python.folder, [hot], STATE)
    state, problem = msgspec.json.decode(output, type=tuple[DeviceState, str])
    fields = msgspec.structs.asdict(state)
    assert fields.pop(field) is None
    unknown = {name for name, value in fields.items() if value is None}
    assert unknown <= {"memory_clock_mhz", "sm_clock_mhz"}
    assert "0 °C" not in problem
    assert "0 MHz" not in problem.replace("1980 MHz", "")


def test_two_machines_of_one_kind_have_different_identities(
    gpu_python: PreloadedPython, tmp_path: Path
) -> None:
    machines = [
        machine_identity(seen(gpu_python, *gpus)[0])
        for gpus in ((TWO[0],), (TWO[1],), TWO, TWO[::-1])
    ]
    assert len(set(machines)) == 3
    assert machines[2] == machines[3]
    no_gpu = Gpus(devices=(), why_none="none")
    installation = tmp_path / "machine-id"
    assert machine_identity(no_gpu, installation) == ""
    installation.write_text("\n")
    assert machine_identity(no_gpu, installation) == ""
    installation.write_text("b08dfa6083e7567a1921a715000001fb\n")
    assert len(machine_identity(no_gpu, installation)) == 12
