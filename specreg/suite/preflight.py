"""Examine a machine before a run, for `specreg doctor`. Nothing is started or changed."""

import contextlib
import enum
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.text import Text as StyledText

from specreg.baselines.schema import baseline_files, read_baselines
from specreg.core.commands import install_command, record_command
from specreg.core.counted import counted
from specreg.core.errors import ModelError, SensorError, SpecregError, UnsupportedError
from specreg.core.files import cache_dir, cause_and_path_of, existing_folder, real_path
from specreg.core.locks import check_locks
from specreg.datasets.hub import hub_cache_dir, is_cached, is_installed, is_offline, why_unfetchable
from specreg.datasets.table import dataset_named
from specreg.engines.engine import Requirement
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.matrix.models import is_hub_id, resolve_model, widened_folders
from specreg.matrix.prompts import load_case_prompts
from specreg.report.document import Tone
from specreg.report.parts import Parts, Table, VerdictLine
from specreg.report.tables import Layout
from specreg.servers.build_tools import missing_tools
from specreg.servers.images import find_image
from specreg.servers.memory import free_gib
from specreg.servers.provision import environment_exists, interpreter_of
from specreg.servers.toolkit import named_home, release_of, server_compiler
from specreg.suite.configure import why_unfit
from specreg.suite.context import RunContext
from specreg.suite.machine import gpus_of, remarks_on
from specreg.telemetry.devices import check_cool, check_free, devices_of, open_probe
from specreg.telemetry.identity import current_environment
from specreg.telemetry.sensor import Device

_GIB = 2**30
_EMPTY_GIB = 2.0
"""The most memory that the driver itself holds on a GPU, as far as is known."""
_CLOCKS_SET_BY_APPLICATION = 0x2
"""NVML's bit in `State.throttle_mask` for clocks that an application has set."""
_CPU_ENVIRONMENT_GIB = 7.0
"""The size of the largest environment of an engine without a GPU so far."""
_GPU_ENVIRONMENT_GIB = 10.0
"""The same on a GPU: the environment of vLLM 0.33.0 takes 9.4 GiB."""
_IMAGE_GIB = 30.0
"""About the size of an image of vLLM, SGLang or TensorRT-LLM, with the layers that are unpacked."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is only looked at
_SHARED_MEMORY_GIB = 1.0
"""The shared memory that NCCL's guide gives a container ("Troubleshooting", "Docker"), 1 GB."""
_RUN_GIB = 0.5
"""Disk space for the logs, the ledger and the power samples of a run. A CPU run took 1.5 MB."""


class Severity(enum.StrEnum):
    """What a finding means for a run: no problem, one that a run can live with, or an obstacle."""

    OK = "ok"
    NOTE = "note"
    IN_THE_WAY = "in the way"


class PreflightFinding(msgspec.Struct, frozen=True):
    """A finding about one subject, such as a GPU.

    Attributes:
        says: the finding in words.
        advice: what to do about it; empty if there is nothing to do, or if `says` ends with the
            advice.
        state: what the finding means for a run.
    """

    subject: str
    says: str
    advice: str = ""
    state: Severity = Severity.OK


