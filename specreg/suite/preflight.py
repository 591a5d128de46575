"""Examine a machine before a run, as `specreg doctor` prints it.

A check yields findings: what the machine is, what can be measured, what a run needs and what is in
the way. It starts, fetches and changes nothing.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.baselines.schema import baseline_files, baseline_path, check_baselines
from specreg.core.commands import install_command, record_command
from specreg.core.errors import ModelError, SensorError, SpecregError, UnsupportedError
from specreg.core.files import cache_dir
from specreg.datasets.hub import hub_cache_dir, is_installed, is_offline
from specreg.datasets.table import dataset_named
from specreg.engines.engine import Requirement
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, ServerSpec, Tier
from specreg.matrix.models import (
    check_model_code,
    is_hub_id,
    missing_files,
    missing_of_hub,
    resolve_model,
)
from specreg.matrix.prompts import load_case_prompts
from specreg.report.doctor import Finding, State, in_the_way, note, of_error, ok
from specreg.servers.environments import installed_environment
from specreg.servers.memory import free_gib
from specreg.servers.provision import Provision
from specreg.telemetry.devices import check_cool, check_free, devices_of, open_probe
from specreg.telemetry.identity import (
    Environment,
    Gpus,
    ProcessorLoad,
    current_environment,
    find_gpus,
    processor_load,
)
from specreg.telemetry.sensor import Device

_GIB = 2**30
_EMPTY_GIB = 2.0
"""What a driver may keep of an unused GPU's memory."""
_CLOCKS_SET_BY_APPLICATION = 0x2
_ENVIRONMENT_GIB = 7.0
"""The most that an engine's environment was seen to take."""
_RUN_GIB = 0.5
"""Of a run's logs, journal and samples; 1.5 MB were seen on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """A machine, and the tier that is to run on it.

    Attributes:
        root: the repository's; runs: the folder of what each run leaves; baselines: theirs.
        tier: that is to run; None where it can't be read, and why_no_tier says why.
        skipped: by case that a run leaves out, what it needs; running: the other cases.
        gpus: in sight; load: of the processors.
        devices: whose power a run measures; none where why_no_devices says why.
        environment: this machine, as its baselines name it.
        provision: where its engines come from.
    """

    root: Path
    runs: Path
    baselines: Path
    tier: Tier | None
    why_no_tier: str
    skipped: Mapping[str, str]
    running: tuple[Case, ...]
    gpus: Gpus
    load: ProcessorLoad
    devices: tuple[Device, ...]
    why_no_devices: str
    environment: Environment
    provision: Provision

    @property
    def servers(self) -> tuple[ServerSpec, ...]:
        """The servers of the cases that run."""
        return tuple(dict.fromkeys(case.server for case in self.running))

    @property
    def models_gib(self) -> Mapping[str, float]:
        """What each model takes, by reference; 0 where the matrix doesn't say."""
        found: dict[str, float] = {}
        for spec in self.servers:
            found[spec.target] = spec.sizes.target_gib if spec.sizes else 0.0
            if spec.draft is not None:
                found[spec.draft] = (spec.sizes.draft_gib if spec.sizes else None) or 0.0
        return found

    @property
    def to_install(self) -> Mapping[Requirement, bool]:
        """The engines that a run installs, and whether they are installed already."""
        found: dict[Requirement, bool] = {}
        for spec in self.servers if self.provision.python is None else ():
            try:
                requirement = self.provision.requirement(spec)
            except UnsupportedError:  # the finding on its cases says so
                continue
            if requirement.package != engine_named(spec.engine).program:
                found[requirement] = installed_environment(requirement) is not None
        return found


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
    cases = tier.cases if tier else ()
    skipped: Mapping[str, str] = tier.unmet(gpus.memory_gib) if tier else {}
    if tier and len(gpus.devices) < tier.needs_gpus:
        there = f"this machine has {len(gpus.devices)}"
        lack = f"tier '{tier.name}' needs {tier.needs_gpus} GPU(s), {there}"
        skipped = {case.id: lack for case in cases}
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
        skipped=skipped,
        running=tuple(case for case in cases if case.id not in skipped),
        gpus=gpus,
        load=processor_load(),
        devices=devices,
        why_no_devices=why_no_devices,
        environment=current_environment(needs_gpus=used),
        provision=Provision(
            on_gpu=on_gpu,
            version=None,
            python=engine_python,
            url=None,
            show=lambda _: None,
            tell=lambda _: None,
        ),
    )


