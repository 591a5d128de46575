"""AMD's GPUs by scripted ones behind amdsmi's interface, on a machine without NVIDIA's."""

import json
from pathlib import Path
from typing import Any

import pytest

from specreg.core.errors import NoGpuError, SensorError
from specreg.telemetry import amd
from specreg.telemetry.identity import Environment
from tests.plugin.preloaded import PreloadedPython
from tests.unit import builders
from tests.unit.builders.scripted_gpus import GIB, MI300X, run_python, show_amd_gpus

ASK = """
import os, sys
from specreg.core.errors import SensorError
from specreg.telemetry.devices import check_cool, check_free, devices_of
try:
    devices = devices_of(int(sys.argv[1]), os.environ)
    print(*[device.why_not or device.id[-1] for device in devices])
    check_free(devices, set())
    check_cool(devices)
except SensorError as error:
    print(error)
"""
STATE = """
import os, time, msgspec
from specreg.telemetry.devices import devices_of, open_probe
(device,) = devices_of(1, os.environ)
probe = open_probe(device)
began_mj, began_s = probe.energy_mj(), time.monotonic()
time.sleep(0.5)
ended_mj, ended_s = probe.energy_mj(), time.monotonic()
power_w = None if began_mj is None else (ended_mj - began_mj) / 1000 / (ended_s - began_s)
print(msgspec.json.encode([device, probe.state(), power_w]).decode())
"""
CLAIM = """
import os
from specreg.servers.gpu_lease import GpuClaim
from specreg.telemetry.devices import devices_of
NAMES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
def settings():
    return [os.environ.get(name, "unset") for name in NAMES]
claim = GpuClaim()
first, second = GpuClaim(), GpuClaim()
first.take(1, print)
print(*settings(), *[device.id[-1] for device in devices_of(1, os.environ)])
second.take(1, print)
print(*settings(), *[device.id[-1] for device in devices_of(1, os.environ)])
second.give_back()
first.give_back()
print(*settings())
"""
LOSE = """
import json, os, sys
from pathlib import Path
from specreg.core.errors import SensorError
from specreg.servers.gpu_lease import GpuClaim
from specreg.telemetry.identity import find_gpus
find_gpus()
script = Path(os.environ["AMDSMI_SCRIPT"])
script.write_text(json.dumps({"gpus": json.loads(sys.argv[1])}))
claim = GpuClaim()
try:
    claim.take(1, print)
except SensorError as error:
    print(error)
claim.give_back()
print(os.environ.get("HIP_VISIBLE_DEVICES", "unset"))
"""
WATCH = """
import os, sys, time
from pathlib import Path
from specreg.telemetry.devices import devices_of
from specreg.telemetry.sampler import watch
devices = devices_of(1, os.environ)
with watch(devices, Path(sys.argv[1])) as watching:
    time.sleep(2.0)
    (trace,), problem = watching.traces(time.monotonic_ns())
first, last = trace.samples[0], trace.samples[-1]
power_w = (last.energy_mj - first.energy_mj) * 1e6 / (last.at_ns - first.at_ns)
print(problem, round(power_w, -2), last.state.sm_clock_mhz)
"""
CHECK = """
from specreg.core.errors import SpecregError
from specreg.servers.provision import Provision
from specreg.telemetry.identity import current_environment, find_gpus
from tests.unit import builders
print(current_environment(gpus=1).name, find_gpus().driver_version)
try:
    Provision(on_gpu=True, show=print).check([builders.CASE])
except SpecregError as error:
    print(error)
"""


