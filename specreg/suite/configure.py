"""Make a run of what a user asked for, or say what is wrong with it."""

import datetime as dt
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from specreg.core.commands import run_command
from specreg.core.errors import SpecregError, UnknownNameError
from specreg.core.timeline import Timeline
from specreg.correctness.checks import CorrectnessCheck
from specreg.datasets.hub import is_offline
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, Tier
from specreg.matrix.models import why_no_models
from specreg.matrix.prompts import check_contexts
from specreg.matrix.tier import load_tier, with_prompts
from specreg.measurement.journal import Journal, Key, last_run, load_checks, load_journal
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Metric, check_allowed
from specreg.report.progress import Progress
from specreg.servers.attach import alone, check_attached
from specreg.servers.provision import why_no_program
from specreg.suite.finish import LivePage
from specreg.suite.options import Options
from specreg.suite.run import Suite
from specreg.suite.shards import expected_times, parse_choice
from specreg.suite.update_baselines import FurtherLaunches
from specreg.telemetry.identity import (
    UNKNOWN_ENVIRONMENT,
    ProcessorLoad,
    current_environment,
    find_gpus,
)


def _check_options(options: Options) -> None:
    """Check that the options go together; else a SpecregError."""
    attached = {
        "--update-baselines": options.update_baselines,
        "--specreg-resume": options.resume,
        "--specreg-launches": options.launches is not None,
        "--specreg-engine-version": options.engine_version is not None,
        "--specreg-shard": options.shard is not None,
    }
    too_much = [flag for flag, given in attached.items() if given]
    if options.attach is not None and too_much:
        raise SpecregError(
            f"--specreg-attach with {', '.join(too_much)}: it isn't known how that server was"
            " started, nor can it be started anew; leave one of them out"
        )
    if options.update_baselines and options.num_prompts is not None:
        raise SpecregError(
            "--update-baselines with --num-prompts: a baseline is of as many prompts as the matrix"
            " says; leave one of them out"
        )
    if options.launches is not None and options.launches < 1:
        message = f"--specreg-launches: got {options.launches}, needed 1 or more; leave it out"
        raise SpecregError(message)


def load_cases(root: Path, options: Options, name: str) -> Tier:
    """Load the tier that is to be measured, as the options change it."""
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


def open_suite(
    root: Path, options: Options, progress: Progress, within: Path | None = None
) -> Suite:
    """Open a run in which nothing is measured yet, but for what it resumes.

    `within` is the folder of a process that has a share of another's run; None for one of its own.

    Raises:
        SpecregError: an option, the tier or the machine doesn't fit; the message names it.
    """
    _check_options(options)
    gpus, environment = find_gpus(), UNKNOWN_ENVIRONMENT
    tier = load_cases(root, options, options.tier or ("gpu" if gpus.devices else "cpu"))
    if options.attach is None:
        tier = tier.chosen(gpus.memory_gib)
        environment = current_environment(needs_gpus=tier.gpus_used(gpus.memory_gib))
    runs, part = root / options.runs, ""
    if options.shard is not None:
        number, of = parse_choice(options.shard)
        part = f"-{number}of{of}"
    began_at = dt.datetime.now(tz=dt.UTC)
    run_folder = runs / f"{began_at:%Y%m%dT%H%M%S}-{os.getpid()}{part}"
    whole: Path | None = None
    if within is not None:  # another process of the run may have died, or the run goes on
        run_folder, whole = within, within.parents[1]
    elif options.resume:
        run_folder = whole = last_run(runs, part)
    journal = Journal(run_folder / "journal.jsonl")
    if options.resume:
        journal.hold()  # before anything of it is taken
    earlier, earlier_checks = _earlier(whole)
    further_s = 60 * options.record_minutes if options.launches is None else 0.0
    suite = Suite(
        options=options,
        root=root,
        tier=tier,
        environment=environment,
        began_at=began_at,
        load=ProcessorLoad(waiting=os.getloadavg()[0], cores=len(os.sched_getaffinity(0))),
        run_folder=run_folder,
        journal=journal,
        earlier=earlier,
        earlier_checks=earlier_checks,
        show=progress.show,
        tell=progress.tell,
        measure_further=FurtherLaunches(further_s),
        progress=progress.run,
        leave_page=LivePage(),
        timeline=Timeline(listener=progress.watch),
        shares_machine=within is not None,
        skips_unfetched=not options.require_tier or is_offline(),
    )
    if options.require_tier and (why := unmet_need(suite)):
        raise SpecregError(why)
    return suite


def _earlier(
    run: Path | None,
) -> tuple[dict[Key, Measurement], dict[tuple[Key, str], Mapping[str, Any]]]:
    """What was measured and checked in a run and its workers; the first that has one counts."""
    measured: dict[Key, Measurement] = {}
    checked: dict[tuple[Key, str], Mapping[str, Any]] = {}
    journals = [run / "journal.jsonl", *run.glob("shards/*/journal.jsonl")] if run else []
    for path in filter(Path.exists, reversed(journals)):
        measured |= load_journal(path)
        checked |= load_checks(path)
    return measured, checked


def unmet_need(suite: Suite) -> str:
    """What the tier needs and the machine lacks, empty when nothing."""
    gpus = find_gpus()
    if len(gpus.devices) >= suite.tier.needs_gpus or suite.provision.url is not None:
        return ""
    return (
        f"tier '{suite.tier.name}' needs {suite.tier.needs_gpus} GPU(s), this machine has"
        f" {len(gpus.devices)} ({gpus.why_none}); use a machine with one, or the CPU's tier:"
        f" {run_command((), ['--specreg-tier=cpu'])}"
    )


def why_unfit(suite: Suite) -> Mapping[str, str]:
    """By case what it needs and the machine lacks; what the tier needs, where that is missing.

    A program that isn't there is named by `check_cases` where the tier is required.
    """
    if suite.provision.url is not None:
        return {}
    if why := unmet_need(suite):
        return {case.id: why for case in suite.tier.cases}
    unfit = dict(suite.tier.unmet(find_gpus().memory_gib))
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
    cases = {case.id: case for case, _ in tests}
    unfetched: dict[str, str] = {}
    if suite.provision.url is None and not lists:
        found = {case_id: why_no_models(case.server) for case_id, case in cases.items()}
        unfetched = {case_id: why for case_id, why in found.items() if why}
    unfit = {**(unfetched if suite.skips_unfetched else {}), **why_unfit(suite)}
    suite.unfetched = {} if suite.skips_unfetched else unfetched
    suite.skipped = {case_id: why for case_id, why in unfit.items() if case_id in cases}
    asked: dict[str, set[str]] = {}
    dark: dict[str, None] = {}
    reasons: list[str] = []
    for case, what in tests:
        why = unfit.get(case.id, "")
        if not why and (why := suite.why_dark(case, what)):
            dark.setdefault(why)
        if not why:
            asked.setdefault(case.id, set()).add(what.name)
        reasons.append(why)
    suite.asked, suite.no_power = asked, "; ".join(dark)
    if not (lists or suite.shares_machine):
        suite.progress.expected_s = expected_times(suite)
    return reasons


def check_cases(suite: Suite, cases: Collection[Case]) -> None:
    """Check that every case can be measured, as far as is known beforehand; else a SpecregError."""
    if suite.provision.url is not None:
        check_attached(cases, suite.provision.url, root=suite.root)
    else:
        suite.provision.check(cases)
    check_contexts(suite.root, cases)
