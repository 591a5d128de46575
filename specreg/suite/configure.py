"""Make a run of what a user asked for, or say what is wrong with it."""

import datetime as dt
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from specreg.baselines.store import BaselineStore
from specreg.core.commands import run_command
from specreg.core.errors import SpecregError, UnknownNameError
from specreg.core.timeline import Timeline
from specreg.datasets.hub import is_offline
from specreg.many.options import Spread
from specreg.matrix.case import Case, Tier
from specreg.matrix.models import check_model_code, why_unfetchable
from specreg.matrix.tier import load_tier, with_prompts
from specreg.matrix.widening import check_room
from specreg.measurement.journal import Journal, last_run, load_journal, parts_in
from specreg.measurement.metrics import METRICS, check_allowed
from specreg.report.progress import Progress
from specreg.servers.attach import alone, check_attached
from specreg.servers.provision import Provision
from specreg.suite.options import Options, options_to_repeat
from specreg.suite.run import Suite
from specreg.telemetry.identity import (
    UNKNOWN_ENVIRONMENT,
    Host,
    current_environment,
    find_gpus,
    processor_load,
)

_LAUNCHES_TO_RECORD = 3


def spread_of(options: Options) -> Spread:
    """Over what a run is spread, if anything."""
    return Spread(workers=options.workers, ray=options.ray, slurm=options.slurm)


def check_options(root: Path, options: Options) -> None:
    """Check what was typed, as far as that is known before anything is waited for.

    Raises:
        SpecregError: it can't be.
    """
    budget = {"--specreg-budget-gpu-min": options.budget_gpu_min is not None}
    fewer = {"--num-prompts": options.num_prompts is not None, **budget}
    attached = {
        "--update-baselines": options.update_baselines,
        "--specreg-resume": options.resume,
        "--specreg-launches": options.launches is not None,
        "--specreg-engine-version": options.engine_version is not None,
        **budget,
        **spread_of(options).given,
    }
    why_attached = "it isn't known how that server was started, nor can it be started anew"
    why_fewer = "a baseline is of as many prompts as the matrix says"
    for name, is_given, others, why in (
        ("--specreg-attach", options.attach is not None, attached, why_attached),
        ("--update-baselines", options.update_baselines, fewer, why_fewer),
    ):
        too_much = [other for other, given in others.items() if given]
        if is_given and too_much:
            message = f"{name} with {', '.join(too_much)}: {why}; leave one of them out"
            raise SpecregError(message)
    if options.launches is not None and options.launches < 1:
        message = f"--specreg-launches: got {options.launches}, needed 1 or more; leave it out"
        raise SpecregError(message)
    if options.tier is not None:
        _tier(root, options, options.tier)
    if options.resume:
        last_run(root / options.runs)


def _tier(root: Path, options: Options, name: str) -> Tier:
    """What is to be measured."""
    tier = load_tier(root / options.matrix, name)
    engines = {case.server.engine for case in tier.cases}
    if options.engine is not None and options.engine not in engines:
        raise UnknownNameError("engine", options.engine, engines, f"tier '{tier.name}'")
    if options.attach is not None:
        tier = alone(tier, options.attach)
    if options.num_prompts is not None:
        tier = with_prompts(tier, options.num_prompts)
    for case in tier.cases:
        check_allowed(case, tier.places[case.id])
    return tier