def examine(preflight: Preflight) -> Mapping[str, tuple[Finding, ...]]:
    """All findings, by their heading; a check that breaks says so, and the others go on."""
    return {
        heading: tuple(finding for check in checks for finding in _guarded(check, preflight))
        for heading, checks in _CHECKS.items()
    }


def _guarded(
    check: Callable[[Preflight], Iterator[Finding]], preflight: Preflight
) -> Iterator[Finding]:
    try:
        yield from check(preflight)
    except Exception as error:  # noqa: BLE001 - whatever is broken, the rest is still worth knowing
        subject = check.__name__.removeprefix("_examine_")
        says = f"couldn't be looked at: {type(error).__name__}: {error}"
        yield in_the_way(subject, says, "mend that; if it isn't yours to mend, report it")


def _examine_processor(preflight: Preflight) -> Iterator[Finding]:
    """The processor on which the engines run, or the client that asks them."""
    here = current_environment(needs_gpus=0)
    yield ok("environment", preflight.environment.name)
    yield ok("processor", f"{here.cpu}, {here.instruction_set}, {here.cores} core(s) to use")


def _examine_gpus(preflight: Preflight) -> Iterator[Finding]:
    """Each GPU: which it is, what it is set to, and whether a run may use it."""
    gpus, on_gpu = preflight.gpus, preflight.provision.on_gpu
    if on_gpu and (why := preflight.why_no_devices if gpus.devices else gpus.why_none):
        yield of_error("GPUs", why)
    elif not gpus.devices:
        yield ok("GPUs", f"none ({gpus.why_none.partition('; ')[0]})")
    used = {device.id for device in preflight.devices} if on_gpu else set()
    for device in gpus.devices:
        subject = f"GPU {device.number}"
        try:
            yield ok(subject, _facts_of(device))
            if device.id in used:
                check_free([device], frozenset())
                check_cool([device])
                notes = tuple(_oddities_of(device))
                yield from (note(subject, says, advice) for says, advice in notes)
                if not notes:
                    yield ok(subject, "free, no process computes on it")
        except SensorError as error:
            yield of_error(subject, error)


def _facts_of(device: Device) -> str:
    memory_gib = device.memory_bytes / _GIB
    return f"{device.name}, {device.id}, {memory_gib:.1f} GiB, driver {device.driver_version}"


def _oddities_of(device: Device) -> Iterator[tuple[str, str]]:
    """What differs from a GPU that is empty and as its vendor set it, and what to do."""
    state = open_probe(device).state()
    used_gib = (state.used_bytes or 0) / _GIB
    if used_gib > _EMPTY_GIB:
        says = f"{used_gib:.1f} GiB of its memory are taken, and no process is seen on it"
        yield says, "another container may use it; look with nvidia-smi on the host"
    if device.limit_w:
        says = f"held to {device.limit_w:.0f} W, which isn't its vendor's limit"
        undo = "nvidia-smi -pl, with the default that nvidia-smi -q -d POWER says"
        yield says, f"its baselines are kept apart from others'; to undo it, as root: {undo}"
    if (state.throttle_mask or 0) & _CLOCKS_SET_BY_APPLICATION:
        says = f"its SM clock is set by an application, now {state.sm_clock_mhz} MHz"
        yield says, "to undo it, as root: nvidia-smi -rgc, and nvidia-smi -rac"


