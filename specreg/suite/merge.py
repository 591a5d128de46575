"""Join what shards or workers measured, and judge all of it together.

The folders of shards come from other machines, so what they hold is only data. Where tiers and
baselines are, which programs run and how to judge is decided by the options and the repository of
the machine that merges.
"""

import contextlib
import dataclasses
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from specreg.baselines.record import commit_of
from specreg.core.commands import specreg_command
from specreg.core.errors import SpecregError, check_name
from specreg.core.received import copy_received
from specreg.core.timeline import Timeline
from specreg.correctness.checks import CHECKS
from specreg.matrix.case import Case, Tier
from specreg.measurement.journal import Journal
from specreg.measurement.metrics import METRICS, RECORDED
from specreg.report.vocabulary import declare_vocabulary
from specreg.servers.launch import Poll, Starting
from specreg.suite.configure import load_cases
from specreg.suite.context import CaseLaunch, RunClock, RunContext, provision_of, store_of
from specreg.suite.group_judge import GroupJudge
from specreg.suite.merged_cases import MergedCases
from specreg.suite.options import FLAGS, Options
from specreg.suite.plan import COPIED, JOURNAL, RunPlan, matrix_sha256
from specreg.suite.recording import RecordingBudget
from specreg.suite.result import Run
from specreg.suite.selection import Selection, covers_tier
from specreg.suite.server_set import ServerSet
from specreg.suite.shard_runs import ShardRun, has_plan, load_shard, with_journal
from specreg.telemetry.identity import Environment
from specreg.verdicts.detection import MAX_LAUNCHES

WORKERS_FOLDER = "shards"
"""The folder of a run that holds the folders of its workers."""
_MAX_COPIED_BYTES = 2**30
_UPDATE = "--update-baselines"
_EQUAL = (
    *("commit", "tier", "matrix_sha256", "environment", "options", "launches", "reason", "of"),
    "shards",
)


def merge_shards(
    context: RunContext,
    shards: Sequence[ShardRun],
    *,
    missing_is_invalid: bool,
    are_workers: bool = False,
    ended_at: str = "",
) -> tuple[Run[MergedCases], tuple[str, ...]]:
    """Judge what shards measured, as if one process had, and have all that they left in one folder.

    Args:
        context: the merged run.
        shards: what its parts have left.
        missing_is_invalid: whether a case that no shard measured is INVALID, or left out.
        are_workers: whether they are workers of this run, on this machine.
        ended_at: when the last shard ended, by ISO 8601; empty for now.

    Returns:
        The run, and what is to be said of its shards.

    Raises:
        SpecregError: the files of a shard can't be copied.
    """
    shards = [with_journal(shard, context.tier.cases, is_ours=are_workers) for shard in shards]
    cases = MergedCases(shards=shards, root=context.root)
    selection = _selection_of(cases, context)
    judge = GroupJudge(
        context=context,
        selection=selection,
        cases=cases,
        # What the shards measured beyond the first launches is read below.
        budget=RecordingBudget(left_s=0.0, store=context.store),
        timeline=Timeline(),
    )
    for case_launch in context.case_launches():
        case = case_launch.case
        if case.id not in selection.names or case.id in selection.skipped:
            continue
        for name, error in _judge(judge, case_launch):
            if missing_is_invalid:
                judge.note_failure(case, name, error.reason)
    if selection.is_recording:
        _read_further_launches(cases, selection.cases_of(context.tier), context.launches)
    _copy_files(shards, context.run_folder)
    _join_journals(shards, context.run_folder)
    run = Run(
        context=context,
        selection=selection,
        cases=cases,
        judge=judge,
        ended_at=ended_at,
        is_merged=True,
    )
    return run, tuple(cases.remarks())


def _selection_of(merged: MergedCases, context: RunContext) -> Selection:
    """Return what the tests of all shards needed.

    A shard that isn't there is taken to have needed all that the others needed of their cases.
    """
    names: dict[str, set[str]] = {}
    skipped: dict[str, str] = {}
    for shard in merged.shards:
        for case_id, of_case in shard.plan.asked.items():
            names.setdefault(case_id, set()).update(of_case)
        skipped.update(shard.plan.skipped)
    all_names = {name for of_case in names.values() for name in of_case}
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


