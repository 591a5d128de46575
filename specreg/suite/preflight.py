"""Examine a machine before a run, as `specreg doctor` prints it.

A check yields findings: what the machine is, what can be measured, what a run needs and what is in
the way. It starts, fetches and changes nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specreg.core.commands import record_command
from specreg.core.errors import SensorError, SpecregError, UnsupportedError
from specreg.engines.engine import Requirement
from specreg.matrix.case import Case, ServerSpec, Tier
from specreg.report.doctor import Finding, State, in_the_way, note, of_error, ok
from specreg.servers.provision import Provision
from specreg.telemetry.devices import (
    SENSORS,
    check_cool,
    check_free,
    devices_of,
    throttle_reasons,
)
from specreg.telemetry.identity import (
    Environment,
    Gpus,
    ProcessorLoad,
    current_environment,
    find_gpus,
    processor_load,
)
from specreg.telemetry.sensor import Device, Probe, Sensor

_GIB = 2**30
_EMPTY_GIB = 2.0
"""What a driver may keep of an unused GPU's memory."""
_CLOCKS_SET_BY_APPLICATION = 0x2
_TIER = "choose a tier that has one"
_OTHERWISE = "the other metrics are measured all the same"


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """A machine, and the tier that is to run on it.

    Attributes:
        root: the repository's; runs: the folder of what each run leaves; baselines: theirs.
        tier: that is to run; None where it can't be read, and why_no_tier says why.
        gpus: in sight.
        devices: whose power a run measures; none where why_no_devices says why.
        sensors: what reads them, by name.
        provision: where its engines come from.
    """

    root: Path
    runs: Path
    baselines: Path
    tier: Tier | None
    why_no_tier: str
    gpus: Gpus
    devices: tuple[Device, ...]
    why_no_devices: str
    sensors: Mapping[str, Sensor]
    provision: Provision

    @cached_property
    def environment(self) -> Environment:
        """This machine, as its baselines name it."""
        gpus = len(self.gpus.devices)
        used = self.tier.gpus_used(self.gpus.memory_gib) if self.tier else gpus
        return current_environment(needs_gpus=used)

    @cached_property
    def skipped(self) -> Mapping[str, str]:
        """By case that a run leaves out, what it needs; all of them where the tier does."""
        if self.tier is None:
            return {}
        there, needed = len(self.gpus.devices), self.tier.needs_gpus
        if there < needed:
            lack = f"tier '{self.tier.name}' needs {needed} GPU(s), this machine has {there}"
            return {case.id: lack for case in self.tier.cases}
        return self.tier.unmet(self.gpus.memory_gib)

    @cached_property
    def running(self) -> tuple[Case, ...]:
        """The cases that a run doesn't leave out."""
        cases = self.tier.cases if self.tier else ()
        return tuple(case for case in cases if case.id not in self.skipped)

    @cached_property
    def servers(self) -> tuple[ServerSpec, ...]:
        """The servers of those."""
        return tuple(dict.fromkeys(case.server for case in self.running))

    @cached_property
    def requirements(self) -> tuple[Requirement, ...]:
        """What a run installs, each once; without the engines that don't run here."""
        found: dict[Requirement, None] = {}
        for spec in self.servers:
            try:
                found[self.provision.requirement(spec)] = None
            except UnsupportedError:  # the finding on its cases says so
                continue
        return tuple(found)


Check = Callable[[Preflight], Iterator[Finding]]


def preflight_of(
    load_tier: Callable[[], Tier],
    *,
    root: Path,
    runs: Path,
    baselines: Path,
    variables: Mapping[str, str],
    engine_python: str | None = None,
) -> Preflight:
    """This machine, with the tier that is to run on it.

    Args:
        load_tier: reads it; what it raises becomes a finding.
        root: the repository's folder.
        runs: the folder of runs.
        baselines: theirs.
        variables: the environment.
        engine_python: an interpreter that has the engine, None where a run makes an environment.
    """
    tier, why_no_tier, gpus = None, "", find_gpus()
    try:
        tier = load_tier()
    except (SpecregError, OSError) as error:
        why_no_tier = str(error)
    on_gpu = tier.needs_gpus > 0 if tier else bool(gpus.devices)
    used = tier.gpus_used(gpus.memory_gib) if tier else len(gpus.devices)
    devices: tuple[Device, ...] = ()
    why_no_devices = ""
    try:
        devices = devices_of(used if on_gpu else 0, variables)
    except SensorError as error:
        why_no_devices = str(error)
    return Preflight(
        root=root,
        runs=runs,
        baselines=baselines,
        tier=tier,
        why_no_tier=why_no_tier,
        gpus=gpus,
        devices=devices,
        why_no_devices=why_no_devices,
        sensors=SENSORS,
        provision=Provision(
            on_gpu=on_gpu,
            version=None,
            python=engine_python,
            url=None,
            show=lambda _: None,
            tell=lambda _: None,
        ),
    )


