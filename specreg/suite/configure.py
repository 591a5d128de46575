"""Make the context of a run from its options, and check that the options make sense."""

import os
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path

from specreg.baselines.record import commit_of
from specreg.core.commands import run_command
from specreg.core.errors import SpecregError, check_name
from specreg.core.files import cause_of, check_can_write
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, Tier
from specreg.matrix.prompts import check_contexts, check_drafts
from specreg.matrix.tier import load_tier
from specreg.measurement.metrics import check_allowed
from specreg.report.progress import Progress
from specreg.runs.ledger import last_run
from specreg.servers.attach import check_attached, with_controls_attached
from specreg.servers.provision import why_no_program
from specreg.suite.attached import environment_at
from specreg.suite.context import RunClock, RunContext, provision_of, store_of
from specreg.suite.machine import check_usable, gpus_of, remarks_on, render_count
from specreg.suite.options import (
    MAX_GPU_MEMORY_GIB,
    MAX_LAUNCHES_ASKED,
    MAX_PROMPTS_ASKED,
    MAX_READY_S,
    MAX_RECORD_MINUTES,
    Options,
    flag_of,
)
from specreg.telemetry.identity import (
    ProcessorLoad,
    current_environment,
    find_gpus,
    machine_identity,
)

_NOT_ATTACHED = {"update_baselines", "resume", "launches", "engine_version", "shard"}
"""The options that make no sense with a server that others have started."""


def _check_options(options: Options) -> None:
    """Check that the options can be combined, and that their numbers are in range.

    Raises:
        SpecregError: two options contradict each other, or a number is out of its range.
    """
    # Options that contradict one another.
    conflicting = [
        flag_of(field)
        for field in fields(options)
        if field.name in _NOT_ATTACHED and getattr(options, field.name) not in {None, False}
    ]
    if options.attach is not None and conflicting:
        problem = "specreg doesn't know how that server was started, and can't start it again"
        flags = ", ".join(conflicting)
        raise SpecregError(f"--specreg-attach with {flags}: {problem}; leave it or the others out")

    if options.update_baselines and options.num_prompts is not None:
        problem = "a baseline has as many prompts as the tier says; leave one of the options out"
        raise SpecregError(f"--update-baselines with --num-prompts: {problem}")

    # Numbers that are out of their range.
    counts = {
        "--specreg-launches": (options.launches, MAX_LAUNCHES_ASKED),
        "--num-prompts": (options.num_prompts, MAX_PROMPTS_ASKED),
    }
    for flag, (count, most) in counts.items():
        if count is not None and not 1 <= count <= most:
            raise SpecregError(f"{flag}: got {count}, needed 1 to {most}; leave it out")
    if not 0 < options.ready_within_s <= MAX_READY_S:
        needed = f"needed more than 0 and at most {MAX_READY_S} s"
        got = f"got {options.ready_within_s:g}"
        raise SpecregError(f"--specreg-ready-within-s: {got}, {needed}; correct it")

    if not 0 <= options.record_minutes <= MAX_RECORD_MINUTES:
        needed = f"needed 0 to {MAX_RECORD_MINUTES}"
        got = f"got {options.record_minutes:g}"
        raise SpecregError(f"--specreg-record-minutes: {got}, {needed}; correct it")

    gib = options.gpu_memory_gib
    if gib is not None and not 0 < gib <= MAX_GPU_MEMORY_GIB:
        needed = f"needed more than 0 and at most {MAX_GPU_MEMORY_GIB:.0f} GiB"
        raise SpecregError(f"--specreg-gpu-memory: got {gib:g}, {needed}; correct it")


def load_cases(root: Path, options: Options, name: str) -> Tier:
    """Load a tier, and apply the options that change its cases.

    Args:
        root: the root of the repository.
        options: the options of the run.
        name: the name of the tier.

    Raises:
        SpecregError: the tier can't be read, or an option doesn't fit it.
    """
    tier = load_tier(root / options.matrix, name)
    engines = {case.server.engine for case in tier.cases}
    if options.engine is not None:
        check_name("engine", options.engine, engines, f"tier '{tier.name}'")
    if options.attach is not None:
        has_control = options.control_url is not None
        tier = with_controls_attached(tier, has_control=has_control)
    if options.num_prompts is not None:
        cases = tuple(case.replaying(options.num_prompts) for case in tier.cases)
        tier = replace(tier, cases=cases)
    if tier.needs_gpus:
        cases = tuple(_with_shared_runner(case, options.engine_version) for case in tier.cases)
        tier = replace(tier, cases=cases)
    for case in tier.cases:
        check_allowed(case, tier.locations[case.id])
    return tier


def _with_shared_runner(case: Case, version: str | None) -> Case:
    """Return a case whose control has the model runner that the case's own server will have.

    With two different runners, the speedup would mix the gain of speculation with the difference
    between the runners.

    Args:
        case: the case, which runs on a GPU.
        version: the version of the engine that the user has chosen; None for the default.
    """
    server = case.server

    # If the case's table names a runner, the control has the same one already.
    if case.control is None or server.model_runner is not None:
        return case
    engine = engine_named(server.engine)
    if not engine.has_model_runners:
        return case
    version = version or engine.requirement(on_gpu=True).version
    runner = engine.shared_runner(server.method, version)
    if runner is None:
        return case
    return replace(case, control=replace(case.control, model_runner=runner))