def gpu(number: int, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - of any field
    names = {
        "uuid": f"a1ff74a1-0000-1000-80de-00000000000{number}",
        "hip_uuid": f"GPU-000000000000000{number}",
        "hip_id": number,
        "bdf": f"0000:c{number}:00.0",
    }
    return MI300X | names | changes


def run(
    gpu_python: PreloadedPython,
    program: str,
    gpus: list[dict[str, Any]],
    *arguments: str,
    init_error: int | None = None,
    **variables: str,
) -> list[str]:
    """The lines that a program prints where amdsmi shows these GPUs and NVML none."""
    folder = gpu_python.folder
    settings = show_amd_gpus(folder, gpus, init_error) | variables
    return run_python(gpu_python, folder, [], program, *arguments, **settings).splitlines()


THREE = [gpu(0), gpu(1), gpu(2)]


def test_a_gpu_is_read_by_its_energy_counter(gpu_python: PreloadedPython) -> None:
    (line,) = run(gpu_python, STATE, [MI300X])
    device, state, power_w = json.loads(line)
    assert (device["sensor"], device["name"]) == ("amdsmi", "Scripted AMD Instinct MI300X")
    assert (device["memory_bytes"], device["limit_w"]) == (192 * GIB, 0.0)
    assert (device["driver_version"], device["bus_id"]) == ("6.12.12", "0000:c1:00.0")
    assert state == {
        "instant_mw": 400_000,
        "sm_clock_mhz": 2_100,
        "memory_clock_mhz": 1_300,
        "temperature_c": 61,
        "utilisation_frac": 0.97,
        "used_bytes": 3 * GIB,
    }
    assert power_w == pytest.approx(400, rel=0.01)


def test_a_truth_value_is_no_number(gpu_python: PreloadedPython) -> None:
    (line,) = run(gpu_python, STATE, [gpu(0, gfx_clock_mhz=True, gfx_activity=False)])
    _, state, _ = json.loads(line)
    assert state.keys().isdisjoint({"sm_clock_mhz", "utilisation_frac"})


def test_the_sampler_reads_the_counter(gpu_python: PreloadedPython, tmp_path: Path) -> None:
    (line,) = run(gpu_python, WATCH, [MI300X], str(tmp_path / "power.jsonl"))
    assert line.split() == ["400.0", "2100"]


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        (("counted_w",), ["0"]),
        (("current_w",), ["0"]),
        (("counted_w", "current_w"), [amd.NO_POWER]),
    ],
    ids=["no counter", "no power", "neither"],
)
def test_a_gpu_without_power_and_counter_tells_no_power(
    gpu_python: PreloadedPython, missing: tuple[str, ...], says: list[str]
) -> None:
    without = {name: value for name, value in gpu(0).items() if name not in missing}
    assert run(gpu_python, ASK, [without], "1") == says


def test_the_second_gpu_of_a_card_whose_counter_stays_at_zero_tells_no_power(
    gpu_python: PreloadedPython,
) -> None:
    second = gpu(1, counted_w=0, current_w="N/A")
    assert run(gpu_python, ASK, [gpu(0), second], "2") == [f"0 {amd.NO_POWER}"]


@pytest.mark.parametrize(
    ("variables", "seen"),
    [
        ({}, "0 1 2"),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, "2 0"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "1"),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}, "1"),
        ({"ROCR_VISIBLE_DEVICES": "2,1"}, "2 1"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000000000000002"}, "2"),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, "1"),
        ({"HIP_VISIBLE_DEVICES": "0,7,1"}, "0"),
        ({"HIP_VISIBLE_DEVICES": "1,1"}, "1"),
    ],
)
def test_what_rocm_sees_is_seen(variables: dict[str, str], seen: str) -> None:
    devices = tuple(builders.device(id=f"GPU-000000000000000{n}", number=n) for n in range(3))
    assert " ".join(device.id[-1] for device in amd.visible(devices, variables)) == seen


LETTERED = tuple(
    builders.device(id=f"GPU-{letter}00000000000000{letter}", number=number)
    for number, letter in enumerate("abc")
)


