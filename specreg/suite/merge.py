"""Merge the measurements of shards or workers, and judge all of them together.

The folders of shards come from other machines, so they are treated as data only. The options and
the repository of the machine that merges decide where tiers and baselines are, which programs run,
and how to judge.
"""

import dataclasses
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from specreg.baselines.record import commit_of
from specreg.core.commands import specreg_command
from specreg.core.errors import SpecregError, check_name
from specreg.core.files import real_path
from specreg.core.received import copy_received
from specreg.core.timeline import Timeline
from specreg.correctness.checks import CHECKS
from specreg.matrix.case import Case, Tier
from specreg.measurement.metrics import BENCHMARK_METRIC, METRICS
from specreg.report.files import record_document
from specreg.runs.ledger import LEDGER, Ledger
from specreg.runs.plan import NightStep, next_step
from specreg.suite.configure import load_cases
from specreg.suite.context import RunClock, RunContext, provision_of, store_of
from specreg.suite.merged_shards import MergedShards
from specreg.suite.night import judge_of, night_goal
from specreg.suite.options import Options
from specreg.suite.plan import COPIED, PLAN, RunPlan, cases_sha256
from specreg.suite.run import Run
from specreg.suite.selection import Selection, covers_tier
from specreg.suite.shard_runs import ShardRun, has_plan, load_shard, with_ledger
from specreg.suite.start import executor_of
from specreg.telemetry.identity import Environment

WORKERS_FOLDER = "shards"
"""The folder of a run that holds the folders of its workers."""
_MAX_COPIED_BYTES = 2**30
_UPDATE = "--update-baselines"
_EQUAL = (
    "commit",
    "tier",
    "cases_sha256",
    "environment",
    "options",
    "launches",
    "reason",
    "shards_in_all",
    "shards",
)
"""The fields of plans that must be equal in all shards of a run."""


def merge_shards(
    context: RunContext,
    shards: Sequence[ShardRun],
    *,
    missing_is_invalid: bool,
    are_workers: bool = False,
    known: Mapping[str, Case] | None = None,
) -> tuple[Run, tuple[str, ...]]:
    """Judge the measurements of shards as if one process had made them, and copy their files.

    Args:
        context: the merged run, whose folder gets the files.
        shards: the shards.
        missing_is_invalid: True if a case that no shard measured is INVALID; False to leave it out.
        are_workers: True if the shards are workers of this run, on this machine.
        known: the cases that are judged, by the `Case.key` with which they were measured; None for
            those of the tier.

    Returns:
        The run, and remarks on its shards.

    Raises:
        SpecregError: a ledger can't be read, or the files of a shard can't be copied.
    """
    # Read the ledgers.
    known = known or {case.key: case for case in context.tier.cases}
    measured = [with_ledger(shard, known, is_ours=are_workers) for shard in shards]
    merged = MergedShards(shards=measured, ended_at="" if are_workers else last_end(shards))
    selection = _selection_of(merged, context)
    ledger = Ledger(context.run_folder / LEDGER)
    cases = selection.cases_of(context.tier)
    # A run that was resumed measures anew what doesn't fit any more, such as another version.
    merged.fill(ledger, cases, context.root, newest_counts=are_workers)
    judge = judge_of(context, selection, ledger, Timeline(), merged)
    judge.ask_all()
    night = night_goal(context, selection, judge)

    # Say of all that no shard has measured or checked why it is missing. Each step is one case.
    if missing_is_invalid:
        left = dataclasses.replace(night, side_by_side=False, further=None)
        while isinstance(step := next_step(ledger, left), NightStep):
            ledger.add(merged.why_missing(step))

    # Copy logs and ledgers to the folder of the merged run, and write its plan.
    _copy_files(shards, context.run_folder)
    others = [shard for shard in shards if shard.folder != context.run_folder]
    for shard in others:
        ledger.take(shard.folder / LEDGER)
    if others:
        record_document(context.run_folder / PLAN, merged.whole_plan(context, selection))

    run = Run(
        context=context,
        selection=selection,
        ledger=ledger,
        judge=judge,
        # Nothing is left but, on this machine, to tell its engine from itself.
        night=dataclasses.replace(night, stages=(), further=None),
        executor=executor_of(context, selection, ledger, judge.timeline) if are_workers else None,
        shards=merged,
    )
    if not are_workers:
        run.end()
    return run, tuple(merged.remarks())


