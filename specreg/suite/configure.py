"""Make a run of what a user asked for, or say what is wrong with it."""

import datetime as dt
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from specreg.core.commands import run_command
from specreg.core.errors import SpecregError, check_name
from specreg.core.timeline import Timeline
from specreg.correctness.checks import CorrectnessCheck
from specreg.datasets.hub import is_offline
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, Tier
from specreg.matrix.models import why_no_models
from specreg.matrix.prompts import check_contexts
from specreg.matrix.tier import load_tier
from specreg.measurement.journal import last_run, load_checks, load_journal
from specreg.measurement.metrics import Metric, check_allowed
from specreg.report.progress import Progress
from specreg.report.vocabulary import declare_vocabulary
from specreg.servers.attach import alone, check_attached
from specreg.servers.provision import why_no_program
from specreg.suite.finish import leave_page
from specreg.suite.machine import check_usable, gpus_of, remarks_on
from specreg.suite.options import (
    MOST_GPU_MEMORY_GIB,
    MOST_LAUNCHES_ASKED,
    MOST_PROMPTS_ASKED,
    Options,
    flag_of,
)
from specreg.suite.plan import JOURNAL
from specreg.suite.run import Suite
from specreg.suite.shards import expected_times
from specreg.telemetry.identity import (
    UNKNOWN_ENVIRONMENT,
    ProcessorLoad,
    current_environment,
    find_gpus,
)

_NOT_ATTACHED = {"update_baselines", "resume", "launches", "engine_version", "shard"}


def _check_options(options: Options) -> None:
    """Check that the options go together; else a SpecregError."""
    given = [one for one in fields(options) if getattr(options, one.name) not in {None, False}]
    too_much = [flag_of(one) for one in given if one.name in _NOT_ATTACHED]
    if options.attach is not None and too_much:
        why = "it isn't known how that server was started, nor can it be started anew"
        raise SpecregError(f"--specreg-attach with {', '.join(too_much)}: {why}; leave one out")
    if options.update_baselines and options.num_prompts is not None:
        why = "a baseline is of as many prompts as the matrix says; leave one of them out"
        raise SpecregError(f"--update-baselines with --num-prompts: {why}")
    counts = {
        "--specreg-launches": (options.launches, MOST_LAUNCHES_ASKED),
        "--num-prompts": (options.num_prompts, MOST_PROMPTS_ASKED),
    }
    for flag, (count, most) in counts.items():
        if count is not None and not 1 <= count <= most:
            raise SpecregError(f"{flag}: got {count}, needed 1 to {most}; leave it out")
    gib = options.gpu_memory_gib
    if gib is not None and not 0 < gib <= MOST_GPU_MEMORY_GIB:
        needed = f"needed more than 0 and at most {MOST_GPU_MEMORY_GIB:.0f} GiB"
        raise SpecregError(f"--specreg-gpu-memory: got {gib:g}, {needed}; mend it")


def load_cases(root: Path, options: Options, name: str) -> Tier:
    """Load the tier that is to be measured, as the options change it."""
    tier = load_tier(root / options.matrix, name)
    engines = {case.server.engine for case in tier.cases}
    if options.engine is not None:
        check_name("engine", options.engine, engines, f"tier '{tier.name}'")
    if options.attach is not None:
        tier = alone(tier, options.attach)
    if options.num_prompts is not None:
        cases = tuple(case.replaying(options.num_prompts) for case in tier.cases)
        tier = replace(tier, cases=cases)
    for case in tier.cases:
        check_allowed(case, tier.places[case.id])
    return tier