def _examine_memory(preflight: Preflight) -> Iterator[Finding]:
    """Whether the models of the largest case fit, beside those of its control."""
    left_gib, needed_gib = free_gib(), 0.0
    for case in preflight.running if not preflight.provision.on_gpu else ():
        specs = (case.server, case.control)
        sizes = [spec.sizes for spec in specs if spec is not None and spec.sizes is not None]
        weights_gib = sum(one.target_gib + (one.draft_gib or 0.0) for one in sizes)
        needed_gib = max(needed_gib, weights_gib)
    says = f"{left_gib:.1f} GiB free"
    if left_gib < needed_gib:
        says = f"{says}, and the models of the largest case take {needed_gib:.1f}"
        yield in_the_way("memory", says, "end what takes it, or choose smaller models")
    else:
        yield ok("memory", says)


def _examine_load(preflight: Preflight) -> Iterator[Finding]:
    """Whether others keep the processors busy."""
    if preflight.load.is_high:
        advice = "that disturbs engines on the processor and the client; run when it is quiet"
        yield note("speed", str(preflight.load), advice)
    else:
        yield ok("speed", "the processors are quiet")


def _examine_power(preflight: Preflight) -> Iterator[Finding]:
    """By which sensor each device's power is read, or why it isn't."""
    if preflight.why_no_devices:
        yield of_error("power", preflight.why_no_devices, State.NOTE)
    for device in preflight.devices:
        if device.why_not:
            yield of_error("power", f"{device.name}: {device.why_not}", State.NOTE)
            continue
        by = f"{device.name}, {device.scope} scope, by {device.sensor}"
        try:
            counts = open_probe(device).energy_mj() is not None
        except SensorError as error:
            yield of_error("power", error, State.NOTE)
            continue
        if counts:
            yield ok("power", f"{by}: energy counter")
        else:
            advice = "without one energy is summed from power, less exactly"
            yield note("power", f"{by}: no energy counter", advice)


def _examine_disks(preflight: Preflight) -> Iterator[Finding]:
    """Whether there is room where a run writes; a line for each disk."""
    new = list(preflight.to_install.values()).count(False)
    lacking = [
        gib
        for name, gib in preflight.models_gib.items()
        if is_hub_id(name) and missing_of_hub(name)
    ]
    disks: dict[int, tuple[Path, list[str], list[float]]] = {}
    for what, folder, needed_gib in (
        ("engines", cache_dir(), _ENVIRONMENT_GIB * new),
        ("models", hub_cache_dir(), sum(lacking)),
        ("runs", preflight.runs, _RUN_GIB),
    ):
        if folder is not None:
            absolute = folder.resolve()
            place = next(path for path in (absolute, *absolute.parents) if path.exists())
            _, names, sizes_gib = disks.setdefault(place.stat().st_dev, (place, [], []))
            names.append(what)
            sizes_gib.append(needed_gib)
    for place, names, sizes_gib in disks.values():
        left_gib = shutil.disk_usage(place).free / _GIB
        about = f"about {sum(sizes_gib):.1f} GiB needed"
        says = f"{left_gib:.1f} GiB free for {', '.join(names)}; {about}"
        if left_gib < sum(sizes_gib):
            advice = "make room, or name other folders: SPECREG_CACHE, HF_HUB_CACHE, --specreg-runs"
            yield in_the_way("disk", says, advice)
        else:
            yield ok("disk", says)


def _examine_engines(preflight: Preflight) -> Iterator[Finding]:
    """Which engines are installed, and which a run would install."""
    for requirement, is_there in preflight.to_install.items():
        if is_there:
            yield ok("engine", f"{requirement.pin} is installed")
        else:
            says = f"{requirement.pin} isn't installed yet"
            yield note("engine", says, "the first run does that, which takes minutes and 3 to 7 GB")


def _examine_models(preflight: Preflight) -> Iterator[Finding]:
    """Which models are at hand and whole, and which the engines would fetch."""
    for reference, size_gib in preflight.models_gib.items():
        if is_hub_id(reference):
            yield _hub_model(reference, size_gib)
            continue
        try:
            folder = Path(resolve_model(preflight.root, reference))
        except SpecregError as error:
            yield of_error("model", error)
            continue
        if missing := missing_files(folder):
            says = f"model folder '{folder}': {', '.join(missing)} missing"
            yield in_the_way("model", says, "restore it")
        else:
            yield ok("model", f"{reference}: whole")


