"""GPUs of no machine, and what they drew."""

import msgspec

from specreg.telemetry.identity import Gpus
from specreg.telemetry.power_record import DeviceRecord, PowerRecord, arm_power
from specreg.telemetry.sensor import Device, Scope


def device(name: str = "NVIDIA H200", **changes: object) -> Device:
    """A GPU of no machine."""
    gpu = Device(sensor="nvml", id=f"GPU-{name}", name=name, number=0, scope=Scope.GPU)
    return msgspec.structs.replace(gpu, **changes)


def gpus(*names: str, memory_gib: float = 0) -> Gpus:
    """What a machine with such GPUs says of them; without names one that has none."""
    memory_bytes = round(memory_gib * 2**30)
    return Gpus(
        devices=tuple(device(name, memory_bytes=memory_bytes) for name in names),
        why_none="" if names else "NVML: none",
    )


def power(
    energy_j: float = 12_000.0,
    *,
    window_s: float = 60.0,
    tokens: int = 6000,
    accepted_frac: float = 0.0,
    of: Device | None = None,
    from_counter: bool = True,
    sm_clock_mhz: float | None = 1980.0,
) -> PowerRecord:
    """What one GPU drew, idle at 100 W, for so many tokens."""
    record = DeviceRecord(
        device=of or device(),
        energy_j=energy_j,
        mean_w=energy_j / window_s,
        from_counter=from_counter,
        error_frac=1e-3,
        idle_w=100.0,
        peak_w=450.0,
        sm_clock_mhz=sm_clock_mhz,
        memory_clock_mhz=2619.0,
        temperature_c=61,
        used_bytes=10**10,
        utilisation_frac=0.9,
        throttled=("power cap",),
        counter_ratio=1.001,
        missing_frac=0.0,
    )
    span = (0, round(window_s * 10**9))
    arm = arm_power([record], span, tokens=tokens, accepted_frac=accepted_frac)
    return PowerRecord(case=arm)