def _selection_of(merged: MergedShards, context: RunContext) -> Selection:
    """Return what the tests of all shards needed.

    The plan of a missing shard isn't known. For its cases, the tests are assumed to have needed
    every metric and check that the tests of the other shards needed for at least one case.
    """
    names: dict[str, set[str]] = {}
    skipped: dict[str, str] = {}
    for shard in merged.shards:
        for case_id, case_names in shard.plan.names.items():
            names.setdefault(case_id, set()).update(case_names)
        skipped.update(shard.plan.skipped)

    all_names = {name for case_names in names.values() for name in case_names}
    for case_ids in merged.missing.values():
        names.update(dict.fromkeys(case_ids, all_names))
    return Selection(
        names=names,
        skipped=skipped,
        no_power=merged.plan.no_power,
        is_recording=context.is_recording,
        covers_tier=covers_tier(names, context),
        shard_cases=sum(map(len, merged.plan.shards)),
    )


def merge_workers(
    context: RunContext, *, missing_is_invalid: bool
) -> tuple[Run, tuple[str, ...]] | None:
    """Judge the measurements of a run's workers, and move their files to the folder of the run.

    Args:
        context: the run.
        missing_is_invalid: as in `merge_shards`.

    Returns:
        As in `merge_shards`; None if no worker began.

    Raises:
        SpecregError: a file of a worker can't be read.
    """
    folder = context.run_folder / WORKERS_FOLDER
    shards = [load_shard(path) for path in sorted(folder.glob("*")) if has_plan(path)]
    if not shards:
        return None
    if (context.run_folder / LEDGER).exists():
        # A process without workers measured the first cases, and then the run was resumed with
        # workers. The ledger of that process is in the folder of the run.
        earlier = ShardRun(folder=context.run_folder, plan=shards[0].plan, report=shards[0].report)
        shards = [earlier, *shards]

    merged = merge_shards(context, shards, missing_is_invalid=missing_is_invalid, are_workers=True)
    shutil.rmtree(folder, ignore_errors=True)
    return merged


def _copy_files(shards: Sequence[ShardRun], into: Path) -> None:
    """Copy the logs of the servers and devices of all shards to one folder.

    If several shards have a file of the same name, the position of the shard among all that are
    merged is added to the name.

    Raises:
        SpecregError: a file can't be copied.
    """
    logs = [
        (position, shard.folder, name)
        for position, shard in enumerate(shards, start=1)
        for name in _copied_names(shard, into)
    ]
    counts = Counter(name for _, _, name in logs)
    for position, folder, name in logs:
        copied_name = name
        if counts[name] > 1:
            copied_name = name.with_name(f"{name.stem}~shard{position}{name.suffix}")
        try:
            copy_received(folder, str(name), into, str(copied_name), _MAX_COPIED_BYTES)
        except OSError as error:
            message = f"run '{folder}': its logs weren't copied, {error.strerror}"
            raise SpecregError(f"{message}; mend that, or leave the run out") from error


def _copied_names(shard: ShardRun, into: Path) -> Iterator[PurePosixPath]:
    """Yield the files of a shard that are copied; none if they are in the right folder already."""
    if shard.folder == into:
        return
    for name in shard.files:
        if name.parts[0] in COPIED and len(name.parts) > 1:
            yield name


def _check_equal(shards: Sequence[ShardRun]) -> None:
    """Check that shards are parts of the same run.

    Raises:
        SpecregError: their plans differ; the message names the difference.
    """
    for name in _EQUAL:
        values = [getattr(shard.plan, name) for shard in shards]
        if all(value == values[0] for value in values):
            continue
        parts = [
            f"'{shard.folder}' {_render(value)}"
            for shard, value in zip(shards, values, strict=True)
        ]
        message = f"{name} differs: {', '.join(parts)}; merge only the shards of one run"
        raise SpecregError(message)


def _render(value: object) -> str:
    """Render a field of a plan in a few words, for an error."""
    if isinstance(value, Environment):
        return value.name
    if isinstance(value, tuple):
        return f"of {sum(map(len, value))} cases"
    return repr(value)


def open_merged(root: Path, options: Options, shards: Sequence[ShardRun], into: Path) -> RunContext:
    """Return the context of a merged run, and check that the shards can be merged here.

    Args:
        root: the root of this machine's repository, whose tiers and baselines are used.
        options: the options of this machine, which decide how to judge and whether to record. The
            options that decide what was measured are taken from the shards' plans.
        shards: the shards of the run.
        into: the folder of the merged run.

    Raises:
        SpecregError: the shards are of different runs, or `into` is one of them or can't be
            emptied; or the repository is at another commit, or has other cases, metrics or checks;
            or the shards recorded baselines and this machine's options don't, or the reverse.
    """
    # Check that the shards are of one run, and that it may be recorded here.
    _check_equal(shards)
    if any(real_path(shard.folder) == into for shard in shards):
        raise SpecregError(f"--into '{into}': is one of the shards; name another folder")
    plan = shards[0].plan
    _check_recording(plan, options)

    # Load the tier as the shards measured it, and check that the repository is the same.
    whole_plan = msgspec.structs.replace(
        plan,
        run=re.sub(r"-\d+of\d+$", "", plan.run),
        began_at=min(shard.plan.began_at for shard in shards),
    )
    options = dataclasses.replace(options, reason=options.reason or plan.reason)
    context = context_of(whole_plan, root, options, into)
    _check_repository("commit", plan.commit, commit_of(root), root)
    _check_repository("cases_sha256", plan.cases_sha256, cases_sha256(context.tier), root)
    for shard in shards:
        check_names(shard, context.tier)
    _empty(into)
    return context