def open_context(
    root: Path, options: Options, progress: Progress, worker_folder: Path | None = None
) -> RunContext:
    """Return the context of a run, and check that its options make sense.

    Args:
        root: the root of the repository.
        options: the options that the user gave.
        progress: shows the progress.
        worker_folder: the folder of a worker, which measures a part of the run; None for a process
            that measures the whole run.

    Raises:
        SpecregError: an option, the tier or the machine doesn't fit; the message names it.
    """
    # The tier and the machine.
    _check_options(options)
    gpus = gpus_of(options)
    default_tier = "gpu" if gpus.devices else "cpu"
    tier = load_cases(root, options, options.tier or default_tier)

    # The hardware of an attached server isn't known, so it decides neither the model pairs nor the
    # environment.
    if options.attach is None:
        tier = tier.chosen(gpus.memory_gib)
        environment = current_environment(gpus=tier.gpus_used(gpus.memory_gib))
    else:
        environment = environment_at(options.url_environment, root / options.baselines)

    # The folder. A worker has one below the folder of the whole run.
    clock = RunClock.start()
    if worker_folder is None:
        run_folder = _run_folder(root / options.runs, options, clock)
    else:
        run_folder = worker_folder

    provision = provision_of(
        options, on_gpu=tier.needs_gpus > 0, show=progress.show, tell=progress.tell
    )

    # The load is read before the run adds to it.
    load = ProcessorLoad(waiting=os.getloadavg()[0], cores=len(os.sched_getaffinity(0)))
    context = RunContext(
        name=run_folder.name,
        root=root,
        tier=tier,
        environment=environment,
        options=options,
        run_folder=run_folder,
        provision=provision,
        store=store_of(options, root, environment, options.tier),
        clock=clock,
        commit=commit_of(root),
        is_worker=worker_folder is not None,
        processor_load=load,
        machine="" if options.attach else machine_identity(gpus),
    )
    if options.update_baselines:
        _check_baselines_writable(context.store.folder)
    if options.require_tier:
        check_usable(gpus, options, needs_gpus=tier.needs_gpus > 0)
        need = unmet_need(context)
        if need:
            raise SpecregError(need)

    return context


def _check_baselines_writable(folder: Path) -> None:
    """Check that baselines can be written to a folder, because measuring them takes long.

    Raises:
        SpecregError: they can't be written there.
    """
    try:
        check_can_write(folder)
    except OSError as error:
        message = f"baselines '{folder}': can't be written, {cause_of(error)}"
        cure = "mend its rights, or name another folder with --specreg-baselines"
        raise SpecregError(f"{message}; {cure}") from error


def _run_folder(runs: Path, options: Options, clock: RunClock) -> Path:
    """Return the folder of the run that is resumed, or of a new run, which isn't made yet.

    Raises:
        SpecregError: no run can be resumed, or the user chose a shard that doesn't exist.
    """
    shard_suffix = ""
    if options.part is not None:
        shard_suffix = f"-{options.part.number}of{options.part.shards_in_all}"
    if options.resume:
        return last_run(runs, shard_suffix)
    return runs / f"{clock.began_at:%Y%m%dT%H%M%S}-{os.getpid()}{shard_suffix}"


def unmet_need(context: RunContext) -> str:
    """Return why the machine can't run the tier at all; empty if it can."""
    gpus = find_gpus()
    tier = context.tier
    if len(gpus.devices) >= tier.needs_gpus or context.provision.attached is not None:
        return ""
    lacks = f"this machine has {render_count(gpus)}"
    cpu_command = run_command((), ["--specreg-tier=cpu"])
    cure = f"use a machine that has them, or the CPU's tier: {cpu_command}"
    return f"tier '{tier.name}' needs {tier.needs_gpus} GPU(s), {lacks}; {cure}"


def why_unfit(context: RunContext) -> Mapping[str, str]:
    """Return why cases can't run on the machine, by case id. Cases that can run aren't in it.

    If the machine can't run the tier at all, each case has the same reason. If the user requires
    the tier, a missing program isn't a reason here, because `check_cases` raises an error for it.
    """
    if context.provision.attached is not None:
        return {}
    tier_need = unmet_need(context)
    if tier_need:
        return {case.id: tier_need for case in context.tier.cases}
    needs = dict(context.tier.unmet(gpus_of(context.options).memory_gib))
    if context.options.require_tier:
        return needs
    for case in context.tier.cases:
        missing_program = why_no_program(engine_named(case.server.engine))
        # An image brings the program.
        if missing_program and not case.server.image:
            needs[case.id] = missing_program

    return needs


def check_cases(context: RunContext, cases: Collection[Case]) -> None:
    """Check that every case can be measured, as far as that is known beforehand.

    If the tier needs GPUs, it also prints which of them can't be used, and what isn't known about
    the others. A worker prints nothing, and neither does a run that measures an attached server.

    Raises:
        SpecregError: a case can't be measured.
    """
    gpus = gpus_of(context.options)
    check_usable(gpus, context.options, needs_gpus=context.tier.needs_gpus > 0)
    if context.tier.needs_gpus and context.options.attach is None and not context.is_worker:
        for remark in remarks_on(gpus):
            context.provision.tell(remark)
    if context.provision.attached is not None:
        check_attached(cases, context.provision, root=context.root)
    else:
        context.provision.check(cases)
        check_drafts(context.root, cases)

    check_contexts(context.root, cases)
