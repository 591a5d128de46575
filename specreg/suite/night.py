"""Make the night of a run from its options: what it measures, how, and what it is compared with."""

import dataclasses
import functools
from collections.abc import Sequence

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.schema import Baseline
from specreg.core.errors import BaselineError
from specreg.core.timeline import Timeline
from specreg.matrix.case import Case
from specreg.measurement.arm import StoppingRule
from specreg.measurement.metrics import BENCHMARK_METRIC, METRICS
from specreg.runs.execute import Settings
from specreg.runs.goals import ATTEMPTS, CaseGoal, Further, NightGoal
from specreg.runs.ledger import Ledger
from specreg.runs.verdicts import LedgerJudge
from specreg.stats.intervals import MORE_LAUNCHES, Look
from specreg.suite.context import RunContext
from specreg.suite.engine_check import wanted_check
from specreg.suite.ledger_key import ledger_key
from specreg.suite.merged_shards import MergedShards
from specreg.suite.recording import undecided_cases
from specreg.suite.selection import Selection, least_time_s
from specreg.telemetry.identity import find_gpus
from specreg.verdicts.detection import MAX_LAUNCHES
from specreg.verdicts.history import NO_HISTORY
from specreg.verdicts.references import References
from specreg.verdicts.stopping import enough_for

_S_PER_MIN = 60


def judge_of(
    context: RunContext,
    selection: Selection,
    ledger: Ledger,
    timeline: Timeline,
    shards: MergedShards | None = None,
) -> LedgerJudge:
    """Return the judge of what the ledger of a run has.

    Args:
        context: what is fixed for the run.
        selection: what its tests need.
        timeline: records how long judging takes.
        shards: the processes whose measurements the run joins; None if it measures by itself.
    """
    return LedgerJudge(
        ledger=ledger,
        goals=_goals(context, selection),
        launches=context.launches,
        references=_references(context, selection, shards),
        is_recording=selection.is_recording,
        is_part=context.is_part,
        # specreg can't restart a server that others have started, and a merge starts none.
        attempts=1 if context.provision.attached is not None or shards is not None else ATTEMPTS,
        timeline=timeline,
    )


def _goals(context: RunContext, selection: Selection) -> Sequence[CaseGoal]:
    """Return what a run wants to know of its cases, in the order of the run."""
    ids = selection.measured_ids - selection.skipped.keys()
    cases = dict.fromkeys(case_launch.case for case_launch in context.case_launches())
    return [_goal(case, selection) for case in cases if case.id in ids]


def _goal(case: Case, selection: Selection) -> CaseGoal:
    names = selection.names[case.id]
    speed = selection.needs_speed(case)
    return CaseGoal(
        case=case,
        metrics=selection.metrics_of(case),
        is_measured=any(name in METRICS or name == BENCHMARK_METRIC.name for name in names),
        speed=speed,
        power=selection.needs_power(case),
        needs_all_prompts=speed or selection.is_recording,
        checks=tuple(check.name for check in selection.checks_of(case)),
    )


def _references(
    context: RunContext, selection: Selection, shards: MergedShards | None
) -> References:
    """Return what a run is compared with.

    A run that records, or that measures an attached server, is compared with no nights.
    """
    baselines: dict[str, Baseline] = {}
    history = NO_HISTORY
    if not selection.is_recording and context.provision.attached is None:
        baselines = {path.stem: baseline for path, baseline in context.store.own().items()}
        history = context.load_history().without(context.name)
    here = References(
        baselines_of=functools.cache(context.baselines_of),
        run=context.name,
        baselines=baselines,
        history=history,
        machine_of=lambda _: context.machine,
        driver_version=find_gpus().driver_version,
        cases=selection.run_cases,
        softened=context.softened,
        holds_by_nights=context.holds_by_nights,
    )
    if shards is None:
        return here
    return dataclasses.replace(
        here, machine_of=shards.machine_of, driver_version=shards.plan.driver_version
    )


def night_goal(context: RunContext, selection: Selection, judge: LedgerJudge) -> NightGoal:
    """Return the night of a run, whose judge tells which cases want further launches."""
    night = NightGoal.of(judge.goals, launches=context.launches)
    return dataclasses.replace(
        night,
        attempts=judge.attempts,
        # A worker or a shard doesn't know which of the later cases it will measure itself.
        side_by_side=not context.is_part,
        unconfirmed=judge.unconfirmed,
        doubted=lambda: wanted_check(context, judge),
        further=_further(context, selection, judge),
    )


def _further(context: RunContext, selection: Selection, judge: LedgerJudge) -> Further | None:
    """Return the launches that follow the planned ones for speeds; None for none."""
    if not context.is_recording:
        # A part of a run can't judge speeds.
        if context.is_part:
            return None
        return Further(wanted=judge.slower, last_number=context.launches + MORE_LAUNCHES)

    if context.options.launches is not None:
        # The user has chosen the number of launches.
        return None

    def wanted(ledger: Ledger, cases: Sequence[Case]) -> Sequence[Case]:
        measurements = [launch.measurement for launch in ledger.measured]
        return undecided_cases(cases, selection.metrics_of, measurements, context.store)

    return Further(
        wanted=wanted,
        within_s=_S_PER_MIN * context.options.record_minutes,
        last_number=MAX_LAUNCHES,
    )


def night_settings(context: RunContext, selection: Selection, ledger: Ledger) -> Settings:
    """Return how the cases of a run are measured.

    Args:
        context: what is fixed for the run.
        selection: what its tests need.
        ledger: has the first launches, which decide about further recorded ones.
    """

    def enough_of(case: Case, number: int) -> StoppingRule | None:
        if selection.is_recording:
            return _recording_rule(case, number, ledger)
        return _judging_rule(case, selection, context)

    return Settings(
        key_of=lambda case, number: ledger_key(case, number, selection, context),
        enough_of=enough_of,
        least_s_of=lambda case: least_time_s(case, selection, context),
    )


def _judging_rule(case: Case, selection: Selection, context: RunContext) -> StoppingRule | None:
    """Return the rule that stops a measurement early, or extends it; None if acceptance doesn't."""
    acceptance = [metric for metric in selection.metrics_of(case) if not metric.by_launch]
    if not acceptance:
        return None
    try:
        known = context.baselines_of(case)
    except BaselineError:
        # The verdicts of the case will have this error.
        return None

    # The first metric of acceptance decides about the others.
    return enough_for(
        case,
        acceptance[0],
        known,
        may_stop_early=not selection.needs_speed(case),
        cases=selection.run_cases,
    )


def _recording_rule(case: Case, number: int, ledger: Ledger) -> StoppingRule:
    """Return the rule that extends a launch which is recorded.

    The first launch is extended, because a later run may replay the extension and needs those
    prompts in the baseline. A later launch is extended only if its answers differ from those of the
    first launch. If they are equal, they would be equal for the extension too.
    """
    first_launch = ledger.find(case.id, 1) if number > 1 else None
    first_acceptance = first_launch.measurement.acceptance if first_launch else None

    def is_enough(acceptance: AcceptanceRecord | None, look: Look) -> bool:
        if look is not Look.FULL or number == 1:
            return False
        if acceptance is None or first_acceptance is None:
            return True
        return acceptance.repeats(first_acceptance)

    return is_enough
