"""What can be measured here, by what, and why not."""

from collections.abc import Iterator, Sequence

from specreg.core.commands import record_command
from specreg.core.errors import SensorError
from specreg.matrix.case import Case
from specreg.report.doctor import Finding, State, note, of_error, ok
from specreg.suite.preflight.scene import Scene
from specreg.telemetry.identity import ProcessorLoad, processor_load
from specreg.telemetry.sensor import Device

_TIER = "choose a tier that has one"
_OTHERWISE = "the other metrics are measured all the same"


def examine_acceptance(scene: Scene) -> Iterator[Finding]:
    """Whose counts tell the acceptance of what runs, and whether there is any to compare with."""
    speculating = [case for case in scene.running if case.speculates]
    if scene.tier and not speculating:
        yield note("acceptance", "no case that runs here speculates", _TIER)
        return
    engines = sorted({case.server.engine for case in speculating})
    of = f"{len(speculating)} case(s) by {', '.join(engines)}" if engines else "any engine"
    says = f"of {of}: counted by the engine"
    yield _compared("acceptance", says, speculating, scene, ("*",))


def examine_speed(scene: Scene) -> Iterator[Finding]:
    """Whether the time that the servers take means anything, and what it is compared with."""
    timed = [case for case in scene.running if case.speed]
    if scene.tier and not timed:
        yield note("speed", "no case that runs here says anything of speed", _TIER)
        return
    yield _compared("speed", "by the monotonic clock", timed, scene, scene.environment.names)


def examine_load(_: Scene) -> Iterator[Finding]:
    """Whether others keep the processor busy."""
    yield from disturbed(processor_load())


def disturbed(load: ProcessorLoad) -> Iterator[Finding]:
    """What a speed suffers from."""
    if load.is_high:
        advice = "that disturbs engines on the processor and the client; run when it is quiet"
        yield note("speed", str(load), advice)


def _compared(
    subject: str, says: str, cases: Sequence[Case], scene: Scene, folders: Sequence[str]
) -> Finding:
    """What is measured, and how many of its cases have a baseline; "*" is any environment."""
    whose = "any machine's" if "*" in folders else "this environment's"
    known = [
        case
        for case in cases
        if any(any(scene.baselines.glob(f"{name}/{case.id}.json")) for name in folders)
    ]
    if scene.tier is None or len(known) == len(cases):
        return ok(subject, f"{says}; {whose} baselines compare")
    where = "on any machine" if "*" in folders else f"in '{folders[0]}'"
    many = len(known) or "none"
    return note(
        subject,
        f"{says}; {many} of {len(cases)} case(s) have a baseline {where} to compare with",
        f"record them: {record_command((), (f'--specreg-tier={scene.tier.name}',))}",
    )


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