def examine(
    preflight: Preflight, checks: Mapping[str, Sequence[Check]]
) -> Mapping[str, tuple[Finding, ...]]:
    """All findings of checks, by their heading; one that breaks says so, and the others go on."""
    return {
        heading: tuple(finding for check in under for finding in _guarded(check, preflight))
        for heading, under in checks.items()
    }


def _guarded(check: Check, preflight: Preflight) -> Iterator[Finding]:
    try:
        yield from check(preflight)
    except Exception as error:  # noqa: BLE001 - whatever is broken, the rest is still worth knowing
        subject = check.__name__.removeprefix("examine_")
        says = f"couldn't be looked at: {type(error).__name__}: {error}"
        yield in_the_way(subject, says, "mend that; if it isn't yours to mend, report it")


def examine_environment(preflight: Preflight) -> Iterator[Finding]:
    """The name under which baselines are kept, how many there are, and the processor."""
    here = preflight.environment
    recorded = sum(len(list((preflight.baselines / name).glob("*.json"))) for name in here.names)
    yield ok("environment", f"{here.name}, {recorded} baseline(s) recorded")


def examine_processor(_: Preflight) -> Iterator[Finding]:
    """The processor on which the engines run, or the client that asks them."""
    here = current_environment(needs_gpus=0)
    yield ok("processor", f"{here.cpu}, {here.instruction_set}, {here.cores} core(s) to use")


def examine_gpus(preflight: Preflight) -> Iterator[Finding]:
    """Each GPU: which it is, and what it is set to."""
    if not preflight.gpus.devices:
        yield ok("GPUs", f"none ({preflight.gpus.why_none.partition('; ')[0]})")
    for device in preflight.gpus.devices:
        settings = preflight.sensors[device.sensor].open(device).settings()
        facts = [device.name, device.id, f"{device.memory_bytes / _GIB:.1f} GiB"]
        facts.append(f"driver {device.driver_version}")
        if settings.limit_w is not None:
            facts.append(f"power limit {settings.limit_w:.0f} W")
        for name, is_on in (("MIG", settings.sliced), ("persistence", settings.persistent)):
            if is_on is not None:
                facts.append(f"{name} {'on' if is_on else 'off'}")
        yield ok(f"GPU {device.number}", ", ".join(facts))


def examine_acceptance(preflight: Preflight) -> Iterator[Finding]:
    """Whose counts tell the acceptance of what runs, and whether there is any to compare with."""
    speculating = [case for case in preflight.running if case.speculates]
    if preflight.tier and not speculating:
        yield note("acceptance", "no case that runs here speculates", _TIER)
        return
    engines = sorted({case.server.engine for case in speculating})
    of = f"{len(speculating)} case(s) by {', '.join(engines)}" if engines else "any engine"
    yield _compared("acceptance", f"of {of}: counted by the engine", speculating, preflight, ("*",))


def examine_speed(preflight: Preflight) -> Iterator[Finding]:
    """Whether the time that the servers take means anything, and what it is compared with."""
    timed = [case for case in preflight.running if case.speed]
    if preflight.tier and not timed:
        yield note("speed", "no case that runs here says anything of speed", _TIER)
        return
    names = preflight.environment.names
    yield _compared("speed", "by the monotonic clock", timed, preflight, names)


def examine_load(_: Preflight) -> Iterator[Finding]:
    """Whether others keep the processor busy."""
    yield from disturbed(processor_load())


def disturbed(load: ProcessorLoad) -> Iterator[Finding]:
    """What disturbs a speed."""
    if load.is_high:
        advice = "that disturbs engines on the processor and the client; run when it is quiet"
        yield note("speed", str(load), advice)


