"""Whose power is measured, and whether it is free: where the scripted driver shows GPUs."""

import dataclasses
import os

import msgspec
import pytest

from specreg.core.errors import InvalidMeasurementError
from specreg.telemetry.power_record import (
    PowerRecord,
    arm_power,
    check_alone,
    check_not_throttled,
    power_over_time,
    record_power,
)
from specreg.telemetry.sampler import DeviceSample, PowerTrace
from specreg.telemetry.sensor import DeviceState
from tests.doubles.nvml.device import Answer, Process, ScriptedGpu, Throttle, constant
from tests.plugin.preloaded import PreloadedPython
from tests.unit import builders
from tests.unit.builders.scripted_gpus import run_python, running

ASK = """
import os, sys
from specreg.core.errors import SensorError
from specreg.telemetry.devices import check_cool, check_free
from specreg.telemetry.devices import devices_of
try:
    devices = devices_of(int(sys.argv[1]), os.environ)
    print(*[device.why_not or device.id for device in devices])
    check_free(devices, set(map(int, sys.argv[2:])), {os.environ.get("TAKEN", "")})
    check_cool(devices)
    print("free")
except SensorError as error:
    print(error)
"""
OF_A_CASE = """
import dataclasses
from specreg.servers.provision import Provision
from tests.unit.builders import SPEC
spec = dataclasses.replace(SPEC, engine_env=(("CUDA_VISIBLE_DEVICES", "2"),))
print(*(device.id for device in Provision(on_gpu=True, show=print).devices(spec)))
"""
HOLDING = """
import os, sys
from specreg.telemetry.devices import held_bytes
print(held_bytes(2, os.environ, {int(sys.argv[1])}))
"""
WITHIN_ONE_SCOPE = """
import os, time
from specreg.telemetry.devices import devices_of, open_probe
(device,) = devices_of(1, os.environ)
probe = open_probe(device)
began_mj, began_s = probe.energy_mj(), time.monotonic()
time.sleep(1.0)
ended_mj, ended_s = probe.energy_mj(), time.monotonic()
counted_w = None if began_mj is None else (ended_mj - began_mj) / 1000 / (ended_s - began_s)
print(device.scope, probe.state().average_mw / 1000, counted_w)
"""
THREE = tuple(ScriptedGpu(uuid=f"GPU-{letter}") for letter in "abc")


def asked(
    gpu_python: PreloadedPython, gpus: tuple[ScriptedGpu, ...], *arguments: int, **variables: str
) -> list[str]:
    """What a process says of the devices of a server that takes so many GPUs."""
    return run_python(
        gpu_python, gpu_python.folder, gpus, ASK, *map(str, arguments), **variables
    ).splitlines()


def test_a_server_over_two_gpus_takes_the_first_two_that_it_sees(
    gpu_python: PreloadedPython,
) -> None:
    assert asked(gpu_python, THREE, 2) == ["GPU-a GPU-b", "free"]
    assert asked(gpu_python, THREE, 2, CUDA_VISIBLE_DEVICES="2,0,1") == ["GPU-c GPU-a", "free"]


def test_a_case_that_says_which_gpu_its_server_sees_is_measured_there(
    gpu_python: PreloadedPython,
) -> None:
    seen = run_python(gpu_python, gpu_python.folder, THREE, OF_A_CASE, CUDA_VISIBLE_DEVICES="0")
    assert seen == "GPU-c\n"


def test_fewer_gpus_than_it_takes_are_none(gpu_python: PreloadedPython) -> None:
    advice = (
        "show the server more of them with CUDA_VISIBLE_DEVICES, or use a machine that has enough"
    )
    assert asked(gpu_python, THREE, 4) == [f"nvml shows 3 of 4 GPUs; {advice}"]
    (message,) = asked(gpu_python, THREE, 1, CUDA_VISIBLE_DEVICES="7")
    assert message.startswith("NVML: CUDA_VISIBLE_DEVICES=7 leaves none of 3 GPU(s)")


def test_a_stranger_on_any_of_them_is_named_and_ours_are_not(gpu_python: PreloadedPython) -> None:
    taken_gpu = dataclasses.replace(THREE[1], processes=(Process(os.getpid(), 2**30),))
    gpus = (THREE[0], taken_gpu, THREE[2])
    assert asked(gpu_python, gpus, 1) == ["GPU-a", "free"]
    (_, message) = asked(gpu_python, gpus, 2)
    assert message.startswith("DEVICE_SHARED: Scripted NVIDIA H100, number 1: used by process")
    assert f"process {os.getpid()} (" in message
    assert asked(gpu_python, gpus, 2, os.getpid()) == ["GPU-a GPU-b", "free"]


def test_where_the_driver_numbers_processes_otherwise_ours_are_not_strangers(
    gpu_python: PreloadedPython,
) -> None:
    """In a container none of ours is among them, though one of ours is on that device."""
    taken_gpu = dataclasses.replace(THREE[0], processes=(Process(4_000_000, 2**30),))
    assert asked(gpu_python, (taken_gpu,), 1, os.getpid(), TAKEN="GPU-a") == ["GPU-a", "free"]
    for own_pids in ((), (os.getpid(),)):
        (_, message) = asked(gpu_python, (taken_gpu,), 1, *own_pids, TAKEN="GPU-b")
        assert "used by process 4000000 (of another user or container)" in message


