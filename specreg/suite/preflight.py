"""Examine a machine before a run, as `specreg doctor` prints it; nothing is started or changed."""

import contextlib
import enum
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.text import Text

from specreg.baselines.schema import baseline_files, read_baselines
from specreg.core.commands import install_command, record_command
from specreg.core.errors import ModelError, SensorError, SpecregError, UnsupportedError
from specreg.core.files import cache_dir
from specreg.datasets.hub import hub_cache_dir, is_cached, is_installed, is_offline
from specreg.datasets.table import dataset_named
from specreg.engines.engine import Requirement
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.matrix.models import is_hub_id, resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.report.tables import render_rows
from specreg.servers.memory import free_gib
from specreg.servers.provision import environment_exists
from specreg.suite.configure import why_unfit
from specreg.suite.context import RunContext
from specreg.suite.machine import gpus_of, remarks_on
from specreg.telemetry.devices import check_cool, check_free, devices_of, open_probe
from specreg.telemetry.identity import current_environment
from specreg.telemetry.sensor import Device

_GIB = 2**30
_EMPTY_GIB = 2.0
"""What a driver may keep of an unused GPU's memory."""
_CLOCKS_SET_BY_APPLICATION = 0x2
_ENVIRONMENT_GIB = 7.0
"""The most that an engine's environment was seen to take."""
_RUN_GIB = 0.5
"""Room for a run's logs, journal and samples; 1.5 MB were seen on a CPU."""


class State(enum.StrEnum):
    """What a finding means for a run: all is well, it can live with it, or it can't."""

    OK = "ok"
    NOTE = "note"
    IN_THE_WAY = "in the way"


class Finding(msgspec.Struct, frozen=True):
    """What was seen of a subject; `advice` says what to do, empty where there is nothing to do."""

    subject: str
    says: str
    advice: str = ""
    state: State = State.OK


def examine(context: RunContext) -> Iterator[Finding]:
    """All findings on a run's machine and needs; a check that breaks says so, the others go on."""
    for check in _CHECKS:
        subject = check.__name__.removeprefix("_examine_")
        try:
            yield from check(context)
        except SpecregError as error:
            yield _of_error(subject, error)
        except Exception as error:  # noqa: BLE001 - the rest is still worth knowing
            says = f"couldn't be looked at: {type(error).__name__}: {error}"
            yield Finding(subject, says, "mend that, or report it", State.IN_THE_WAY)


def render_findings(found: Sequence[Finding], *, color: bool) -> str:
    """A row for each finding, its advice below, and how many stand in the way."""
    rows = []
    for one in found:
        says = f"{one.says}\n→ {one.advice}" if one.advice else one.says
        rows.append((Text(one.state, _STYLES[one.state]), one.subject, says))
    head = ("state", "of", "finding")
    table = render_rows(head, rows, color=color, left=head, folded=("finding",))
    states = [one.state for one in found]
    ways, notes = states.count(State.IN_THE_WAY), states.count(State.NOTE)
    remarks = f", {notes} note(s)" if notes else ""
    return f"{table}\n\n{f'{ways} thing(s)' if ways else 'nothing is'} in the way{remarks}"


_STYLES = {State.OK: "green", State.NOTE: "yellow", State.IN_THE_WAY: "bold red"}


def _note(subject: str, says: str, advice: str) -> Finding:
    return Finding(subject, says, advice, State.NOTE)


def _of_error(subject: str, error: SpecregError | str, state: State = State.IN_THE_WAY) -> Finding:
    """An error in specreg's form: what is wrong up to its last semicolon, then what to do."""
    says, _, advice = str(error).splitlines()[0].rpartition("; ")
    return Finding(subject, says or advice, advice if says else "", state)


def _running(context: RunContext) -> list[Case]:
    unfit = why_unfit(context)
    return [case for case in context.tier.cases if case.id not in unfit]


def _devices(context: RunContext) -> tuple[Device, ...]:
    """The devices whose power a run measures; SensorError where it can't."""
    used = context.tier.gpus_used(gpus_of(context.options).memory_gib)
    return devices_of(used if context.provision.on_gpu else 0, os.environ)


def _examine_processor(context: RunContext) -> Iterator[Finding]:
    here = current_environment(needs_gpus=0)
    yield Finding("environment", context.environment.name)
    yield Finding("processor", f"{here.cpu}, {here.instruction_set}, {here.cores} core(s) to use")
    if context.processor_load is not None and context.processor_load.is_high:
        advice = "that disturbs engines on the processor and the client; run when it is quiet"
        yield _note("speed", str(context.processor_load), advice)


