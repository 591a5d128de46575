"""Join what shards or workers measured: it is judged once more, all of it together.

The folders of shards come from other machines. What they say is data: the paths, the programs and
the judgement are those of the options and the repository of the machine that merges.
"""

import dataclasses
import hashlib
import re
import shutil
import socket
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from specreg.baselines.record import commit_of
from specreg.core.commands import specreg_command
from specreg.core.errors import SpecregError, check_name
from specreg.core.received import copy_received
from specreg.correctness.checks import CHECKS, CorrectnessCheck
from specreg.matrix.case import Case, Tier
from specreg.measurement.metrics import METRICS, RECORDED, Metric
from specreg.report.vocabulary import declare_vocabulary
from specreg.servers.launch import Launch
from specreg.suite.configure import load_cases
from specreg.suite.machine import gpus_of
from specreg.suite.options import Options
from specreg.suite.plan import (
    COPIED,
    JOURNAL,
    MergedShards,
    PlanOptions,
    RunPlan,
    ShardRun,
    has_plan,
    load_shard,
    with_journal,
)
from specreg.suite.run import Suite
from specreg.telemetry.identity import Environment

WORKERS_FOLDER = "shards"
"""The folder in a run's own that holds its workers' folders."""
_MOST_COPIED_BYTES = 2**30
_UPDATE = "--update-baselines"
_ALIKE = (
    *("commit", "tier", "matrix_sha256", "environment", "options", "launches", "reason", "of"),
    "shards",
)


def matrix_sha256(tier: Tier) -> str:
    """A checksum of all settings of a tier's cases."""
    return hashlib.sha256("\n".join(case.key for case in tier.cases).encode()).hexdigest()


def plan_of(suite: Suite, shards: Sequence[Collection[str]]) -> RunPlan:
    """What a run whose tests are chosen is about to do; the cases of all shards, if it is one."""
    gpus = gpus_of(suite.options)
    return RunPlan(
        run=suite.run_folder.name,
        began_at=suite.began_at.replace(microsecond=0),
        host=socket.gethostname(),
        commit=commit_of(suite.root),
        tier=suite.tier.name,
        matrix_sha256=matrix_sha256(suite.tier),
        environment=suite.environment,
        gpus_gib=gpus.memory_gib,
        options=plan_options(suite.options),
        reason=(suite.options.reason or "").strip() if suite.records else None,
        launches=suite.launches,
        number=suite.options.part[0] if suite.options.part else 0,
        of=len(shards),
        shards=tuple(map(tuple, shards)),
        asked={case: tuple(sorted(names)) for case, names in suite.asked.items()},
        skipped=dict(suite.skipped),
        no_power=suite.no_power,
        driver_version=gpus.driver_version,
    )


def plan_options(options: Options) -> PlanOptions:
    """What a merge has to know of the options of a run."""
    names = PlanOptions.__struct_fields__
    return PlanOptions(**{name: getattr(options, name) for name in names})


def take_shards(
    suite: Suite, shards: Sequence[ShardRun], *, whole: bool, are_ours: bool = False
) -> tuple[str, ...]:
    """Judge what shards measured, as if one process had; return what is to be said of them.

    `whole` says whether a case that no shard measured is INVALID; else it is left out. `are_ours`
    says whether they are workers of this run.
    """
    shards = [with_journal(shard, suite.tier.cases, is_ours=are_ours) for shard in shards]
    merged = suite.merged = MergedShards(shards, suite.root)
    asked: dict[str, set[str]] = {}
    for shard in shards:
        for case_id, names in shard.plan.asked.items():
            asked.setdefault(case_id, set()).update(names)
        suite.skipped.update(shard.plan.skipped)
    everything = {name for names in asked.values() for name in names}
    for cases in merged.missing.values():
        asked.update(dict.fromkeys(cases, everything))
    suite.asked, suite.no_power = asked, merged.plan.no_power
    for control, server, case in suite.setups():
        if case.id in asked and case.id not in suite.skipped:
            for name, error in _judge(suite, case, control, server):
                if whole:
                    suite.note_failure(case, name, error.reason)
    _copy_files(shards, suite.run_folder)
    for shard in shards:
        if shard.folder != suite.run_folder:
            suite.journal.take(shard.folder / suite.journal.path.name)
    return tuple(merged.remarks)


def take_workers(suite: Suite, *, whole: bool) -> tuple[str, ...]:
    """Judge what the workers of a run measured, and have all that they left in its own folder."""
    folder = suite.run_folder / WORKERS_FOLDER
    shards = [load_shard(path) for path in sorted(folder.glob("*")) if has_plan(path)]
    if not shards:
        return ()
    # What the run itself holds is that of an earlier process, which it goes on with.
    own = ShardRun(folder=suite.run_folder, plan=shards[0].plan, report=shards[0].report)
    went_on = (suite.run_folder / JOURNAL).exists()
    parts = [own, *shards] if went_on else shards
    taken = take_shards(suite, parts, whole=whole, are_ours=True)
    shutil.rmtree(folder, ignore_errors=True)
    return taken


