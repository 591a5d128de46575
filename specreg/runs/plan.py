"""Decide what a night does next, from what its ledger has. Nothing here starts or measures.

Each server has its planned launches, on which its cases are measured and then checked. Cases that
differ only in their speculation are measured side by side with one control. Further launches, which
confirm or decide what the planned ones leave open, measure each case alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specreg.matrix.case import Case, companions_of
from specreg.runs.goals import CaseGoal, CaseLaunch, EngineCheck, Further, NightGoal, Stage, Wanted
from specreg.runs.ledger import ArmLaunch, FailedLaunch, Ledger
from specreg.servers.launch import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class NightStep:
    """What a run does next: measure cases side by side, or check one.

    Attributes:
        number: the number of the launch of all servers, from 1.
        goals: the cases. The first one must be measured; each of the others only if its server fits
            into memory beside those before it, and starts.
        check: the name of the check of the only case; empty to measure.
        keeps: the launches whose servers go on running, if they do, because later steps need them.
            The servers of all launches that are neither here nor in the step itself are stopped.
        is_further: whether the launch is beyond the planned ones.
    """

    number: int
    goals: tuple[CaseGoal, ...]
    check: str = ""
    keeps: frozenset[Launch] = frozenset()
    is_further: bool = False

    @property
    def launches(self) -> tuple[CaseLaunch, ...]:
        """The cases on the launch."""
        return tuple(CaseLaunch.of(goal.case, self.number) for goal in self.goals)


def next_step(ledger: Ledger, night: NightGoal) -> NightStep | EngineCheck | None:
    """Return what a night does next; None if it is done."""
    step = _measuring_step(ledger, night)
    if step is not None:
        return step
    check = night.doubted()
    return check if check is not None and not check.is_done(ledger) else None


def _measuring_step(ledger: Ledger, night: NightGoal) -> NightStep | None:
    """Return what a night measures or checks next; None if all of it is there."""
    stages = [stage for stage in night.stages if night.has(stage)]
    for stage in stages:
        step = _step_of(stage, ledger, night)
        if step is None:
            step = _further_step(stage.cases, night.unconfirmed, ledger, night)
        if step is not None:
            return step
        if stage == night.last_stage:
            break

    further = night.further
    if further is None:
        return None
    if further.within_s is not None:
        return _step_in_time(further, further.within_s, ledger, night)
    cases = dict.fromkeys(case for stage in stages for case in stage.cases)
    step = _further_step(list(cases), further.wanted, ledger, night)
    if step is None or step.number > further.last_number:
        return None
    return step


def _step_of(stage: Stage, ledger: Ledger, night: NightGoal) -> NightStep | None:
    """Return the next measurement or check of a stage."""
    for goal in stage.goals:
        if goal.is_measured and _is_pending(goal.case, stage.number, ledger, night):
            goals = (goal, *_companions(goal, stage.number, ledger, night))
            return NightStep(
                number=stage.number, goals=goals, keeps=_kept(goal.case, stage, ledger, night)
            )
        for check in goal.checks:
            if stage.number == 1 and _is_pending(goal.case, 1, ledger, night, check):
                return NightStep(
                    number=1,
                    goals=(goal,),
                    check=check,
                    keeps=_kept(goal.case, stage, ledger, night),
                )
    return None


def _is_pending(case: Case, number: int, ledger: Ledger, night: NightGoal, check: str = "") -> bool:
    """Return whether a case is still to be measured on a launch, or a check of it to be made."""
    if check and ledger.check(case.id, check) is not None:
        return False
    if not check and ledger.find(case.id, number) is not None:
        return False
    return is_tried(ledger.failures_of(case.id, number, check), night.attempts)


def is_tried(failures: Sequence[FailedLaunch], attempts: int) -> bool:
    """Return whether what failed so far, if it did, is tried again.

    Args:
        failures: how it failed.
        attempts: how often it is tried at most if its server dies.
    """
    # What failed beside other cases is tried again alone.
    alone = [failure for failure in failures if not failure.is_beside_others]
    return not alone or (alone[-1].server_died and len(alone) < attempts)


def _companions(goal: CaseGoal, number: int, ledger: Ledger, night: NightGoal) -> list[CaseGoal]:
    """Return the later cases that are measured side by side with a case.

    If a server died beside others, the cases with its control are measured alone from then on. If
    it dies again, only its own case has to be repeated.
    """
    if not (night.side_by_side and goal.speed) or _is_apart(goal.case, number, ledger, night):
        return []
    later_goals = {later.case.id: later for later in _later_goals(goal, number, night)}

    def may_join(case: Case) -> bool:
        later = later_goals[case.id]
        if not (later.is_measured and later.speed and later.power == goal.power):
            return False
        failed = ledger.failures_of(case.id, number)
        return not failed and _is_pending(case, number, ledger, night)

    later_cases = [later.case for later in later_goals.values()]
    companions = companions_of(goal.case, later_cases, may_join=may_join, fit=lambda _: True)
    return [later_goals[case.id] for case in companions]


def _later_goals(goal: CaseGoal, number: int, night: NightGoal) -> Iterator[CaseGoal]:
    """Yield the cases that follow a case on the launches with its number."""
    goals = [other for stage in night.stages if stage.number == number for other in stage.goals]
    yield from goals[goals.index(goal) + 1 :]


def _is_apart(case: Case, number: int, ledger: Ledger, night: NightGoal) -> bool:
    """Return whether a case is measured alone, because it or another one failed beside others."""
    control = CaseLaunch.of(case, number).control
    for goal in night.goals():
        has_same_control = CaseLaunch.of(goal.case, number).control == control
        for failure in ledger.failures_of(goal.case.id, number):
            concerns_case = goal.case == case or (has_same_control and failure.server_died)
            if failure.is_beside_others and concerns_case:
                return True

    return False


def _kept(case: Case, stage: Stage, ledger: Ledger, night: NightGoal) -> frozenset[Launch]:
    """Return the launches with the control of a case that have something left to do."""
    control = CaseLaunch.of(case, stage.number).control
    kept = set()
    for later in night.stages:
        if later.number != stage.number:
            continue
        for goal in later.goals:
            launch = CaseLaunch.of(goal.case, later.number)
            if launch.control == control and _has_more(goal, later.number, ledger, night):
                kept |= {launch.control, launch.server}

    return frozenset(kept)


def _has_more(goal: CaseGoal, number: int, ledger: Ledger, night: NightGoal) -> bool:
    """Return whether a case has something left to do on a planned launch."""
    if goal.is_measured and _is_pending(goal.case, number, ledger, night):
        return True
    return number == 1 and any(
        _is_pending(goal.case, 1, ledger, night, check) for check in goal.checks
    )


def _further_step(
    cases: Sequence[Case], wanted: Wanted, ledger: Ledger, night: NightGoal
) -> NightStep | None:
    """Return the next further launch of cases, the one with the lowest number first."""
    begun = [case for case in cases if _retried_number(case, ledger, night)]
    numbers = {case.id: _next_number(case, ledger, night) for case in cases}
    wanting = begun or sorted(wanted(ledger, cases), key=lambda case: numbers[case.id])
    if not wanting:
        return None
    case = wanting[0]
    launch = CaseLaunch.of(case, numbers[case.id])

    # One launch of a server serves all of its cases that want one.
    kept = {launch.control, launch.server}
    goals = {goal.case.id: goal for goal in night.goals()}
    return NightStep(
        number=launch.number, goals=(goals[case.id],), keeps=frozenset(kept), is_further=True
    )


def _next_number(case: Case, ledger: Ledger, night: NightGoal) -> int:
    """Return the number of the next further launch of a case."""
    number = night.launches + 1
    while not _is_pending(case, number, ledger, night):
        number += 1
    return number


def _retried_number(case: Case, ledger: Ledger, night: NightGoal) -> int:
    """Return the number of the further launch that is tried again; 0 if there is none."""
    number = _next_number(case, ledger, night)
    return number if ledger.failures_of(case.id, number) else 0


def _step_in_time(
    further: Further, within_s: float, ledger: Ledger, night: NightGoal
) -> NightStep | None:
    """Return the next further launch that time is left for.

    The servers share the time equally. What one leaves is shared by those after it.
    """
    stages = [stage for stage in night.stages if stage.number == night.launches]
    left_s = within_s
    servers_left = len(stages)
    for stage in stages:
        spent_s = _further_s(stage, ledger, night)
        if night.has(stage):
            step = _further_step(stage.cases, further.wanted, ledger, night)
            share_s = left_s / servers_left - spent_s
            if (
                step is not None
                and step.number <= further.last_number
                and _is_affordable(step, stage, share_s, ledger, night)
            ):
                return step
        # Another process measures the servers that have no launch here.
        if any(ledger.find(case.id, night.launches) for case in stage.cases):
            left_s -= spent_s
            servers_left -= 1

    return None


def _is_affordable(
    step: NightStep, stage: Stage, left_s: float, ledger: Ledger, night: NightGoal
) -> bool:
    """Return whether a further launch is begun, or probably succeeds in the time that is left."""
    if any(not _is_pending(case, step.number, ledger, night) for case in stage.cases):
        return True

    # If the launch before it failed for all cases, this one would probably fail too.
    number_before = step.number - 1
    if not any(ledger.find(case.id, number_before) for case in stage.cases):
        return False
    last_attempts = {
        launch.case_id: launch
        for launch in _launches_of(stage, ledger)
        if launch.number == number_before
    }
    return sum(launch.lasted_s for launch in last_attempts.values()) < left_s


def _further_s(stage: Stage, ledger: Ledger, night: NightGoal) -> float:
    """Return how long the further launches of a stage's cases took together, in seconds."""
    return sum(
        launch.lasted_s for launch in _launches_of(stage, ledger) if launch.number > night.launches
    )


def _launches_of(stage: Stage, ledger: Ledger) -> list[ArmLaunch]:
    """Return the launches of a stage's cases so far, of any number."""
    case_ids = {case.id for case in stage.cases}
    return [launch for launch in ledger.launches if launch.case_id in case_ids]