@pytest.mark.parametrize(
    ("pids", "held"),
    [
        (((1, 3), (1, 3)), 2 * 2**30),
        (((1, 3), (7,)), 2 * 2**30),
        (((1, 3), (7, 8)), None),
        (((1, 3), ()), None),
    ],
    ids=["ours", "alone under another id", "one of two", "none"],
)
def test_the_memory_that_a_server_holds_is_that_of_its_processes_on_all_gpus(
    gpu_python: PreloadedPython, pids: tuple[tuple[int, ...], ...], held: int | None
) -> None:
    """Of each process a GiB; ours is number 1."""
    gpus = [
        dataclasses.replace(gpu, processes=tuple(Process(pid, 2**30) for pid in gpu_pids))
        for gpu, gpu_pids in zip(THREE, (*pids, ()), strict=True)
    ]
    assert run_python(gpu_python, gpu_python.folder, gpus, HOLDING, "1").strip() == str(held)


def test_what_holds_a_gpu_back_before_it_runs_is_said(gpu_python: PreloadedPython) -> None:
    hot = dataclasses.replace(THREE[0], throttle=(Throttle(0x48),))
    (_, message) = asked(gpu_python, (hot,), 1)
    assert message == (
        "THROTTLED: Scripted NVIDIA H100, number 0: is slowed down before a server starts,"
        " hardware slowdown, hardware thermal slowdown, 61 °C at 1980 MHz; let it cool down, or"
        " give it more power"
    )


def listed(*pids: tuple[int, ...]) -> PowerTrace:
    """Who was there, second by second."""
    return PowerTrace(
        device=builders.device(),
        samples=[
            DeviceSample(device_index=0, at_ns=at * 10**9, pids=sample_pids)
            for at, sample_pids in enumerate(pids)
        ],
    )


def test_where_none_is_known_for_ours_a_newcomer_is_the_stranger() -> None:
    span = (2 * 10**9, 5 * 10**9)
    check_alone([listed((7,), (7,), (7,), (7,), (7,))], [span], our_pids={1})
    with pytest.raises(InvalidMeasurementError, match=r"DEVICE_SHARED: .*process 8"):
        check_alone([listed((7,), (7,), (7,), (7, 8), (7,))], [span], our_pids={1})


def test_the_energy_of_two_gpus_is_that_of_both_or_of_none() -> None:
    first, second = (
        device
        for energy_j in (1000.0, 500.0)
        if (arm := builders.power(energy_j).case) is not None
        for device in arm.devices
    )
    span = (0, 60 * 10**9)
    both = arm_power([first, second], span, tokens=100, accepted_frac=0.5)
    assert (both.energy_j, both.mean_w, both.idle_w) == (1500.0, 25.0, 200.0)
    assert both.energy_j_per_token == 15.0
    untold = msgspec.structs.replace(second, energy_j=None)
    assert arm_power([first, untold], span, tokens=100, accepted_frac=0.5).energy_j is None


def test_the_power_over_time_is_that_of_all_devices_however_each_is_read() -> None:
    """One has a counter, at 100 W and from 10 s on at 300 W; the other reads 50 W."""
    counting = PowerTrace(
        device=builders.device(),
        samples=[
            DeviceSample(
                device_index=0, at_ns=at * 10**8, energy_mj=10**4 * (at + 2 * max(0, at - 100))
            )
            for at in range(210)
        ],
    )
    reading = PowerTrace(
        device=builders.device(),
        samples=[
            DeviceSample(device_index=1, at_ns=at * 10**8, state=DeviceState(average_mw=50_000))
            for at in range(210)
        ],
    )
    watts = power_over_time([counting, reading], (0, 20 * 10**9))
    assert watts == pytest.approx([150.0] * 20 + [350.0] * 20)
    assert sum(watts) / 2 == pytest.approx(100 * 10 + 300 * 10 + 50 * 20)
    an_hour = power_over_time([reading], (0, 3600 * 10**9))
    assert len(an_hour) == 200


@pytest.mark.parametrize("counted_mj", [10**4, None], ids=["counter", "watts"])
def test_a_record_is_read_back_from_the_file_of_a_run_as_it_was(counted_mj: int | None) -> None:
    """All that a run has measured is lost with a line that can't be written."""
    samples = [
        DeviceSample(
            device_index=0,
            at_ns=at * 10**8,
            state=DeviceState(
                average_mw=100_000 if at >= 50 else 60_000,
                sm_clock_mhz=1_500,
                memory_clock_mhz=2_600,
                temperature_c=60,
                throttle_mask=0,
                utilisation_frac=0.5,
                used_bytes=2**30,
            ),
            energy_mj=None if counted_mj is None else counted_mj * at,
        )
        for at in range(210)
    ]
    trace = PowerTrace(device=builders.device(), samples=samples)
    span, idle = (5 * 10**9, 20 * 10**9), (0, 5 * 10**9)
    power = record_power([trace], span, tokens=1_000, accepted_frac=0.5, idle=idle)
    assert power.case
    assert power.case.over_time_w == (100.0,) * 30
    assert msgspec.json.decode(msgspec.json.encode(power), type=PowerRecord) == power