def _copy_files(shards: Sequence[ShardRun], into: Path) -> None:
    """Copy the logs of all shards' servers and devices to one folder.

    Of equal names each gets the number of its shard, behind that of the attempt if it has one.
    """
    found = [
        (number, shard.folder, name)
        for number, shard in enumerate(shards, start=1)
        if shard.folder != into
        for name in shard.files
        if name.parts[0] in COPIED and len(name.parts) > 1
    ]
    names = Counter(name for _, _, name in found)
    for number, folder, name in found:
        own = name
        if names[name] > 1:
            own = name.with_name(f"{name.stem}~shard{number}{name.suffix}")
        try:
            copy_received(folder, str(name), into, str(own), _MOST_COPIED_BYTES)
        except OSError as error:
            message = f"run '{folder}': its logs weren't copied, {error.strerror}"
            raise SpecregError(f"{message}; mend that, or leave the run out") from error


def _check_alike(shards: Sequence[ShardRun]) -> None:
    """Check that shards are of one run, cut in one way; a SpecregError says what differs."""
    for name in _ALIKE:
        values = [getattr(shard.plan, name) for shard in shards]
        if any(value != values[0] for value in values):
            each = (f"'{one.folder}' {_shown(getattr(one.plan, name))}" for one in shards)
            message = f"{name} differs: {', '.join(each)}; merge the shards of one run alone"
            raise SpecregError(message)


def _shown(value: object) -> str:
    if isinstance(value, Environment):
        return value.name
    return f"of {sum(map(len, value))} cases" if isinstance(value, tuple) else repr(value)


def open_merged(root: Path, options: Options, shards: Sequence[ShardRun], into: Path) -> Suite:
    """Open the run that shards are parts of, in a folder of its own.

    Args:
        root: of the repository here, whose tiers and baselines count.
        options: of the machine that merges: where those lie, how to judge, whether to record.
        shards: what the parts of the run have left.
        into: the folder of the merged run.

    Raises:
        SpecregError: the repository isn't at the commit, or hasn't the cases, that they are of; or
            they record baselines and the options don't, or the other way round.
    """
    _check_alike(shards)
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
    for name, here in (("commit", commit_of(root)), ("matrix_sha256", matrix_sha256(tier))):
        if here != (theirs := getattr(plan, name)):
            differs = f"{name} differs: the shards have '{theirs}', '{root}' '{here}'"
            raise SpecregError(f"{differs}; check out the commit that they are of")
    for shard in shards:
        _check_names(shard, tier)
    _empty(into)
    declare_vocabulary(tier.cases, tier.name, plan.environment.name, plan.run, into.name)
    ends = (one.report.ended_at if one.report else one.plan.began_at.isoformat() for one in shards)
    return Suite(
        merged_run=re.sub(r"-\d+of\d+$", "", plan.run),
        options=options,
        root=root,
        tier=tier,
        environment=plan.environment,
        began_at=min(shard.plan.began_at for shard in shards),
        ended_at=max(ends),
        run_folder=into,
        show=print,
    )


def _check_recording(plan: RunPlan, options: Options) -> None:
    """Check that shards record baselines where the merge does, and only there."""
    command = specreg_command("merge")
    records = plan.reason is not None
    if records and not options.update_baselines:
        why = "the shards recorded baselines, and this merge isn't asked to write any"
        raise SpecregError(f"{command}: {why}; add {_UPDATE} to write them here")
    if options.update_baselines and not records:
        why = "the shards judged and recorded no baselines"
        raise SpecregError(f"{command} {_UPDATE}: {why}; leave it out")


def _check_names(shard: ShardRun, tier: Tier) -> None:
    """Check that a shard speaks of cases of the tier, and of metrics and checks that there are."""
    plan = shard.plan
    cases = {case.id for case in tier.cases}
    of_shards = (case_id for case_ids in plan.shards for case_id in case_ids)
    for case_id in (*plan.asked, *plan.skipped, *of_shards):
        check_name("case", case_id, cases, f"'{shard.folder}'")
    for name in dict.fromkeys(name for names in plan.asked.values() for name in names):
        check_name("metric or check", name, {*METRICS, *CHECKS, RECORDED.name}, f"'{shard.folder}'")


def _empty(into: Path) -> None:
    """Remove what an earlier merge left in a folder and this one doesn't write over."""
    try:
        for name in COPIED:
            if (into / name).is_symlink():
                (into / name).unlink()
            elif (into / name).exists():
                shutil.rmtree(into / name)
        (into / JOURNAL).unlink(missing_ok=True)
    except OSError as error:
        message = f"--into '{into}': can't be emptied, {error.strerror}"
        raise SpecregError(f"{message}; name another folder") from error


def _judge(
    suite: Suite, case: Case, control: Launch, server: Launch
) -> Iterator[tuple[str, SpecregError]]:
    """Judge what was measured of a case on a launch; yield by name why the rest wasn't."""
    with suite.servers.start(control) as beside, suite.servers.start(server, beside) as ours:
        pair = ours, beside if case.control else None  # as it was measured, neither starts
        asked: list[Metric | CorrectnessCheck] = [*suite.asked_of(case)]
        for one in (*asked, *suite.checks_of(case, server.number)):
            try:
                if isinstance(one, Metric):
                    suite.judge(one, case, pair)
                else:
                    suite.check(one, case, pair)
            except SpecregError as error:
                yield one.name, error
