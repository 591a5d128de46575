"""Remarks: what a reader of a run should know besides its verdicts."""

import contextlib
import shlex
from collections.abc import Iterator, Sequence

from specreg.acceptance.record import Source
from specreg.baselines.packages import package_remarks
from specreg.core.counted import counted
from specreg.core.errors import SpecregError
from specreg.engines.launch_facts import changed_facts
from specreg.matrix.case import Case
from specreg.matrix.tier import load_tier, tier_names
from specreg.measurement.metrics import is_speed
from specreg.report.launches import last_launches
from specreg.report.remarks import workload_remarks
from specreg.suite.context import RunContext
from specreg.suite.result import RunResult
from specreg.verdicts.verdict import Outcome


def remarks_of(result: RunResult) -> Iterator[str]:
    """Yield the remarks on a run, such as a damaged history, changed packages or unused baselines.

    A run that records baselines yields only the remarks that need no baseline.
    """
    yield from result.retried
    yield from _estimate(result)
    yield from _refused_sampling(result)
    for figures in last_launches(result.figures):
        yield from workload_remarks(figures)

    # A recording compares with the earlier nights, and takes the noise of identical runs from them.
    history = result.context.load_history()
    if history.problem:
        yield history.problem
    if result.context.is_recording:
        return
    yield from _other_prompts(result.cases)
    yield from _changed_facts(result)
    yield from _packages(result)

    # After a run that failed or left out cases, nobody should remove baselines.
    has_failed = any(verdict.fails for verdict in result.verdicts)
    is_green = bool(result.verdicts) and not has_failed
    if is_green and result.selection.covers_tier:
        yield from _unused_baselines(result.context)


def _estimate(result: RunResult) -> Iterator[str]:
    """Say that acceptance is an estimate, if a server doesn't count steps."""
    records = [measurement.acceptance for measurement in result.measurements]
    sources = {record.source for record in records if record is not None}
    if Source.STREAM_CHUNKS in sources:
        chunks = "each chunk of an answer is taken for a step, because the server counts no steps"
        yield f"acceptance is an estimate: {chunks}"


def _refused_sampling(result: RunResult) -> Iterator[str]:
    """Say which parameters of sampling an attached server refuses."""
    refused = dict.fromkeys(
        measurement.facts.refused_sampling for measurement in result.measurements
    )
    for names in filter(None, refused):
        yield (
            f"the server refuses {names}, so they weren't sent: it may have defaults of its own"
            " for them, which change acceptance; attach to the engine itself, and not to a gateway"
        )


def _other_prompts(cases: Sequence[Case]) -> Iterator[str]:
    """Say that only acceptance is compared, if the run changed the tier's number of prompts."""
    # `matrix_prompts` is set only in cases whose number of prompts `--num-prompts` has changed.
    prompts = {case.request.prompts for case in cases if case.request.matrix_prompts is not None}
    if not prompts:
        return

    # Show one number if all cases have the same.
    amount = counted(max(prompts), "prompt")
    if min(prompts) != max(prompts):
        amount = f"{min(prompts)} to {amount}"
    replayed = f"--num-prompts replayed {amount} of each case"
    compared = "acceptance was compared on the prompts that the baseline has too, speed not at all"
    yield f"{replayed}: {compared}"


def _changed_facts(result: RunResult) -> Iterator[str]:
    """Name the facts of launches that changed since the baselines were recorded.

    Changes of cases that lost a speed come first, because they may be the cause.
    """
    # Most cases of a run share the same changes, so they share a remark.
    case_ids_by_changes: dict[str, list[str]] = {}
    for case in result.cases:
        changes = ", ".join(_changes_of(result, case))
        if changes:
            case_ids_by_changes.setdefault(changes, []).append(case.id)

    slower_ids = {
        verdict.case_id
        for verdict in result.verdicts
        if verdict.outcome is Outcome.REGRESSED and is_speed(verdict.metric)
    }
    hints: list[str] = []
    other_facts: list[str] = []
    for changes, case_ids in case_ids_by_changes.items():
        remark = f"{changes} since the baselines of {', '.join(case_ids)} were recorded"
        if slower_ids.isdisjoint(case_ids):
            other_facts.append(remark)
        else:
            hints.append(f"a speed was lost; look first at this: {remark}")

    yield from hints
    yield from other_facts


def _changes_of(result: RunResult, case: Case) -> Iterator[str]:
    """Yield each fact in which the last launch of a case differs from its baseline."""
    baseline = result.context.exact_baseline(case)
    if baseline is None:
        return
    measurement = result.measurements_of(case)[-1]
    yield from changed_facts(baseline.provenance.facts, measurement.facts)
    recorded_driver = baseline.provenance.driver_version
    driver = result.driver_version
    if recorded_driver and driver and recorded_driver != driver:
        yield f"driver {recorded_driver} -> {driver}"


def _packages(result: RunResult) -> Iterator[str]:
    """Name the packages that differ from those of the baselines, once for each environment."""
    remarks: dict[str, None] = {}
    for measurement in result.measurements:
        baseline = result.context.exact_baseline(measurement.case)
        if baseline is not None:
            folder = result.context.store.path(measurement.case.id).parent
            remarks |= dict.fromkeys(package_remarks(folder, measurement, baseline))
    yield from remarks


def _unused_baselines(context: RunContext) -> Iterator[str]:
    """Name the baselines of this machine that no case of any tier needs."""
    folder = context.root / context.options.matrix
    # A tier that can't be read is an error of that tier's runs, and not of this one.
    with contextlib.suppress(SpecregError):
        case_ids: set[str] = set()
        for name in tier_names(folder):
            tier = load_tier(folder, name)
            case_ids.update(case.id for case in tier.cases)
        unused = context.store.unused(case_ids)
        if unused:
            command = shlex.join(("git", "rm", *map(str, unused)))
            yield f"no case uses {len(unused)} of this machine's baselines; remove with: {command}"