def _hub_model(reference: str, size_gib: float) -> Finding:
    if not is_installed():
        says = f"{reference}: whether it is in the hub's cache takes huggingface_hub to tell"
        return note("model", says, install_command("datasets"))
    lacks = missing_of_hub(reference)
    if not lacks:
        return ok("model", f"{reference}: in the hub's cache")
    size = f", about {size_gib:.1f} GiB" if size_gib else ""
    says = f"{reference}: not in the hub's cache ({', '.join(lacks)}{size})"
    if is_offline():
        return in_the_way("model", says, "unset HF_HUB_OFFLINE, or fetch it where there is a hub")
    return note("model", says, "its engine fetches it; a gated model needs HF_TOKEN")


def _examine_datasets(preflight: Preflight) -> Iterator[Finding]:
    """Whether there are the prompts that the cases ask for."""
    for case in {case.dataset: case for case in preflight.running}.values():
        try:
            if dataset_named(case.dataset).tokens is None:
                prompts = len(load_case_prompts(preflight.root, case))
                yield ok("dataset", f"{case.dataset}: {prompts} prompts")
            else:
                yield ok("dataset", f"{case.dataset}: made when it is asked for")
        except ModelError:  # the finding on it says so
            continue
        except SpecregError as error:
            yield of_error("dataset", error)


def _examine_baselines(preflight: Preflight) -> Iterator[Finding]:
    """Whether what was recorded can be read, and is of the cases that run."""
    here, cases = preflight.environment, preflight.running
    wrong = check_baselines(baseline_files(preflight.baselines))
    yield from (of_error("baselines", one) for one in wrong)
    known = [
        case
        for case in cases
        if any(baseline_path(preflight.baselines, name, case.id).exists() for name in here.names)
    ]
    says = f"{len(known)} of {len(cases)} case(s) have one in '{here.name}' to compare with"
    if preflight.tier is None or len(known) == len(cases):
        yield ok("baselines", says)
    else:
        record = record_command((), (f"--specreg-tier={preflight.tier.name}",))
        yield note("baselines", says, f"record them: {record}")


def _examine_cases(preflight: Preflight) -> Iterator[Finding]:
    """How many run; what a run would leave out; and what would end it before it began."""
    if preflight.tier is None:
        yield of_error("tier", preflight.why_no_tier)
        return
    refused: dict[str, str] = {}
    for case in preflight.running:
        try:
            preflight.provision.check([case])
            check_model_code(preflight.root, case.server)
        except SpecregError as error:
            refused[case.id] = str(error)
    runs = len(preflight.running) - len(refused)
    says = f"{runs} of {len(preflight.tier.cases)} cases of tier '{preflight.tier.name}' run here"
    if runs:
        yield ok("cases", says)
    else:
        yield in_the_way("cases", says, "do what is said of them, or choose another tier")
    for why, ids in _by_reason(refused):
        yield of_error("cases", f"{ids}: {why}")
    for why, ids in _by_reason(preflight.skipped):
        yield note("cases", f"{ids}: {why}", "left out; run them on a machine that has that")


def _by_reason(reasons: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each reason and its cases, in words: one by its id, several by their number and the first."""
    cases: dict[str, list[str]] = {}
    for case_id, why in reasons.items():
        cases.setdefault(why.removeprefix(f"{case_id} "), []).append(case_id)
    for why, ids in cases.items():
        yield why, ids[0] if len(ids) == 1 else f"{len(ids)} cases, {ids[0]} the first"


_CHECKS: Mapping[str, Sequence[Callable[[Preflight], Iterator[Finding]]]] = {
    "this machine": (_examine_processor, _examine_gpus, _examine_memory),
    "what can be measured": (_examine_load, _examine_power),
    "what a run needs": (
        *(_examine_disks, _examine_engines, _examine_models),
        *(_examine_datasets, _examine_baselines, _examine_cases),
    ),
}
"""In the order in which their findings are shown, by heading."""
