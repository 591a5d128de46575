"""What can be measured here, by what, and why not."""

from collections.abc import Iterator

from specreg.doctor._finding import Finding, Scene, State, note, of_error, ok
from specreg.errors import SensorError
from specreg.sensors import Device

_TIER = "choose a tier that has one"
_OTHERWISE = "the other metrics are measured all the same"


def examine_acceptance(scene: Scene) -> Iterator[Finding]:
    """Whose counts tell the acceptance of what runs."""
    speculating = [case for case in scene.running if case.speculates]
    if scene.tier and not speculating:
        yield note("acceptance", "no case that runs here speculates", _TIER)
        return
    engines = sorted({case.server.engine for case in speculating})
    of = f"{len(speculating)} case(s) by {', '.join(engines)}" if engines else "any engine"
    yield ok("acceptance", f"of {of}: counted by the engine; any machine's baselines compare")


def examine_speed(scene: Scene) -> Iterator[Finding]:
    """Whether the time that the servers take means anything."""
    if scene.tier and not any(case.speed for case in scene.running):
        yield note("speed", "no case that runs here says anything of speed", _TIER)
    else:
        yield ok("speed", "by the monotonic clock; this environment's baselines compare")


def examine_power(scene: Scene) -> Iterator[Finding]:
    """By which sensor each device's power is read, or why it isn't."""
    if scene.why_no_devices:
        yield of_error("power", scene.why_no_devices, State.NOTE)
    for device in scene.devices:
        try:
            yield _power_of(device, scene)
        except SensorError as error:
            yield of_error("power", error, State.NOTE)


def _power_of(device: Device, scene: Scene) -> Finding:
    if device.why_not:
        says, _, advice = device.why_not.partition("; ")
        return note("power", f"{device.name}: {says}", advice or _OTHERWISE)
    probe = scene.sensors[device.sensor].open(device)
    state = probe.state()
    fields = (("average", state.average_mw), ("instant", state.instant_mw))
    told = [f"{name} field" for name, value in fields if value is not None]
    counter = ["energy counter"] if probe.energy_mj() is not None else []
    said = ", ".join((*counter, *told)) or "nothing"
    says = f"{device.name}, {device.scope} scope, by {device.sensor}: {said}"
    if not counter:
        return note("power", says, "without a counter energy is summed from power, less exactly")
    return ok("power", says)