@pytest.mark.parametrize(
    ("entries", "by_runtime", "by_hip"),
    [
        ("1,0", "ba", "ba"),
        ("1,,0", "b", "b"),
        ("1,", "b", "b"),
        ("0, 1", "ab", "a"),
        (" 1", "b", ""),
        ("1,01", "b", "b"),
        ("01", "b", ""),
        ("1,1,2", "b", "bc"),
        ("1,GPU-b00000000000000b,2", "b", "bc"),
        ("GPU-b00000000000000b,0", "ba", "ba"),
        ("GPU-B00000000000000B,0", "ba", ""),
        ("gpu-c0", "c", ""),
        ("GPU-c0,GPU-a", "ca", "ca"),
        ("GPU-", "", "a"),
        ("GPU-d,0", "", ""),
        ("a00000000000000a,0", "", ""),
        ("-1,0", "", ""),
        ("+1", "", ""),
        ("²", "", ""),
        ("", "", ""),
    ],
)
def test_each_variable_is_read_as_the_library_that_has_it_reads_it(
    entries: str, by_runtime: str, by_hip: str
) -> None:
    """The rules are those of ROCR-Runtime's `RvdFilter` and of `Device::init` in ROCm's clr."""
    for name, seen in (("ROCR_VISIBLE_DEVICES", by_runtime), ("HIP_VISIBLE_DEVICES", by_hip)):
        try:
            visible = amd.visible(LETTERED, {name: entries})
        except NoGpuError:
            visible = ()
        assert "".join(device.id[-1] for device in visible) == seen, name


def test_two_gpus_that_an_entry_of_the_runtime_fits_are_none() -> None:
    twins = (LETTERED[0], builders.device(id="GPU-a00000000000000b", number=1), LETTERED[2])
    seen = amd.visible(twins, {"ROCR_VISIBLE_DEVICES": "2,GPU-a0"})
    assert [device.id for device in seen] == [LETTERED[2].id]