def open_suite(
    root: Path, options: Options, progress: Progress, within: Path | None = None
) -> Suite:
    """Open a run in which nothing is measured yet, but for what it resumes.

    `within` is the folder of a process that has a share of another's run; None for one of its own.

    Raises:
        SpecregError: an option, the tier or the machine doesn't fit; the message names it.
    """
    _check_options(options)
    gpus, environment = gpus_of(options), UNKNOWN_ENVIRONMENT
    tier = load_cases(root, options, options.tier or ("gpu" if gpus.devices else "cpu"))
    if options.attach is None:
        tier = tier.chosen(gpus.memory_gib)
        environment = current_environment(needs_gpus=tier.gpus_used(gpus.memory_gib))
    runs = root / options.runs
    part = "-{}of{}".format(*options.part) if options.part else ""
    began_at = dt.datetime.now(tz=dt.UTC)
    run_folder = within or runs / f"{began_at:%Y%m%dT%H%M%S}-{os.getpid()}{part}"
    # Another process of the run may have died, or the run goes on.
    whole = within.parents[1] if within else run_folder
    if options.resume:
        run_folder = whole = last_run(runs, part)
    declare_vocabulary(tier.cases, tier.name, environment.name, whole.name)
    suite = Suite(
        options=options,
        root=root,
        tier=tier,
        environment=environment,
        began_at=began_at,
        load=ProcessorLoad(waiting=os.getloadavg()[0], cores=len(os.sched_getaffinity(0))),
        run_folder=run_folder,
        show=progress.show,
        tell=progress.tell,
        further_s=60 * options.record_minutes if options.launches is None else 0.0,
        progress=progress.run,
        leave_page=leave_page,
        timeline=Timeline(listener=progress.watch),
        shares_machine=within is not None,
        skips_unfetched=not options.require_tier or is_offline(),
    )
    if options.resume:
        suite.journal.hold()  # before anything of it is taken
    for path in [*whole.glob(f"shards/*/{JOURNAL}"), whole / JOURNAL]:  # its own counts
        if path.exists():
            suite.earlier |= load_journal(path)
            suite.earlier_checks |= load_checks(path)
    if options.require_tier:
        check_usable(gpus, options, needs_gpus=tier.needs_gpus > 0)
        if why := unmet_need(suite):
            raise SpecregError(why)
    return suite


def unmet_need(suite: Suite) -> str:
    """What the tier needs and the machine lacks, empty when nothing."""
    gpus = find_gpus()
    if len(gpus.devices) >= suite.tier.needs_gpus or suite.provision.url is not None:
        return ""
    has = f"this machine has {len(gpus.devices)} ({gpus.why_none})"
    cure = f"use a machine with one, or the CPU's tier: {run_command((), ['--specreg-tier=cpu'])}"
    return f"tier '{suite.tier.name}' needs {suite.tier.needs_gpus} GPU(s), {has}; {cure}"


def why_unfit(suite: Suite) -> Mapping[str, str]:
    """By case what it needs and the machine lacks; what the tier needs, where that is missing.

    A program that isn't there is named by `check_cases` where the tier is required.
    """
    if suite.provision.url is not None:
        return {}
    if why := unmet_need(suite):
        return {case.id: why for case in suite.tier.cases}
    unfit = dict(suite.tier.unmet(gpus_of(suite.options).memory_gib))
    for case in suite.tier.cases if not suite.options.require_tier else ():
        if why := why_no_program(engine_named(case.server.engine)):
            unfit[case.id] = why
    return unfit


def choose(
    suite: Suite, tests: Sequence[tuple[Case, Metric | CorrectnessCheck]], *, lists: bool
) -> list[str]:
    """Let a run ask what its tests ask; return why each is skipped, empty of one that isn't.

    `lists` says whether nothing is run, so that the hub isn't asked for models.
    """
    servers = {case.id: case.server for case, _ in tests}
    asks_hub = suite.provision.url is None and not lists
    found = {one: why_no_models(spec) for one, spec in servers.items()} if asks_hub else {}
    unfetched, unfit = {case_id: why for case_id, why in found.items() if why}, why_unfit(suite)
    if suite.skips_unfetched:
        unfit, unfetched = {**unfetched, **unfit}, {}
    suite.unfetched = unfetched
    suite.skipped = {case_id: why for case_id, why in unfit.items() if case_id in servers}
    dark = [suite.why_dark(*test) if test[0].id not in unfit else "" for test in tests]
    suite.no_power = "; ".join(dict.fromkeys(filter(None, dark)))
    reasons = [unfit.get(case.id, why) for (case, _), why in zip(tests, dark, strict=True)]
    asked: dict[str, set[str]] = {}
    for (case, what), why in zip(tests, reasons, strict=True):
        if not why:
            asked.setdefault(case.id, set()).add(what.name)
    suite.asked = asked
    if not (lists or suite.shares_machine):
        suite.progress.expected_s = expected_times(suite)
    return reasons


def check_cases(suite: Suite, cases: Collection[Case]) -> None:
    """Check that every case can be measured, as far as is known beforehand; else a SpecregError.

    What isn't known of the GPUs is told.
    """
    gpus = gpus_of(suite.options)
    check_usable(gpus, suite.options, needs_gpus=suite.tier.needs_gpus > 0)
    if suite.tier.needs_gpus and suite.options.attach is None and not suite.shares_machine:
        for remark in remarks_on(gpus):
            suite.tell(remark)
    if suite.provision.url is not None:
        check_attached(cases, suite.provision.url, root=suite.root)
    else:
        suite.provision.check(cases)
    check_contexts(suite.root, cases)