def test_a_round_between_two_samples_is_held_back_as_these_are() -> None:
    """One at concurrency 1 takes less than the tenth of a second from sample to sample."""
    hot = PowerTrace(
        device=builders.device(),
        samples=[
            DeviceSample(
                device_index=0, at_ns=at * 10**8, state=DeviceState(throttle_mask=0x20 * (at > 3))
            )
            for at in range(8)
        ],
    )
    check_not_throttled([hot], [(210_000_000, 290_000_000)])
    with pytest.raises(InvalidMeasurementError, match=r"THROTTLED: .*held back in 100% of"):
        check_not_throttled([hot], [(510_000_000, 590_000_000)])


def test_a_block_between_two_samples_has_the_clock_of_these() -> None:
    """Else a GPU at a lower clock than it was recorded at would pass unseen."""
    samples = [
        DeviceSample(
            device_index=0, at_ns=at_ns, energy_mj=at_ns, state=DeviceState(sm_clock_mhz=1_500)
        )
        for at_ns in (10**9, 11 * 10**8)
    ]
    trace = PowerTrace(device=builders.device(), samples=samples)
    span = (104 * 10**7, 106 * 10**7)
    power = record_power([trace], span, tokens=1, accepted_frac=0.5, idle=(0, 0)).case
    assert power is not None
    assert power.devices[0].sm_clock_mhz == 1_500


@pytest.mark.parametrize("at", [1, 2], ids=["before", "after"])
def test_a_stranger_is_seen_by_the_lists_beside_a_span_without_any(at: int) -> None:
    """A second apart, as on a busy machine; the rounds took a fifth of one."""
    pids: list[tuple[int, ...]] = [(1,)] * 4
    pids[at] = (1, 8)
    with pytest.raises(InvalidMeasurementError, match=r"DEVICE_SHARED: .*process 8"):
        check_alone([listed(*pids)], [(1_600_000_000, 1_800_000_000)], our_pids={1})
    pids[at], pids[at - 1 if at == 1 else at + 1] = (1,), (1, 8)
    check_alone([listed(*pids)], [(1_600_000_000, 1_800_000_000)], our_pids={1})


NO_POWER = tuple(
    Answer(function, 3)  # NVML_ERROR_NOT_SUPPORTED
    for function in (
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetTotalEnergyConsumption",
    )
)


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        (ScriptedGpu(lost_at_s=1.0), "NVML: GPU is lost; look at the kernel's log (dmesg) for Xid"),
        (
            ScriptedGpu(permission=False),
            (
                "NVML: the GPU's power can't be read, Insufficient Permissions; run as a user who"
                " may read it"
            ),
        ),
        (
            ScriptedGpu(mig=True),
            "NVML: MIG is on, and a slice reports no power of its own; use a GPU without MIG",
        ),
        (
            ScriptedGpu(virtualization_mode=2, answers=NO_POWER),
            (
                "NVML: a virtual GPU (vGPU) reports no power to its guest; use a GPU that is passed"
                " through to it, or a machine of its own"
            ),
        ),
        (
            ScriptedGpu(answers=NO_POWER),
            "NVML: the GPU reports no power; use a newer driver, or another GPU",
        ),
    ],
    ids=["lost", "closed", "sliced", "virtual", "without a sensor"],
)
def test_what_is_wrong_with_a_gpu_ends_with_what_to_do(
    gpu_python: PreloadedPython, gpu: ScriptedGpu, says: str
) -> None:
    assert asked(gpu_python, (running(gpu),), 1)[0] == says


@pytest.mark.parametrize(
    ("module_extra_w", "has_counter", "scope", "power_w"),
    [
        (0.0, True, "gpu", 400.0),
        (200.0, True, "module", 600.0),  # GH200: its counter is the module's
        (200.0, False, "gpu", 400.0),
    ],
)
def test_power_is_of_the_scope_that_the_energy_counter_has(
    gpu_python: PreloadedPython,
    module_extra_w: float,
    scope: str,
    power_w: float,
    *,
    has_counter: bool,
) -> None:
    """A counter of the module beside the power of its GPU would seem to disagree 1.5 times."""
    gpu = ScriptedGpu(
        load=constant(400.0), module_extra_w=module_extra_w, has_energy_counter=has_counter
    )
    output = run_python(gpu_python, gpu_python.folder, [running(gpu)], WITHIN_ONE_SCOPE)
    found_scope, average_w, counted_w = output.split()
    assert (found_scope, float(average_w)) == (scope, power_w)
    if has_counter:
        assert float(counted_w) == pytest.approx(power_w, rel=0.2)
    else:
        assert counted_w == "None"