def examine(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield all findings about a machine and about what a run needs.

    If a check fails with an error, the error is its finding, and the other checks go on.
    """
    for check in _CHECKS:
        subject = check.__name__.removeprefix("_examine_")
        try:
            yield from check(context)
        except SpecregError as error:
            yield _obstacle(subject, error)
        except OSError as error:
            says = f"couldn't be looked at: {cause_and_path_of(error)}"
            yield PreflightFinding(subject, says, "mend that", Severity.IN_THE_WAY)
        except Exception as error:  # noqa: BLE001 - the rest is still worth knowing
            says = f"couldn't be examined: {type(error).__name__}: {error}"
            yield PreflightFinding(subject, says, "repair that, or report it", Severity.IN_THE_WAY)


def view_of_findings(findings: Sequence[PreflightFinding]) -> Parts:
    """Return whether anything is in the way, and a row for each finding with its advice below."""
    rows = []
    for finding in findings:
        text = finding.says
        if finding.advice:
            text = f"{text}\n→ {finding.advice}"
        rows.append((StyledText(finding.state, _STYLES[finding.state]), finding.subject, text))

    states = [finding.state for finding in findings]
    obstacles = states.count(Severity.IN_THE_WAY)
    notes = states.count(Severity.NOTE)
    answer = "Nothing is in the way"
    if obstacles:
        answer = f"{counted(obstacles, 'thing')} in the way"
    if notes:
        answer = f"{answer}, {counted(notes, 'note')}"
    head = ("state", "subject", "finding")
    return (
        VerdictLine(tone=Tone.BAD if obstacles else Tone.GOOD, text=answer),
        Table(head, rows, Layout(left=head, folded=("finding",))),
    )


_STYLES = {Severity.OK: "green", Severity.NOTE: "yellow", Severity.IN_THE_WAY: "bold red"}


def _note(subject: str, says: str, advice: str) -> PreflightFinding:
    """Return a finding about a problem that a run can live with."""
    return PreflightFinding(subject, says, advice, Severity.NOTE)


def _obstacle(subject: str, problem: object) -> PreflightFinding:
    """Return a finding about an obstacle.

    Args:
        problem: a message or an error whose first line ends with what to do about it.
    """
    return PreflightFinding(subject, str(problem).splitlines()[0], state=Severity.IN_THE_WAY)


def _runnable_cases(context: RunContext) -> list[Case]:
    """Return the cases of the tier that can run on the machine."""
    unfit = why_unfit(context)
    return [case for case in context.tier.cases if case.id not in unfit]


def _devices(context: RunContext) -> tuple[Device, ...]:
    """Return the devices whose power a run measures.

    Raises:
        SensorError: no device can be read.
    """
    if not context.provision.on_gpu:
        return devices_of(0, os.environ)
    used = context.tier.gpus_used(gpus_of(context.options).memory_gib)
    return devices_of(used, os.environ)


def _examine_processor(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield the kind of machine, the processor, and a note if other programs use the processor."""
    here = current_environment(gpus=0)
    yield PreflightFinding("environment", context.environment.name)
    cores = counted(here.cores, "core")
    yield PreflightFinding("processor", f"{here.cpu}, {here.instruction_set}, {cores}")
    load = context.processor_load
    if load is not None and load.is_high:
        advice = (
            "this disturbs the client, and engines on the processor; run when the machine is quiet"
        )
        yield _note("speed", str(load), advice)


def _examine_gpus(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield the properties of each GPU, and whether those that a run uses are free and cool."""
    gpus = gpus_of(context.options)
    on_gpu = context.provision.on_gpu
    if not gpus.devices and (on_gpu or gpus.is_unusable):
        yield _obstacle("GPUs", gpus.why_none)
    elif not gpus.devices:
        yield PreflightFinding("GPUs", f"none: {gpus.why_none}")

    for remark in remarks_on(gpus):
        yield PreflightFinding("GPUs", remark, state=Severity.NOTE)
    used_ids: set[str] = set()
    if on_gpu and gpus.devices:
        used_ids = {device.id for device in _devices(context)}
    for device in gpus.devices:
        try:
            yield from _examine_gpu(device, is_used=device.id in used_ids)
        except SensorError as error:
            yield _obstacle(_subject_of(device), error)


def _subject_of(device: Device) -> str:
    return f"GPU {device.number}"


def _examine_gpu(device: Device, *, is_used: bool) -> Iterator[PreflightFinding]:
    """Yield the properties of a GPU, and its problems if a run uses it.

    Raises:
        SensorError: a run uses the GPU, and it is busy or too hot, or can't be read.
    """
    subject = _subject_of(device)
    yield PreflightFinding(subject, _facts_of(device))
    if not is_used:
        return

    # This process has no servers, so any process on the GPU belongs to another program.
    check_free([device], frozenset())
    check_cool([device])
    notes = [_note(subject, says, advice) for says, advice in _oddities_of(device)]
    yield from notes or [PreflightFinding(subject, "free, no process computes on it")]


def _facts_of(device: Device) -> str:
    """Return the properties of a GPU in a line; what its driver doesn't report is `unknown`."""
    memory = "memory unknown"
    if device.memory_bytes is not None:
        memory = f"{device.memory_bytes / _GIB:.1f} GiB"
    elif device.shares_memory:
        memory = "the machine's memory"
    name = device.name or "name unknown"
    return f"{name}, {device.id}, {memory}, driver {device.driver_version or 'unknown'}"


def _oddities_of(device: Device) -> Iterator[tuple[str, str]]:
    """Yield how a GPU differs from an idle one with the vendor's settings, and what to do about it.

    Raises:
        SensorError: the GPU can't be read.
    """
    probe = open_probe(device)
    state = probe.state()
    if probe.processes() is None:
        yield (
            "the processes that compute on it can't be listed",
            "check with nvidia-smi or amd-smi that there are none",
        )

    used_gib = (state.used_bytes or 0) / _GIB
    if used_gib > _EMPTY_GIB:
        yield (
            f"{used_gib:.1f} GiB of its memory are taken, but no process shows on it",
            "another container may use it; look with nvidia-smi or amd-smi on the host",
        )

    if device.limit_w:
        yield (
            f"limited to {device.limit_w:.0f} W, which isn't the vendor's default",
            f"its baselines have a folder of their own; to undo it, as root: {device.limit_reset}",
        )

    # Only NVML reports this.
    if (state.throttle_mask or 0) & _CLOCKS_SET_BY_APPLICATION:
        yield (
            f"its SM clock is set by an application, now {state.sm_clock_mhz} MHz",
            "to undo it, as root: nvidia-smi -rgc, and nvidia-smi -rac",
        )


def _examine_power(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield how the power of each device is measured."""
    try:
        for device in _devices(context):
            yield _power_of(device)
    except SensorError as error:
        yield PreflightFinding("power", error.head, state=Severity.NOTE)


def _power_of(device: Device) -> PreflightFinding:
    """Return how the power of a device is measured.

    Raises:
        SensorError: the device can't be read.
    """
    if device.why_not:
        return PreflightFinding("power", f"{device.name}: {device.why_not}", state=Severity.NOTE)
    sensor = f"{device.name}, {device.scope} scope, by {device.sensor}"
    if open_probe(device).energy_mj() is None:
        advice = "energy is then summed from power, which is less exact"
        return _note("power", f"{sensor}: no energy counter", advice)
    return PreflightFinding("power", f"{sensor}: energy counter")


def _examine_memory(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield the free memory and, for a run without GPUs, whether the largest models fit into it."""
    left_gib = free_gib()
    needed_gib = 0.0
    if not context.provision.on_gpu:
        models_gib = [_models_of_case_gib(case) for case in _runnable_cases(context)]
        needed_gib = max(models_gib, default=0.0)
    says = f"{left_gib:.1f} GiB free"
    if left_gib < needed_gib:
        says = f"{says}, and the models of the largest case take {needed_gib:.1f} GiB"
        advice = "end the programs that take the memory, or choose smaller models"
        yield PreflightFinding("memory", says, advice, Severity.IN_THE_WAY)
    else:
        yield PreflightFinding("memory", says)


def _models_of_case_gib(case: Case) -> float:
    """Return the size of the models of a case and its control in GiB, as far as it is known."""
    specs = [spec for spec in (case.server, case.control) if spec is not None]
    sizes = [spec.sizes for spec in specs if spec.sizes is not None]
    return sum(size.target_gib + (size.draft_gib or 0.0) for size in sizes)


def _engines_needed(context: RunContext) -> Mapping[Requirement, bool]:
    """Return whether each engine that a run needs is installed already.

    Engines that specreg doesn't install aren't in it: those of an interpreter that the user names,
    and programs on PATH.
    """
    if context.provision.python is not None:
        return {}
    is_installed_already: dict[Requirement, bool] = {}
    for case in _runnable_cases(context):
        if context.provision.image_of(case.server):
            continue
        # An engine that can't do what the case needs is a finding of `_examine_cases`.
        with contextlib.suppress(UnsupportedError):
            requirement = context.provision.requirement(case.server)
            if requirement.package != engine_named(case.server.engine).program:
                is_installed_already[requirement] = environment_exists(requirement)

    return is_installed_already


def _models_gib(context: RunContext) -> Mapping[str, float | None]:
    """Return the size of each model in GiB, by folder or hub id; None if the tier states none."""
    sizes_gib: dict[str, float | None] = {}
    for spec in dict.fromkeys(case.server for case in _runnable_cases(context)):
        sizes_gib[spec.target] = spec.sizes.target_gib if spec.sizes else None
        if spec.draft is not None:
            sizes_gib[spec.draft] = spec.sizes.draft_gib if spec.sizes else None
    return sizes_gib


def _models_to_widen_gib(context: RunContext) -> float:
    """Return the size in GiB of the widened models that a run makes first."""
    sizes_gib: dict[Path, float] = {}
    for spec in dict.fromkeys(case.server for case in _runnable_cases(context)):
        # A model that is missing or can't be widened is a finding of another check.
        with contextlib.suppress(ModelError):
            for folder, is_target in widened_folders(context.root, spec):
                if spec.sizes is not None and not folder.is_dir():
                    gib = spec.sizes.target_gib if is_target else spec.sizes.draft_gib
                    sizes_gib[folder] = gib or 0.0

    return sum(sizes_gib.values())


class _Need(NamedTuple):
    """The disk space that a run needs in a folder.

    Attributes:
        content: what is written there, in a word.
        folder: the folder, or the closest folder above it that exists.
        gib: about how much space the content takes.
    """

    content: str
    folder: Path
    gib: float


def _examine_disks(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield for each disk whether it has room for what a run writes there."""
    # Estimate what is written to each folder.
    missing_gib = [
        gib for name, gib in _models_gib(context).items() if is_hub_id(name) and not is_cached(name)
    ]
    missing_engines = list(_engines_needed(context).values()).count(False)
    environment_gib = _GPU_ENVIRONMENT_GIB if context.provision.on_gpu else _CPU_ENVIRONMENT_GIB
    needs = [
        _need("engines", cache_dir(), environment_gib * missing_engines),
        _need("runs", context.run_folder.parent, _RUN_GIB),
    ]
    widened_gib = _models_to_widen_gib(context)
    if widened_gib:
        needs.insert(1, _need("widened models", cache_dir(), widened_gib))

    # What runs no containers here is a finding of `_examine_containers`.
    with contextlib.suppress(UnsupportedError):
        needs += _images_to_pull(context)

    # Without huggingface_hub it isn't known which models the cache has.
    if is_installed():
        models_gib = sum(gib for gib in missing_gib if gib is not None)
        needs.insert(1, _need("models", hub_cache_dir(), models_gib))

    # Add up what is written to each disk.
    needs_by_disk: dict[int, list[_Need]] = {}
    for need in needs:
        needs_by_disk.setdefault(need.folder.stat().st_dev, []).append(need)
    for disk_needs in needs_by_disk.values():
        yield _room_for(disk_needs, models_of_unknown_size=missing_gib.count(None))


def _images_to_pull(context: RunContext) -> Iterator[_Need]:
    """Yield the space for the container images that a run pulls, if it pulls any.

    Raises:
        UnsupportedError: nothing here runs containers.
    """
    names = _images_needed(context)
    if names:
        runtime = context.provision.runtime
        missing = [name for name in names if find_image(runtime, name) is None]
        yield _need("images", runtime.storage(), _IMAGE_GIB * len(missing))


def _need(content: str, folder: Path, gib: float) -> _Need:
    """Return the disk space that is needed in a folder, which need not exist yet."""
    return _Need(content, existing_folder(real_path(folder)), gib)


def _examine_locks(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield for the cache and for the folder of runs whether files there can be locked."""
    for folder in (cache_dir(), context.run_folder.parent):
        try:
            check_locks(folder)
        except SpecregError as error:
            yield _obstacle("locks", error)
        else:
            yield PreflightFinding("locks", f"files in '{folder}' can be locked")


def _room_for(needs: Sequence[_Need], *, models_of_unknown_size: int) -> PreflightFinding:
    """Return whether a disk has room for all that is written to it."""
    left_gib = shutil.disk_usage(needs[0].folder).free / _GIB
    needed_gib = sum(need.gib for need in needs)
    contents = [need.content for need in needs]
    says = f"{left_gib:.1f} GiB free for {', '.join(contents)}; about {needed_gib:.1f} GiB needed"
    if models_of_unknown_size and "models" in contents:
        says = f"{says}, without {models_of_unknown_size} model(s) of unknown size"
    if left_gib >= needed_gib:
        return PreflightFinding("disk", says)
    advice = "make room, or name other folders: SPECREG_CACHE, HF_HUB_CACHE, --specreg-runs"
    return PreflightFinding("disk", says, advice, Severity.IN_THE_WAY)


def _examine_shared_memory(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield whether there is enough shared memory, if a server uses several GPUs."""
    if not context.provision.on_gpu or context.provision.attached is not None:
        return
    if any(case.server.parallel.gpus_by_node > 1 for case in _runnable_cases(context)):
        yield shared_memory(shutil.disk_usage(_SHARED_MEMORY).free / _GIB)


def shared_memory(left_gib: float) -> PreflightFinding:
    """Return whether so much free shared memory is enough for servers on several GPUs."""
    says = f"{left_gib:.1f} GiB free in {_SHARED_MEMORY}"
    if left_gib >= _SHARED_MEMORY_GIB:
        return PreflightFinding("shared memory", says)
    return PreflightFinding(
        "shared memory",
        f"{says}, and NCCL and the engines need {_SHARED_MEMORY_GIB:.0f} GiB to connect GPUs",
        "start the container with --ipc=host or --shm-size=16g",
        Severity.IN_THE_WAY,
    )


def _images_needed(context: RunContext) -> Sequence[str]:
    """Return the container images that a run needs, each once."""
    provision = context.provision
    names = [provision.image_of(case.server) for case in _runnable_cases(context)]
    return [name for name in dict.fromkeys(names) if name]


def _examine_engines(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield which engines are installed already, and which the first run will install."""
    for requirement, is_installed_already in _engines_needed(context).items():
        if is_installed_already:
            yield PreflightFinding("engine", f"{requirement.pin} is installed")
        else:
            advice = "the first run installs it, which takes minutes and 3 to 11 GB"
            yield _note("engine", f"{requirement.pin} isn't installed yet", advice)


def _examine_containers(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield what runs the containers of the cases that name an image, and which images are here."""
    names = _images_needed(context)
    if not names:
        return
    runtime = context.provision.runtime
    yield PreflightFinding("containers", f"{runtime} {runtime.check()}")

    for name in names:
        image = find_image(runtime, name)
        if image is not None:
            yield PreflightFinding("image", f"{name} is here, {image.digest}")
        else:
            yield _note("image", f"{name} isn't here yet", "the first run pulls it")


def _examine_build_tools(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield, for each engine on a GPU, which of the tools for compiling its code are missing."""
    provision = context.provision
    if not provision.on_gpu or provision.attached is not None:
        return
    specs = {case.server.engine: case.server for case in _runnable_cases(context)}
    for name, spec in specs.items():
        engine = engine_named(name)
        if engine.program is not None or provision.image_of(spec):
            continue
        requirement = provision.requirement(spec)
        is_installed_already = provision.python is not None or environment_exists(requirement)
        # A missing environment will be made with this interpreter.
        python = sys.executable
        if is_installed_already:
            python = provision.python or str(interpreter_of(requirement))
        variables = {**os.environ, **dict(spec.engine_env)}
        # For AMD's GPUs, the packages have compiled kernels, and the compiler Triton works without
        # CUDA.
        compiles_kernels = engine.compiles and not gpus_of(context.options).are_amd
        missing = missing_tools(
            python, variables, compiles_kernels=compiles_kernels, is_installed=is_installed_already
        )
        findings = [
            PreflightFinding(
                "compilers", f"{name} lacks {tool.name}", tool.advice, Severity.IN_THE_WAY
            )
            for tool in missing
        ]
        has_all = f"{name} has all tools that it needs"
        if findings:
            yield from findings
        elif not compiles_kernels:
            yield PreflightFinding("compilers", has_all)
        elif is_installed_already or named_home(variables):
            compiler = server_compiler(Path(python), variables)
            yield _toolkit(has_all, compiler, provision.cuda_release(spec))
        else:
            yield PreflightFinding(
                "compilers", f"{has_all}; its packages bring CUDA's compiler, nvcc"
            )


def _toolkit(says: str, compiler: Path | None, engine_release: str) -> PreflightFinding:
    """Return which nvcc a server compiles with; a note if the engine was built for another CUDA.

    Args:
        says: what the finding begins with.
        compiler: the nvcc, which runs.
        engine_release: the release of CUDA that the engine's packages bring; empty if it isn't
            known.
    """
    release = "" if compiler is None else release_of(compiler)
    says = f"{says}; it compiles with CUDA {release}, '{compiler}'"
    if engine_release in {"", release}:
        return PreflightFinding("compilers", says)
    advice = (
        "unset CUDA_HOME and CUDA_PATH, or set CUDA_HOME to the folder of a toolkit"
        f" {engine_release}; kernels of another release may not load"
    )
    return _note("compilers", f"{says}, and its packages are for CUDA {engine_release}", advice)


def _examine_models(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield for each model whether it is on this machine."""
    for reference, size_gib in _models_gib(context).items():
        size = "" if size_gib is None else f" (about {size_gib:.1f} GiB)"
        try:
            yield _model(context, reference, size)
        except SpecregError as error:
            yield _obstacle("model", error)


def _model(context: RunContext, reference: str, size: str) -> PreflightFinding:
    """Return whether a model is on this machine.

    Raises:
        ModelError: the folder of the model is incomplete.
    """
    if not is_hub_id(reference):
        resolve_model(context.root, reference)
        return PreflightFinding("model", f"{reference}: is there")
    if not is_installed():
        says = f"{reference}: only huggingface_hub can tell whether it is in the hub's cache"
        return _note("model", says, install_command("datasets"))
    if is_cached(reference):
        return PreflightFinding("model", f"{reference}: in the hub's cache")
    says = f"{reference}: not in the hub's cache{size}"
    if is_offline():
        advice = "unset HF_HUB_OFFLINE, or fetch it where the hub can be reached"
        return PreflightFinding("model", says, advice, Severity.IN_THE_WAY)
    refusal = why_unfetchable(reference)
    if refusal:
        return _obstacle("model", refusal)
    return _note("model", says, "a run fetches it before it starts the server")


def _examine_datasets(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield for each dataset how many prompts it has on this machine."""
    cases_by_dataset = {case.request.dataset: case for case in _runnable_cases(context)}
    for name, case in cases_by_dataset.items():
        says = "made when a case needs it"
        try:
            if dataset_named(name).tokens is None:
                says = counted(len(load_case_prompts(context.root, case)), "prompt")
            yield PreflightFinding("dataset", f"{name}: {says}")
        except ModelError:
            # `_examine_models` yields a finding about the model.
            continue
        except SpecregError as error:
            yield _obstacle("dataset", error)


def _examine_baselines(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield the baselines that can't be read, and how many cases have one."""
    store = context.store
    for problem in read_baselines(baseline_files(store.folder))[1]:
        yield _obstacle("baselines", problem)
    cases = _runnable_cases(context)
    recorded = sum(store.path(case.id).exists() for case in cases)
    name = context.environment.name
    says = f"{recorded} of {len(cases)} case(s) have one in '{name}' to compare with"
    if recorded == len(cases):
        yield PreflightFinding("baselines", says)
    else:
        command = record_command((), context.store.options)
        yield _note("baselines", says, f"record them: {command}")


def _examine_cases(context: RunContext) -> Iterator[PreflightFinding]:
    """Yield how many cases can run, which cases a run skips, and which would stop it at once."""
    refused: dict[str, str] = {}
    runnable_cases = _runnable_cases(context)
    for case in runnable_cases:
        try:
            context.provision.check([case])
        except SpecregError as error:
            refused[case.id] = str(error)

    tier = context.tier
    count = len(runnable_cases) - len(refused)
    says = f"{count} of {len(tier.cases)} cases of tier '{tier.name}' run here"
    if count:
        yield PreflightFinding("cases", says)
    else:
        advice = "follow the advice in the lines below, or choose another tier"
        yield PreflightFinding("cases", says, advice, Severity.IN_THE_WAY)

    for case_ids, reason in _by_reason(refused):
        yield _obstacle("cases", f"{case_ids}: {reason}")
    for case_ids, reason in _by_reason(why_unfit(context)):
        advice = "a run leaves them out; run them on a machine that has what they need"
        yield _note("cases", f"{case_ids}: {reason}", advice)


def _by_reason(reasons: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each reason once, with its cases before it.

    A single case is named by its id, and several cases by their number and one of the ids.
    """
    ids_by_reason: dict[str, list[str]] = {}
    for case_id, reason in reasons.items():
        ids_by_reason.setdefault(reason, []).append(case_id)
    for reason, case_ids in ids_by_reason.items():
        name = case_ids[0]
        if len(case_ids) > 1:
            name = f"{len(case_ids)} cases, such as {case_ids[0]}"
        yield name, reason


_CHECKS = (
    _examine_processor,
    _examine_gpus,
    _examine_memory,
    _examine_power,
    _examine_disks,
    _examine_locks,
    _examine_shared_memory,
    _examine_engines,
    _examine_containers,
    _examine_build_tools,
    _examine_models,
    _examine_datasets,
    _examine_baselines,
    _examine_cases,
)
"""The checks, in the order in which their findings are shown."""