def context_of(plan: RunPlan, root: Path, options: Options, folder: Path) -> RunContext:
    """Return the context of a run that was measured, with its tier as it was measured.

    Args:
        plan: the plan of the run.
        root: the root of the repository, whose tiers and baselines are used.
        options: the options of now. Those that decide what was measured are taken from the plan.
        folder: the folder of the run.
    """
    options = dataclasses.replace(
        options,
        launches=plan.launches,
        num_prompts=plan.options.num_prompts,
        oracle=plan.options.oracle,
        engine=plan.options.engine,
        engine_version=plan.options.engine_version,
        attach=plan.attached or None,
        control_url=plan.attached_control or None,
    )
    tier = load_cases(root, options, plan.tier)
    if not plan.attached:
        tier = tier.chosen(plan.gpus_gib)
    return RunContext(
        name=plan.run,
        root=root,
        tier=tier,
        environment=plan.environment,
        options=options,
        run_folder=folder,
        provision=provision_of(options, on_gpu=tier.needs_gpus > 0, show=print),
        store=store_of(options, root, plan.environment, tier.name),
        clock=RunClock(began_at=plan.began_at, began_ns=time.monotonic_ns()),
        commit=plan.commit,
    )


def last_end(shards: Sequence[ShardRun]) -> str:
    """Return when the last shard ended, as ISO 8601. For a shard that died, its start is taken."""
    return max(
        shard.report.ended_at if shard.report else shard.plan.began_at.isoformat()
        for shard in shards
    )


def _check_repository(name: str, shards_value: str, root_value: str, root: Path) -> None:
    """Check that a field of the shards' plans has the value of this repository.

    Raises:
        SpecregError: it has another value.
    """
    if shards_value != root_value:
        differs = f"{name} differs: the shards have '{shards_value}', '{root}' has '{root_value}'"
        raise SpecregError(f"{differs}; check out the commit of the shards, without changes")


def _check_recording(plan: RunPlan, options: Options) -> None:
    """Check that the merge records baselines if the shards did, and only then.

    Raises:
        SpecregError: only the shards record, or only the merge.
    """
    command = specreg_command("merge")
    shards_recorded = plan.reason is not None
    if shards_recorded and not options.update_baselines:
        problem = "the shards recorded baselines, but this merge doesn't write any"
        raise SpecregError(f"{command}: {problem}; add {_UPDATE} to write them here")
    if options.update_baselines and not shards_recorded:
        problem = "the shards judged, so there are no baselines to write"
        raise SpecregError(f"{command} {_UPDATE}: {problem}; leave it out")


def check_names(shard: ShardRun, tier: Tier) -> None:
    """Check that the plan of a shard names only cases, metrics and checks that exist here.

    Raises:
        UnknownNameError: it names a case, metric or check that doesn't exist here.
    """
    plan = shard.plan
    where = f"'{shard.folder}'"
    tier_ids = {case.id for case in tier.cases}
    shard_ids = [case_id for case_ids in plan.shards for case_id in case_ids]
    for case_id in (*plan.names, *plan.skipped, *shard_ids):
        check_name("case", case_id, tier_ids, where)
    subjects = {*METRICS, *CHECKS, BENCHMARK_METRIC.name}
    for name in dict.fromkeys(name for names in plan.names.values() for name in names):
        check_name("metric or check", name, subjects, where)


def _empty(into: Path) -> None:
    """Remove the files of an earlier merge that this one wouldn't overwrite.

    Raises:
        SpecregError: a file can't be removed.
    """
    try:
        for name in COPIED:
            folder = into / name
            # If it is a link, only the link is removed, because its target isn't specreg's.
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                shutil.rmtree(folder)
        (into / LEDGER).unlink(missing_ok=True)
    except OSError as error:
        message = f"--into '{into}': can't be emptied, {error.strerror}"
        raise SpecregError(f"{message}; name another folder") from error
