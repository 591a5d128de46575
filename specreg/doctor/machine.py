"""What the machine is: its name, processor, memory, GPUs and the clock that all is measured by."""

from collections.abc import Iterator

import psutil

from specreg.doctor._finding import Finding, Scene, note, ok
from specreg.identity import current_environment
from specreg.sensors import Device, Sensor

_BYTES_PER_GIB = 2**30
_LOADED_FRAC = 0.5
"""Of the cores, what others may keep busy before a speed on processors means little."""


def examine_environment(scene: Scene) -> Iterator[Finding]:
    """The name under which baselines are kept, and how many there are."""
    used = scene.tier.gpus_used(scene.gpus.memory_gib) if scene.tier else len(scene.gpus.devices)
    here = current_environment(needs_gpus=used)
    recorded = sum(len(list((scene.baselines / name).glob("*.json"))) for name in here.names)
    yield ok("environment", f"{here.name}, {recorded} baseline(s) recorded")


def examine_processor(scene: Scene) -> Iterator[Finding]:
    """The processor, and what keeps it busy where the engines run on it."""
    here = current_environment(needs_gpus=0)
    yield ok("processor", f"{here.cpu}, {here.instruction_set}, {here.cores} core(s) to use")
    if not scene.on_gpu:
        yield from busy(psutil.getloadavg()[0], here.cores)


def busy(load: float, cores: int) -> Iterator[Finding]:
    """What keeps the processor from a run: more that wants to run than half of its cores take.

    Args:
        load: how many wanted to run, on average over the last minute.
        cores: that we may use.
    """
    if load > _LOADED_FRAC * cores:
        yield note(
            "processor",
            f"{load:.1f} processes wanted to run on {cores} core(s) over the last minute",
            "speeds are disturbed by that; run when the machine is quiet",
        )


def examine_gpus(scene: Scene) -> Iterator[Finding]:
    """Each GPU: which it is, and what it is set to."""
    if not scene.gpus.devices:
        yield ok("GPUs", f"none ({scene.gpus.why_none.partition('; ')[0]})")
    for device in scene.gpus.devices:
        yield ok(f"GPU {device.number}", ", ".join(_facts(device, scene.sensors[device.sensor])))


def _facts(device: Device, sensor: Sensor) -> Iterator[str]:
    yield device.name
    yield device.id
    yield f"{device.memory_bytes / _BYTES_PER_GIB:.1f} GiB"
    yield f"driver {device.driver_version}"
    settings = sensor.open(device).settings()
    if settings.limit_w is not None:
        yield f"power limit {settings.limit_w:.0f} W"
    for name, is_on in (("MIG", settings.sliced), ("persistence", settings.persistent)):
        if is_on is not None:
            yield f"{name} {'on' if is_on else 'off'}"