def _compared(
    subject: str, says: str, cases: Sequence[Case], preflight: Preflight, folders: Sequence[str]
) -> Finding:
    """What is measured, and how many of its cases have a baseline; "*" is any environment."""
    whose = "any machine's" if "*" in folders else "this environment's"
    known = [
        case
        for case in cases
        if any(any(preflight.baselines.glob(f"{name}/{case.id}.json")) for name in folders)
    ]
    if preflight.tier is None or len(known) == len(cases):
        return ok(subject, f"{says}; {whose} baselines compare")
    where = "on any machine" if "*" in folders else f"in '{folders[0]}'"
    many = len(known) or "none"
    return note(
        subject,
        f"{says}; {many} of {len(cases)} case(s) have a baseline {where} to compare with",
        f"record them: {record_command((), (f'--specreg-tier={preflight.tier.name}',))}",
    )


def examine_power(preflight: Preflight) -> Iterator[Finding]:
    """By which sensor each device's power is read, or why it isn't."""
    if preflight.why_no_devices:
        yield of_error("power", preflight.why_no_devices, State.NOTE)
    for device in preflight.devices:
        try:
            yield _power_of(device, preflight.sensors[device.sensor])
        except SensorError as error:
            yield of_error("power", error, State.NOTE)


def _power_of(device: Device, sensor: Sensor) -> Finding:
    if device.why_not:
        says, _, advice = device.why_not.partition("; ")
        return note("power", f"{device.name}: {says}", advice or _OTHERWISE)
    probe = sensor.open(device)
    state = probe.state()
    fields = (("average", state.average_mw), ("instant", state.instant_mw))
    told = [f"{name} field" for name, value in fields if value is not None]
    counter = ["energy counter"] if probe.energy_mj() is not None else []
    says = f"{device.name}, {device.scope} scope, by {device.sensor}: "
    says += ", ".join((*counter, *told)) or "nothing"
    if not counter:
        return note("power", says, "without a counter energy is summed from power, less exactly")
    return ok("power", says)


def examine_driver(preflight: Preflight) -> Iterator[Finding]:
    """Whether a driver shows the GPUs that are needed."""
    if not preflight.provision.on_gpu:
        return
    gpus = preflight.gpus
    if why_not := preflight.why_no_devices if gpus.devices else gpus.why_none:
        yield of_error("driver", why_not)
    else:
        yield ok("driver", f"{gpus.driver_version} shows {len(gpus.devices)} GPU(s)")


def examine_use(preflight: Preflight) -> Iterator[Finding]:
    """Whether the GPUs of a run are free, cool, and as their vendor set them."""
    for device in preflight.devices if preflight.provision.on_gpu else ():
        subject = f"GPU {device.number}"
        try:
            check_free([device], frozenset())
            check_cool([device])
            yield from _use_of(subject, preflight.sensors[device.sensor].open(device))
        except SensorError as error:
            yield of_error(subject, error)


def _use_of(subject: str, probe: Probe) -> Iterator[Finding]:
    """Its memory, its settings where they aren't the vendor's, and its clock."""
    state, found = probe.state(), probe.settings()
    used_gib = (state.used_bytes or 0) / _GIB
    if used_gib > _EMPTY_GIB:
        says = f"{used_gib:.1f} GiB of its memory are taken, and no process is seen on it"
        advice = "another container may use it; look with nvidia-smi on the host"
        yield note(subject, says, advice)
    else:
        yield ok(subject, "free, no process computes on it")
    if _is_lower(found.limit_w, found.own_limit_w):
        says = f"held to {found.limit_w:.0f} W, its vendor's limit is {found.own_limit_w:.0f} W"
        advice = (
            "its baselines are kept apart from those of others; to undo it, as root:"
            f" nvidia-smi -pl {found.own_limit_w:.0f}"
        )
        yield note(subject, says, advice)
    if _is_lower(found.sm_clock_mhz, found.own_sm_clock_mhz):
        says = f"its SM clock is set to {found.sm_clock_mhz} MHz, its vendor's is"
        advice = "to undo it, as root: nvidia-smi -rac"
        yield note(subject, f"{says} {found.own_sm_clock_mhz} MHz", advice)
    if found.persistent is False:
        says = "persistence is off: its driver is loaded anew for each server"
        yield note(subject, says, "to keep it, as root: nvidia-smi -pm 1")
    mask = state.throttle_mask or 0
    clock = "" if state.sm_clock_mhz is None else f"SM clock {state.sm_clock_mhz} MHz, "
    says = f"{clock}held by {', '.join(throttle_reasons(mask)) or 'nothing'}"
    if mask & _CLOCKS_SET_BY_APPLICATION:
        yield note(subject, says, "to undo it, as root: nvidia-smi -rgc, and nvidia-smi -rac")
    else:
        yield ok(subject, says)


def _is_lower(value: float | None, own: float | None) -> bool:
    return value is not None and own is not None and value < own