def _read_further_launches(cases: MergedCases, recorded: Sequence[Case], launches: int) -> None:
    """Count the launches that shards measured beyond the first ones, to record more."""
    for number in range(launches + 1, MAX_LAUNCHES + 1):
        cases.measure_afresh(recorded, number)


def merge_workers(
    context: RunContext, *, missing_is_invalid: bool
) -> tuple[Run[MergedCases], tuple[str, ...]] | None:
    """Judge what the workers of a run measured, and have all that they left in its own folder.

    Returns:
        As `merge_shards`; None if no worker began.

    Raises:
        SpecregError: what a worker left can't be read.
    """
    folder = context.run_folder / WORKERS_FOLDER
    shards = [load_shard(path) for path in sorted(folder.glob("*")) if has_plan(path)]
    if not shards:
        return None
    if (context.run_folder / JOURNAL).exists():
        # The run continues what an earlier process has left in its folder.
        earlier = ShardRun(folder=context.run_folder, plan=shards[0].plan, report=shards[0].report)
        shards = [earlier, *shards]
    merged = merge_shards(context, shards, missing_is_invalid=missing_is_invalid, are_workers=True)
    shutil.rmtree(folder, ignore_errors=True)
    return merged


def _copy_files(shards: Sequence[ShardRun], into: Path) -> None:
    """Copy the logs of all shards' servers and devices to one folder.

    A file whose name several shards have gets the number of its shard in its name.
    """
    logs = [
        (number, shard.folder, name)
        for number, shard in enumerate(shards, start=1)
        for name in _copied_names(shard, into)
    ]
    counts = Counter(name for _, _, name in logs)
    for number, folder, name in logs:
        copied_name = name
        if counts[name] > 1:
            copied_name = name.with_name(f"{name.stem}~shard{number}{name.suffix}")
        try:
            copy_received(folder, str(name), into, str(copied_name), _MAX_COPIED_BYTES)
        except OSError as error:
            message = f"run '{folder}': its logs weren't copied, {error.strerror}"
            raise SpecregError(f"{message}; mend that, or leave the run out") from error


def _copied_names(shard: ShardRun, into: Path) -> Iterator[PurePosixPath]:
    """Yield the files of a shard that are copied; none if its folder is that of the merged run."""
    if shard.folder == into:
        return
    for name in shard.files:
        if name.parts[0] in COPIED and len(name.parts) > 1:
            yield name


def _join_journals(shards: Sequence[ShardRun], into: Path) -> None:
    """Add the journals of all shards to that of the merged run."""
    journal = Journal(into / JOURNAL)
    for shard in shards:
        if shard.folder != into:
            journal.take(shard.folder / JOURNAL)


def _check_equal(shards: Sequence[ShardRun]) -> None:
    """Check that shards are parts of one run, cut in one way.

    Raises:
        SpecregError: their plans differ; the message says in what.
    """
    for name in _EQUAL:
        values = [getattr(shard.plan, name) for shard in shards]
        if all(value == values[0] for value in values):
            continue
        parts = [
            f"'{shard.folder}' {_render(value)}"
            for shard, value in zip(shards, values, strict=True)
        ]
        message = f"{name} differs: {', '.join(parts)}; merge the shards of one run alone"
        raise SpecregError(message)


def _render(value: object) -> str:
    """Render what plans differ in, in a few words."""
    if isinstance(value, Environment):
        return value.name
    if isinstance(value, tuple):
        return f"of {sum(map(len, value))} cases"
    return repr(value)