@pytest.mark.parametrize(
    ("variables", "kind", "words"),
    [
        (
            {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"},
            SensorError,
            "HIP_VISIBLE_DEVICES=1 and CUDA_VISIBLE_DEVICES=0 differ; set only one",
        ),
        ({"HIP_VISIBLE_DEVICES": ""}, NoGpuError, "HIP_VISIBLE_DEVICES= leaves none of 3"),
        ({"HIP_VISIBLE_DEVICES": "-1"}, NoGpuError, "HIP_VISIBLE_DEVICES=-1 leaves none of 3"),
        (
            {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"},
            NoGpuError,
            "ROCR_VISIBLE_DEVICES=0, HIP_VISIBLE_DEVICES=1 leaves none",
        ),
    ],
)
def test_a_selection_that_leaves_no_gpu_is_quoted(
    variables: dict[str, str], kind: type[SensorError], words: str
) -> None:
    devices = tuple(builders.device(id=f"GPU-000000000000000{n}", number=n) for n in range(3))
    with pytest.raises(kind, match=words):
        amd.visible(devices, variables)


def test_too_few_gpus_are_named_with_the_variable_that_shows_more(
    gpu_python: PreloadedPython,
) -> None:
    advice = (
        "show the server more of them with HIP_VISIBLE_DEVICES, or use a machine that has enough"
    )
    (message,) = run(gpu_python, ASK, THREE, "2", HIP_VISIBLE_DEVICES="1")
    assert message == f"amdsmi shows 1 of 2 GPUs; {advice}"


def test_gpus_are_numbered_as_hip_does_and_not_as_the_bus(gpu_python: PreloadedPython) -> None:
    by_bus = [gpu(0, hip_id=1), gpu(1, hip_id=0)]
    assert run(gpu_python, ASK, by_bus, "1") == ["1"]
    assert run(gpu_python, ASK, by_bus, "1", HIP_VISIBLE_DEVICES="1") == ["0"]


def test_processes_that_share_a_claim_see_their_own_gpu(
    gpu_python: PreloadedPython, tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache")
    assert run(gpu_python, CLAIM, THREE, SPECREG_CACHE=cache)[0] == "unset 0 0 0"
    lines = run(gpu_python, CLAIM, THREE, ROCR_VISIBLE_DEVICES="2,1", SPECREG_CACHE=cache)
    assert lines[0] == "2,1 0 0 2"
    assert lines[-1] == "2,1 unset unset"


def test_a_stranger_on_the_gpu_is_named_with_the_variable_that_chooses_another(
    gpu_python: PreloadedPython,
) -> None:
    busy_gpu = gpu(0, processes=[[4_000_000, GIB]])
    (_, message) = run(gpu_python, ASK, [busy_gpu], "1")
    assert message.startswith("DEVICE_SHARED: Scripted AMD Instinct MI300X, number 0: used by")
    assert message.endswith("choose another GPU with HIP_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("gpus", "init_error", "words"),
    [
        ([], None, "NVML: the driver shows no GPU"),
        ([MI300X], 34, "AMD SMI: Error code: 34 | AMDSMI_STATUS_DRIVER_NOT_LOADED"),
        ([gpu(0, uuid={"error": 10}, hip_uuid="N/A")], None, "AMD SMI: Error code: 10 | AMDSMI_ST"),
    ],
    ids=["none", "no driver", "no permission"],
)
def test_gpus_that_cannot_be_used_say_why(
    gpu_python: PreloadedPython, gpus: list[dict[str, Any]], init_error: int | None, words: str
) -> None:
    (message,) = run(gpu_python, ASK, gpus, "1", init_error=init_error)
    assert message.startswith(words)


def test_a_gpu_that_may_not_be_opened_hides_itself_alone(gpu_python: PreloadedPython) -> None:
    closed = gpu(0, uuid={"error": 10}, hip_uuid="N/A")
    assert run(gpu_python, ASK, [closed, gpu(1)], "1") == ["1"]


@pytest.mark.parametrize(
    "lost", [[gpu(0, uuid={"error": 10}, hip_uuid="N/A")], []], ids=["closed", "gone"]
)
def test_a_gpu_that_was_lost_since_it_was_found_is_named(
    gpu_python: PreloadedPython, tmp_path: Path, lost: list[dict[str, Any]]
) -> None:
    remaining = json.dumps([*lost, gpu(1)])
    lines = run(gpu_python, LOSE, [gpu(0), gpu(1)], remaining, SPECREG_CACHE=str(tmp_path))
    assert lines == [
        "AMD SMI: GPU 'GPU-0000000000000000' is gone; look at the kernel's log (dmesg)",
        "unset",
    ]


def test_without_amdsmi_a_machine_with_such_gpus_says_what_to_install(tmp_path: Path) -> None:
    node = tmp_path / "kfd"
    with pytest.raises(NoGpuError):
        amd.find_all(node)
    node.touch()
    with pytest.raises(SensorError, match=r"amdsmi can't be imported, .*; install ROCm's"):
        amd.find_all(node)


def test_the_environment_has_the_name_of_the_card_and_needs_a_build_for_rocm(
    gpu_python: PreloadedPython, tmp_path: Path
) -> None:
    name, message = run(gpu_python, CHECK, [MI300X], SPECREG_CACHE=str(tmp_path / "cache"))
    assert name == "scripted-amd-instinct-mi300x-192gb-x1 6.12.12"
    assert message.endswith(
        "its release is built for CUDA, and this machine has GPUs of AMD; install a build for ROCm"
        " into an environment, and name its Python (--specreg-engine-python, or a side of a gate)"
    )


def test_a_power_limit_that_somebody_set_is_part_of_the_environment(
    gpu_python: PreloadedPython,
) -> None:
    (line,) = run(gpu_python, STATE, [gpu(0, power_cap_w=550)])
    device, _, _ = json.loads(line)
    assert device["limit_w"] == 550
    assert device["highest_limit_w"] == 750
    environment = Environment(kind="gpu", gpus=(device["name"],), power_limit_w=device["limit_w"])
    assert environment.name.endswith("-550w-x1")
