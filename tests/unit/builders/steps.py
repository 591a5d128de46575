"""Nights whose steps are played: what each step would result in is known beforehand."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specreg.core.reasons import Reason
from specreg.matrix.case import Case
from specreg.runs.goals import CaseGoal, NightGoal
from specreg.runs.ledger import Checked, FailedLaunch, Key, Ledger, LedgerEntry, MeasuredLaunch
from specreg.runs.plan import NightStep, next_step
from tests.unit import builders


def empty_ledger() -> Ledger:
    """A ledger without a file; nothing is written to it."""
    return Ledger(Path("/nonexistent/ledger.jsonl"))


def timed(*cases: Case, checks: Sequence[str] = ()) -> list[CaseGoal]:
    """Goals of cases whose speeds are measured."""
    return [CaseGoal(case=case, speed=True, checks=tuple(checks)) for case in cases]


def measured(case: Case, number: int, lasted_s: float = 1.0) -> MeasuredLaunch:
    """A launch of a case."""
    measurement = builders.measurement({}, case=case)
    return MeasuredLaunch(
        case_id=case.id, number=number, measurement=measurement, lasted_s=lasted_s
    )


def failed(
    case: Case, number: int, check: str = "", *, died: bool = False, lasted_s: float = 1.0
) -> FailedLaunch:
    """A launch on which a case couldn't be measured, alone."""
    return FailedLaunch(
        case_id=case.id,
        number=number,
        check=check,
        reason=Reason(text="ended"),
        server_died=died,
        lasted_s=lasted_s,
    )


def checked(case: Case, check: str) -> Checked:
    """A check that came to a verdict."""
    key = Key(
        case=case.key,
        case_id=case.id,
        launch=1,
        purpose="all",
        environment="cpu-x",
        engine="vllm",
        files_sha256="ab",
    )
    return Checked.of(key, check, {"outcome": "PASS"})


def succeed(step: NightStep) -> Iterator[LedgerEntry]:
    """What a step results in if nothing fails."""
    for goal in step.goals:
        if step.check:
            yield checked(goal.case, step.check)
        else:
            yield measured(goal.case, step.number)


def described(step: NightStep) -> str:
    """A step in a few words: its launch, the methods of its cases, and its check."""
    methods = "+".join(
        f"{goal.case.server.method}-c{goal.case.load.concurrency}" for goal in step.goals
    )
    return " ".join(filter(None, (f"{step.number}:", methods, step.check)))


@dataclass
class Played:
    """A night that is played to its end, or until it has taken too many steps.

    Attributes:
        night: the night.
        result_of: returns what a step results in.
        ledger: what it has so far.
        steps: the steps so far.
        entries: what each step resulted in.
    """

    night: NightGoal
    result_of: Callable[[NightStep], Iterable[LedgerEntry]] = succeed
    ledger: Ledger = field(default_factory=empty_ledger)
    steps: list[NightStep] = field(default_factory=list)
    entries: list[list[LedgerEntry]] = field(default_factory=list)

    def play(self) -> list[str]:
        """Take all steps, and return them in words."""
        while isinstance(step := next_step(self.ledger, self.night), NightStep):
            assert len(self.steps) < 100, "the night doesn't end"
            self.steps.append(step)
            entries = list(self.result_of(step))
            self.entries.append(entries)
            for entry in entries:
                self.ledger.add(entry)
        return [described(step) for step in self.steps]
