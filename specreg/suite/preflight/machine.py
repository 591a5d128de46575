"""What the machine is: its name, processor, memory, GPUs and the clock that all is measured by."""

from collections.abc import Iterator

from specreg.report.doctor import Finding, ok
from specreg.suite.preflight.scene import Scene
from specreg.telemetry.identity import current_environment
from specreg.telemetry.sensor import Device, Sensor

_BYTES_PER_GIB = 2**30


def examine_environment(scene: Scene) -> Iterator[Finding]:
    """The name under which baselines are kept, and how many there are."""
    here = scene.environment
    recorded = sum(len(list((scene.baselines / name).glob("*.json"))) for name in here.names)
    yield ok("environment", f"{here.name}, {recorded} baseline(s) recorded")


def examine_processor(_: Scene) -> Iterator[Finding]:
    """The processor on which the engines run, or the client that asks them."""
    here = current_environment(needs_gpus=0)
    yield ok("processor", f"{here.cpu}, {here.instruction_set}, {here.cores} core(s) to use")


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