def _examine_gpus(context: RunContext) -> Iterator[Finding]:
    gpus = gpus_of(context.options)
    on_gpu = context.provision.on_gpu
    if not gpus.devices and (on_gpu or gpus.is_unusable):
        yield _of_error("GPUs", gpus.why_none)
    elif not gpus.devices:
        yield Finding("GPUs", f"none ({gpus.why_none.partition('; ')[0]})")
    for remark in remarks_on(gpus):
        says, _, advice = remark.partition("; ")
        yield _note("GPUs", says, advice or "a run goes on without it")
    used = {device.id for device in _devices(context)} if on_gpu and gpus.devices else set()
    for device in gpus.devices:
        subject = f"GPU {device.number}"
        try:
            yield Finding(subject, _facts_of(device))
            if device.id in used:
                check_free([device], frozenset())
                check_cool([device])
                notes = [_note(subject, *one) for one in _oddities_of(device)]
                yield from notes or [Finding(subject, "free, no process computes on it")]
        except SensorError as error:
            yield _of_error(subject, error)


def _facts_of(device: Device) -> str:
    """Return what a GPU is, with the word unknown for what its driver doesn't say."""
    memory = "memory unknown"
    if device.memory_bytes is not None:
        memory = f"{device.memory_bytes / _GIB:.1f} GiB"
    elif device.shares_memory:
        memory = "the machine's memory"
    name = device.name or "name unknown"
    return f"{name}, {device.id}, {memory}, driver {device.driver_version or 'unknown'}"


def _oddities_of(device: Device) -> Iterator[tuple[str, str]]:
    """What differs from a GPU that is empty and as its vendor set it, and what to do."""
    probe = open_probe(device)
    state = probe.state()
    if probe.processes() is None:
        says = "which processes compute on it isn't known"
        yield says, "look with nvidia-smi that there is none"
    used_gib = None if state.used_bytes is None else state.used_bytes / _GIB
    if used_gib is not None and used_gib > _EMPTY_GIB:
        says = f"{used_gib:.1f} GiB of its memory are taken, and no process is seen on it"
        yield says, "another container may use it; look with nvidia-smi on the host"
    if device.limit_w:
        says = f"held to {device.limit_w:.0f} W, which isn't its vendor's limit"
        undo = "nvidia-smi -pl, with the default that nvidia-smi -q -d POWER says"
        yield says, f"its baselines are kept apart from others'; to undo it, as root: {undo}"
    if (state.throttle_mask or 0) & _CLOCKS_SET_BY_APPLICATION:
        says = f"its SM clock is set by an application, now {state.sm_clock_mhz} MHz"
        yield says, "to undo it, as root: nvidia-smi -rgc, and nvidia-smi -rac"


def _examine_power(context: RunContext) -> Iterator[Finding]:
    try:
        for device in _devices(context):
            by = f"{device.name}, {device.scope} scope, by {device.sensor}"
            if device.why_not:
                yield _of_error("power", f"{device.name}: {device.why_not}", State.NOTE)
            elif open_probe(device).energy_mj() is not None:
                yield Finding("power", f"{by}: energy counter")
            else:
                advice = "without one energy is summed from power, less exactly"
                yield _note("power", f"{by}: no energy counter", advice)
    except SensorError as error:
        yield _of_error("power", error, State.NOTE)


def _examine_memory(context: RunContext) -> Iterator[Finding]:
    left_gib, needed_gib = free_gib(), 0.0
    for case in _running(context) if not context.provision.on_gpu else ():
        pair = [spec.sizes for spec in (case.server, case.control) if spec and spec.sizes]
        needed_gib = max(needed_gib, sum(one.target_gib + (one.draft_gib or 0.0) for one in pair))
    says = f"{left_gib:.1f} GiB free"
    if left_gib < needed_gib:
        says = f"{says}, and the models of the largest case take {needed_gib:.1f}"
        yield _of_error("memory", f"{says}; end what takes it, or choose smaller models")
    else:
        yield Finding("memory", says)


def _to_install(context: RunContext) -> Mapping[Requirement, bool]:
    """The engines that a run installs, and whether they are installed already."""
    found: dict[Requirement, bool] = {}
    for case in _running(context) if context.provision.python is None else ():
        with contextlib.suppress(UnsupportedError):  # the finding on its cases says so
            requirement = context.provision.requirement(case.server)
            if requirement.package != engine_named(case.server.engine).program:
                found[requirement] = environment_exists(requirement)
    return found


def _models_gib(context: RunContext) -> Mapping[str, float | None]:
    """Return what each model takes, by reference; None where the tier doesn't say."""
    sizes_gib: dict[str, float | None] = {}
    for spec in dict.fromkeys(case.server for case in _running(context)):
        sizes_gib[spec.target] = spec.sizes.target_gib if spec.sizes else None
        if spec.draft is not None:
            sizes_gib[spec.draft] = spec.sizes.draft_gib if spec.sizes else None
    return sizes_gib


