"""What a run wants to know: of which cases, on which launches of their servers, in which order."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from specreg.matrix.case import Case
from specreg.measurement.metrics import Metric
from specreg.runs.ledger import Checked, FailedLaunch, Ledger
from specreg.servers.launch import Launch, cases_by_server, launch_pair

ATTEMPTS = 2
"""The most times that a case is measured alone, or checked, if its server dies meanwhile."""
Wanted = Callable[[Ledger, Sequence[Case]], Sequence[Case]]
"""Returns which of some cases want one more launch than they have, to decide something."""


def no_case(ledger: Ledger, cases: Sequence[Case]) -> Sequence[Case]:
    """Want no further launch."""
    del ledger, cases
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseLaunch:
    """A case on one launch of its servers.

    Attributes:
        case: the case.
        server: the launch of its server.
        control: the launch of its control; the same as `server` if the case has no control.
    """

    case: Case
    server: Launch
    control: Launch

    @classmethod
    def of(cls, case: Case, number: int) -> Self:
        """Return a case on one launch, given the number of the launch, from 1."""
        control, server = launch_pair(case, number)
        return cls(case=case, server=server, control=control)

    @property
    def number(self) -> int:
        """The number of the launch, from 1."""
        return self.server.number

    @property
    def name(self) -> str:
        """The id of the case on this launch; the second launch adds `-launch2`."""
        return self.server.case_id(self.case)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseGoal:
    """What a run wants to know of a case.

    Attributes:
        metrics: the metrics of which a verdict may be asked.
        is_measured: whether it is measured. A case may be checked only.
        speed: whether its speed is measured, beside that of its control.
        power: whether the power that it draws is measured too.
        needs_all_prompts: whether no early look at the acceptance may end the measurement.
        checks: the names of its correctness checks, which are made on the first launch.
    """

    case: Case
    metrics: tuple[Metric, ...] = ()
    is_measured: bool = True
    speed: bool = False
    power: bool = False
    needs_all_prompts: bool = False
    checks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The cases that share a server, on one of its planned launches.

    All of them are measured and checked, and what their acceptance lost is confirmed, before the
    next stage begins.
    """

    number: int
    goals: tuple[CaseGoal, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases."""
        return tuple(goal.case for goal in self.goals)

    @property
    def launch(self) -> Launch:
        """The launch of their server."""
        return CaseLaunch.of(self.goals[0].case, self.number).server


@dataclass(frozen=True, slots=True, kw_only=True)
class Further:
    """The launches beyond the planned ones that a run may take for its speeds.

    Attributes:
        wanted: returns the cases that want another launch.
        within_s: the time for all of them together, which the servers share; None without a limit.
        last_number: the number of the last launch.
    """

    wanted: Wanted
    within_s: float | None = None
    last_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChange:
    """An engine whose version has changed.

    Attributes:
        engine: the name of the engine.
        before: the version of the last good night, or else the version of the baseline.
        tonight: the version that the run measured.
    """

    engine: str
    before: str
    tonight: str

    @property
    def sides(self) -> tuple[str, str]:
        """Both versions as a gate takes them, the earlier one first."""
        return f"{self.engine}=={self.before}", f"{self.engine}=={self.tonight}"

    def __str__(self) -> str:
        return f"{self.engine} {self.before} -> {self.tonight}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCheck:
    """The last step of a night: a gate of two versions of an engine on one case.

    It tells a slower engine from a slower machine. The ledger has its verdict on each metric as a
    check of the case.

    Attributes:
        case: the case on which both versions are measured.
        change: the two versions.
        tolerances: the tolerance of each metric that is compared, 0..1, by its name.
        launch_s: how long the first launch of the case's server took in the run, with all cases on
            that server, in seconds; 0 if unknown.
    """

    case: Case
    change: EngineChange
    tolerances: Mapping[str, float]
    launch_s: float = 0.0

    def name_of(self, metric: str) -> str:
        """Return the check's name in the ledger for a metric."""
        return f"{self.change}: {metric}"

    def found_in(self, ledger: Ledger) -> list[Checked]:
        """Return what the ledger has of the metrics."""
        lines = [ledger.check(self.case.id, self.name_of(metric)) for metric in self.tolerances]
        return [line for line in lines if line is not None]

    def failures_in(self, ledger: Ledger) -> Sequence[FailedLaunch]:
        """Return why both versions couldn't be measured in this run, if they couldn't."""
        return ledger.failures_of(self.case.id, 1, str(self.change))

    def is_done(self, ledger: Ledger) -> bool:
        """Return whether each metric was compared, or can't be in this run."""
        all_found = len(self.found_in(ledger)) == len(self.tolerances)
        return all_found or bool(self.failures_in(ledger))

    def __str__(self) -> str:
        return f"{self.change} on {self.case.id}"


def no_check() -> EngineCheck | None:
    """Doubt no loss of speed."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class NightGoal:
    """What a night wants to know of cases, on planned launches of their servers and further ones.

    Attributes:
        stages: the planned launches, in order.
        launches: the number of planned launches of each server.
        attempts: how often a case is tried if its server dies; 1 for a server of others.
        side_by_side: whether cases that differ only in their speculation are measured together.
        unconfirmed: returns the cases of a stage that want a further launch at its end.
        further: the launches that follow the last stage; None for none.
        doubted: returns the gate that tells whether the engine or the machine lost, once all else
            is there; None for none.
        only: a case whose server alone is launched, by a process that measures a part of the run;
            None for all servers.
        last_stage: the stage after which the night pauses; None for the last of all.
    """

    stages: tuple[Stage, ...]
    launches: int
    attempts: int = ATTEMPTS
    side_by_side: bool = True
    unconfirmed: Wanted = no_case
    further: Further | None = None
    doubted: Callable[[], EngineCheck | None] = no_check
    only: Case | None = None
    last_stage: Stage | None = None

    @classmethod
    def of(cls, goals: Sequence[CaseGoal], *, launches: int) -> Self:
        """Return the night that measures cases, given in the order of the run.

        Each server is launched once before any is launched again.
        """
        goals_by_id = {goal.case.id: goal for goal in goals}
        groups = cases_by_server(goal.case for goal in goals)
        stages = [
            Stage(number=number, goals=tuple(goals_by_id[case.id] for case in group))
            for number in range(1, launches + 1)
            for group in groups.values()
        ]
        return cls(stages=tuple(stages), launches=launches)

    def until(self, case: Case, number: int) -> Self:
        """Return this night up to the stage of a case on a launch.

        The stages after it still decide which cases are measured together.
        """
        stages = [stage for stage in self.stages if stage.number == number and case in stage.cases]
        last = stages[0] if stages else None
        return dataclasses.replace(self, last_stage=last, further=None, doubted=no_check)

    def part(self, case: Case) -> Self:
        """Return the part of this night that launches the server of a case alone."""
        return dataclasses.replace(self, only=case)

    def has(self, stage: Stage) -> bool:
        """Return whether this process measures a stage."""
        return self.only is None or self.only in stage.cases

    def goals(self) -> Iterator[CaseGoal]:
        """Yield what the night wants to know of each case, in the order of the run."""
        for stage in self.stages:
            if stage.number == 1:
                yield from stage.goals