def open_suite(root: Path, options: Options, progress: Progress, site: Host | None) -> Suite:
    """A run in which nothing was measured yet, but for what it goes on with.

    Args:
        root: the repository's root.
        options: what the user asked for.
        progress: is told what goes on.
        site: the cluster's nodes; None for this machine.

    Raises:
        SpecregError: an option, the tier or the machine doesn't fit; the message names it.
    """
    gpus = find_gpus() if site is None else site.found
    tier = _tier(root, options, options.tier or ("gpu" if gpus.names else "cpu"))
    if options.attach is None:
        tier = tier.chosen(gpus.memory_gib)
    environment_of = current_environment if site is None else site.environment
    runs = root / options.runs
    began_at = dt.datetime.now(tz=dt.UTC)
    started = began_at.strftime("%Y%m%dT%H%M%S")
    run_folder = last_run(runs) if options.resume else runs / f"{started}-{os.getpid()}"
    journal = Journal(run_folder / "journal.jsonl")
    if options.resume:
        journal.hold()  # before anything of it is taken
    for part in parts_in(run_folder):
        journal.take(part)
    suite = Suite(
        options=options,
        root=root,
        tier=tier,
        store=BaselineStore(
            folder=root / options.baselines,
            environment=environment_of(needs_gpus=tier.gpus_used(gpus.memory_gib))
            if options.attach is None
            else UNKNOWN_ENVIRONMENT,
            options=options_to_repeat(options, tier.name),
        ),
        launches=options.launches or (_LAUNCHES_TO_RECORD if options.update_baselines else 1),
        update_reason=(options.reason or "").strip() if options.update_baselines else None,
        began_at=began_at,
        load=processor_load() if site is None else None,
        provision=Provision(
            on_gpu=tier.needs_gpus > 0,
            version=options.engine_version,
            python=options.engine_python,
            url=options.attach.rstrip("/") if options.attach else None,
            show=progress.show,
            tell=progress.tell,
            waits=not options.no_wait,
            site=site,
        ),
        run_folder=run_folder,
        history=root / options.history if options.history else runs.parent / "history",
        softened=frozenset(
            name
            for name, metric in METRICS.items()
            if options.inconclusive == "warn"
            or (options.inconclusive == "warn-speed" and metric.by_launch)
        ),
        journal=journal,
        earlier=load_journal(journal.path) if options.resume else {},
        show=progress.show,
        timeline=Timeline(listener=progress.watch),
        skips_unfetched=not options.require_tier or is_offline(),
    )
    if options.require_tier and unmet_need(suite):
        raise SpecregError(unmet_need(suite))
    return suite


def unmet_need(suite: Suite) -> str:
    """What the tier needs and the machine lacks, empty when nothing."""
    gpus = suite.provision.found_gpus
    if len(gpus.names) >= suite.tier.needs_gpus or suite.provision.url is not None:
        return ""
    return (
        f"tier '{suite.tier.name}' needs {suite.tier.needs_gpus} GPU(s), {_where(suite)} has"
        f" {len(gpus.names)} ({gpus.why_none}); use a machine with one, or the CPU's tier:"
        f" {run_command((), ['--specreg-tier=cpu'])}"
    )


def why_unfit(suite: Suite) -> Mapping[str, str]:
    """By case what it needs and the machine lacks; what the tier needs, where that is missing."""
    if suite.provision.url is not None:
        return {}
    if why := unmet_need(suite):
        return {case.id: why for case in suite.tier.cases}
    return suite.tier.unmet(suite.provision.found_gpus.memory_gib, _where(suite))


def why_unfetched(suite: Suite, cases: Collection[Case]) -> Mapping[str, str]:
    """By case why its models can't be fetched, as far as the hub tells before a server starts."""
    provision = suite.provision
    if provision.url is not None or provision.site is not None:
        return {}
    found = {case.id: why_unfetchable(case.server) for case in cases}
    return {case_id: why for case_id, why in found.items() if why}


def _where(suite: Suite) -> str:
    return "this machine" if suite.provision.site is None else "the widest node"


def check_cases(suite: Suite, cases: Collection[Case]) -> None:
    """Silent where every case can be measured, as far as that is known before a server starts.

    Raises:
        SpecregError: one can't.
    """
    if suite.provision.url is not None:
        check_attached(cases, suite.provision.url, root=suite.root)
        return
    suite.provision.check(cases)
    specs = dict.fromkeys(case.server for case in cases)
    for spec in specs:
        check_model_code(suite.root, spec)
    check_room(suite.root, specs)