def _examine_disks(context: RunContext) -> Iterator[Finding]:
    """Whether there is room where a run writes; a line for each disk."""
    lacking = [
        gib for name, gib in _models_gib(context).items() if is_hub_id(name) and not is_cached(name)
    ]
    known_gib = [gib for gib in lacking if gib is not None]
    unknown = lacking.count(None)
    disks: dict[int, list[tuple[str, Path, float]]] = {}
    missing_engines = list(_to_install(context).values()).count(False)
    for what, folder, needed_gib in (
        ("engines", cache_dir(), _ENVIRONMENT_GIB * missing_engines),
        ("models", hub_cache_dir(), sum(known_gib)),
        ("runs", context.run_folder.parent, _RUN_GIB),
    ):
        if folder is not None:
            absolute = folder.resolve()
            place = next(path for path in (absolute, *absolute.parents) if path.exists())
            disks.setdefault(place.stat().st_dev, []).append((what, place, needed_gib))
    for parts in disks.values():
        names, places, sizes_gib = zip(*parts, strict=True)
        left_gib, needed_gib = shutil.disk_usage(places[0]).free / _GIB, sum(sizes_gib)
        says = f"{left_gib:.1f} GiB free for {', '.join(names)}; about {needed_gib:.1f} GiB needed"
        if unknown and "models" in names:
            says = f"{says}, without {unknown} model(s) of unknown size"
        if left_gib < needed_gib:
            advice = "make room, or name other folders: SPECREG_CACHE, HF_HUB_CACHE, --specreg-runs"
            yield _of_error("disk", f"{says}; {advice}")
        else:
            yield Finding("disk", says)


def _examine_engines(context: RunContext) -> Iterator[Finding]:
    for requirement, is_there in _to_install(context).items():
        if is_there:
            yield Finding("engine", f"{requirement.pin} is installed")
        else:
            advice = "the first run does that, which takes minutes and 3 to 7 GB"
            yield _note("engine", f"{requirement.pin} isn't installed yet", advice)


def _examine_models(context: RunContext) -> Iterator[Finding]:
    for reference, size_gib in _models_gib(context).items():
        size = "" if size_gib is None else f" (about {size_gib:.1f} GiB)"
        try:
            yield _model(context, reference, size)
        except SpecregError as error:
            yield _of_error("model", error)


def _model(context: RunContext, reference: str, size: str) -> Finding:
    if not is_hub_id(reference):
        resolve_model(context.root, reference)
        return Finding("model", f"{reference}: is there")
    if not is_installed():
        says = f"{reference}: whether it is in the hub's cache takes huggingface_hub to tell"
        return _note("model", says, install_command("datasets"))
    if is_cached(reference):
        return Finding("model", f"{reference}: in the hub's cache")
    says = f"{reference}: not in the hub's cache{size}"
    if is_offline():
        return _of_error("model", f"{says}; unset HF_HUB_OFFLINE, or fetch it where there is a hub")
    return _note("model", says, "its engine fetches it; a gated model needs HF_TOKEN")


def _examine_datasets(context: RunContext) -> Iterator[Finding]:
    for case in {case.dataset: case for case in _running(context)}.values():
        says = "made when it is asked for"
        try:
            if dataset_named(case.dataset).tokens is None:
                says = f"{len(load_case_prompts(context.root, case))} prompts"
            yield Finding("dataset", f"{case.dataset}: {says}")
        except ModelError:  # the finding on it says so
            continue
        except SpecregError as error:
            yield _of_error("dataset", error)


def _examine_baselines(context: RunContext) -> Iterator[Finding]:
    here, folder, cases = context.environment, context.store.folder, _running(context)
    yield from (_of_error("baselines", one) for one in read_baselines(baseline_files(folder))[1])
    known = sum(context.store.path(case.id).exists() for case in cases)
    says = f"{known} of {len(cases)} case(s) have one in '{here.name}' to compare with"
    if known == len(cases):
        yield Finding("baselines", says)
    else:
        record = record_command((), (f"--specreg-tier={context.tier.name}",))
        yield _note("baselines", says, f"record them: {record}")


def _examine_cases(context: RunContext) -> Iterator[Finding]:
    """How many run; what a run would leave out; and what would end it before it began."""
    refused: dict[str, str] = {}
    running = _running(context)
    for case in running:
        try:
            context.provision.check([case])
        except SpecregError as error:
            refused[case.id] = str(error)
    runs, of = len(running) - len(refused), len(context.tier.cases)
    says = f"{runs} of {of} cases of tier '{context.tier.name}' run here"
    if runs:
        yield Finding("cases", says)
    else:
        yield _of_error("cases", f"{says}; do what is said of them, or choose another tier")
    for why, ids in _by_reason(refused):
        yield _of_error("cases", f"{ids}: {why}")
    for why, ids in _by_reason(why_unfit(context)):
        yield _note("cases", f"{ids}: {why}", "left out; run them on a machine that has that")


def _by_reason(reasons: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each reason and its cases, in words: one by its id, several by their number and the first."""
    cases: dict[str, list[str]] = {}
    for case_id, why in reasons.items():
        cases.setdefault(why.removeprefix(f"{case_id} "), []).append(case_id)
    for why, ids in cases.items():
        yield why, ids[0] if len(ids) == 1 else f"{len(ids)} cases, {ids[0]} the first"


_CHECKS = (
    *(_examine_processor, _examine_gpus, _examine_memory, _examine_power, _examine_disks),
    *(_examine_engines, _examine_models, _examine_datasets, _examine_baselines, _examine_cases),
)
"""In the order in which their findings are shown."""
