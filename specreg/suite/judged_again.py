"""Judge a recorded run anew, by the tiers, baselines and history of now. Nothing is started."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from specreg.core.errors import check_name
from specreg.suite.merge import check_names, context_of, merge_shards
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
        root: the root of the repository, whose tiers and baselines are used.
        options: where they are, and how to judge.
        folder: the folder of the run.
        tolerances_frac: the tolerances that replace those of the cases, by the metric's name.
        nights_left_out: the names of earlier runs that aren't judged with.

    Returns:
        The run, and remarks on it.

    Raises:
        SpecregError: the run can't be read, or its cases have other settings here than they had.
        UnknownNameError: the history has no run of a name that is left out.
    """
    recorded = load_shard(folder)
    plan = recorded.plan
    context = context_of(plan, root, options, folder)
    check_names(recorded, context.tier)

    # The run is judged as on its own night, with the tolerances of now.
    history = context.load_history()
    nights = {night.run for case_nights in history.by_case.values() for night in case_nights}
    for name in sorted(nights_left_out):
        check_name("run", name, nights, f"--without, '{context.history_path}'")
    later_nights = {night for night in nights if night > plan.run}
    keys = [case.key for case in context.tier.cases]
    tolerant_cases = tuple(case.tolerating(tolerances_frac) for case in context.tier.cases)
    context = dataclasses.replace(
        context,
        tier=dataclasses.replace(context.tier, cases=tolerant_cases),
        nights_left_out=nights_left_out | later_nights,
    )
    return merge_shards(
        context,
        [recorded],
        missing_is_invalid=True,
        known=dict(zip(keys, tolerant_cases, strict=True)),
    )
