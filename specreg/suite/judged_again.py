"""Judge a recorded run anew, by the tiers, baselines and history of now. Nothing is started."""

import dataclasses
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from specreg.suite.configure import load_cases
from specreg.suite.context import RunClock, RunContext, provision_of, store_of
from specreg.suite.merge import check_names, merge_shards
from specreg.suite.options import Options
from specreg.suite.run import Run
from specreg.suite.shard_runs import load_shard


def judge_again(
    root: Path,
    options: Options,
    folder: Path,
    tolerances_frac: Mapping[str, float],
    nights_left_out: AbstractSet[str],
) -> tuple[Run, tuple[str, ...]]:
    """Judge the measurements of a run, whose folder stays as it is.

    Args:
        root: The root of the repository, whose tiers and baselines are used.
        options: Where they are, and how to judge.
        folder: The folder of the run.
        tolerances_frac: The tolerances that replace those of the cases, by the metric's name.
        nights_left_out: The names of earlier runs that aren't judged with.

    Returns:
        The run, and remarks on it.

    Raises:
        SpecregError: The run can't be read, or its cases have other settings here than they had.
    """
    recorded = load_shard(folder)
    plan = recorded.plan
    options = dataclasses.replace(
        options,
        launches=plan.launches,
        num_prompts=plan.options.num_prompts,
        oracle=plan.options.oracle,
        engine=plan.options.engine,
    )
    tier = load_cases(root, options, plan.tier).chosen(plan.gpus_gib)
    check_names(recorded, tier)
    tolerant_cases = [case.tolerating(tolerances_frac) for case in tier.cases]
    context = RunContext(
        name=plan.run,
        root=root,
        tier=dataclasses.replace(tier, cases=tuple(tolerant_cases)),
        environment=plan.environment,
        options=options,
        run_folder=folder,
        provision=provision_of(options, on_gpu=tier.needs_gpus > 0, show=print),
        store=store_of(options, root, plan.environment, tier.name),
        clock=RunClock(began_at=plan.began_at, began_ns=time.monotonic_ns()),
        commit=plan.commit,
        nights_left_out=nights_left_out,
    )
    # The run is judged as on its own night.
    nights = context.load_history().by_case.values()
    later_nights = {night.run for case_nights in nights for night in case_nights}
    later_nights = {name for name in later_nights if name > plan.run}
    context = dataclasses.replace(context, nights_left_out=nights_left_out | later_nights)
    keys = [case.key for case in tier.cases]
    return merge_shards(
        context,
        [recorded],
        missing_is_invalid=True,
        known=dict(zip(keys, tolerant_cases, strict=True)),
    )