def open_merged(root: Path, options: Options, shards: Sequence[ShardRun], into: Path) -> RunContext:
    """Return the context of the run that shards are parts of, in a folder of its own.

    Args:
        root: of the repository here, whose tiers and baselines count.
        options: of the machine that merges: where those lie, how to judge, whether to record.
        shards: what the parts of the run have left.
        into: the folder of the merged run.

    Raises:
        SpecregError: the repository isn't at the commit, or hasn't the cases, that they are of; or
            they record baselines and the options don't, or the other way round.
    """
    _check_equal(shards)
    if any(shard.folder.resolve() == into for shard in shards):
        raise SpecregError(f"--into '{into}': it is one of the shards; name a folder of its own")
    plan = shards[0].plan
    _check_recording(plan, options)
    options = dataclasses.replace(
        options,
        launches=plan.launches,
        num_prompts=plan.options.num_prompts,
        oracle=plan.options.oracle,
        engine=plan.options.engine,
        reason=options.reason or plan.reason,
    )
    tier = load_cases(root, options, plan.tier).chosen(plan.gpus_gib)
    _check_repository("commit", plan.commit, commit_of(root), root)
    _check_repository("matrix_sha256", plan.matrix_sha256, matrix_sha256(tier), root)
    for shard in shards:
        _check_names(shard, tier)
    _empty(into)
    declare_vocabulary(tier.cases, tier.name, plan.environment.name, plan.run, into.name, *FLAGS)
    began_at = min(shard.plan.began_at for shard in shards)
    return RunContext(
        name=re.sub(r"-\d+of\d+$", "", plan.run),
        root=root,
        tier=tier,
        environment=plan.environment,
        options=options,
        run_folder=into,
        provision=provision_of(options, on_gpu=tier.needs_gpus > 0, show=print),
        store=store_of(options, root, plan.environment, tier.name),
        clock=RunClock(began_at=began_at, began_ns=time.monotonic_ns()),
    )


def last_end(shards: Sequence[ShardRun]) -> str:
    """Return when the last shard ended, by ISO 8601; one that died counts with its start."""
    return max(
        shard.report.ended_at if shard.report else shard.plan.began_at.isoformat()
        for shard in shards
    )


def _check_repository(name: str, of_shards: str, here: str, root: Path) -> None:
    """Check that the repository here is the one that shards measured; else a SpecregError."""
    if of_shards != here:
        differs = f"{name} differs: the shards have '{of_shards}', '{root}' '{here}'"
        raise SpecregError(f"{differs}; check out the commit that they are of")


def _check_recording(plan: RunPlan, options: Options) -> None:
    """Check that shards and merge both record baselines, or neither; else a SpecregError."""
    command = specreg_command("merge")
    recorded = plan.reason is not None
    if recorded and not options.update_baselines:
        problem = "the shards recorded baselines, and this merge isn't asked to write any"
        raise SpecregError(f"{command}: {problem}; add {_UPDATE} to write them here")
    if options.update_baselines and not recorded:
        problem = "the shards judged and recorded no baselines"
        raise SpecregError(f"{command} {_UPDATE}: {problem}; leave it out")


def _check_names(shard: ShardRun, tier: Tier) -> None:
    """Check that the plan of a shard names only cases, metrics and checks that exist here.

    Raises:
        UnknownNameError: it names another one.
    """
    plan = shard.plan
    where = f"'{shard.folder}'"
    tier_ids = {case.id for case in tier.cases}
    dealt_ids = [case_id for case_ids in plan.shards for case_id in case_ids]
    for case_id in (*plan.asked, *plan.skipped, *dealt_ids):
        check_name("case", case_id, tier_ids, where)
    subjects = {*METRICS, *CHECKS, RECORDED.name}
    for name in dict.fromkeys(name for names in plan.asked.values() for name in names):
        check_name("metric or check", name, subjects, where)


def _empty(into: Path) -> None:
    """Remove what an earlier merge left in a folder and this one doesn't write over.

    Raises:
        SpecregError: the disk refuses.
    """
    try:
        for name in COPIED:
            folder = into / name
            # What a link leads to isn't ours to remove.
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                shutil.rmtree(folder)
        (into / JOURNAL).unlink(missing_ok=True)
    except OSError as error:
        message = f"--into '{into}': can't be emptied, {error.strerror}"
        raise SpecregError(f"{message}; name another folder") from error


def _judge(judge: GroupJudge, case_launch: CaseLaunch) -> Iterator[tuple[str, SpecregError]]:
    """Judge what was measured of a case on a launch, and yield by name why the rest wasn't."""
    case = case_launch.case
    server = Starting(launch=case_launch.server, start=_start_nothing)
    control = Starting(launch=case_launch.control, start=_start_nothing)
    servers = ServerSet.of(case, server, control)
    for metric in judge.selection.metrics_of(case):
        try:
            judge.judge(metric, case, servers)
        except SpecregError as error:
            yield metric.name, error
    for check in judge.selection.checks_of(case, case_launch.server.number):
        try:
            judge.check(check, case, servers)
        except SpecregError as error:
            yield check.name, error


def _start_nothing() -> contextlib.AbstractContextManager[Poll]:
    """Fail: what shards measured takes no server."""
    raise AssertionError("a merge starts no server")
