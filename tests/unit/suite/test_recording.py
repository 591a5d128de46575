"""Recording: how many launches more, and for which cases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specreg.core.reasons import Reason
from specreg.core.timeline import Timeline
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.runs.ledger import Ledger, MeasuredLaunch
from specreg.suite.case_runner import CaseRunner
from specreg.suite.context import RunContext
from specreg.suite.group_judge import GroupJudge
from specreg.suite.recording import RecordingBudget
from specreg.suite.server_set import ServerSet
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.runs import SPEED

ONE = builders.with_concurrency(1)
OTHER = builders.with_concurrency(4)
STEADY = (100.0,) * 12
UNSTEADY = (100.0, 101.0, 99.0) * 4


@dataclass(slots=True, kw_only=True)
class ScriptedRunner(CaseRunner):
    """Measures launches whose speeds are given by case, and notes the cases of fresh launches."""

    speeds: Mapping[str, Sequence[float]]
    fresh: list[list[str]] = field(default_factory=list)

    def measure(self, case: Case, servers: ServerSet) -> Measurement:
        result = self.read(case, servers.launch.number)
        assert isinstance(result, Measurement)
        return result

    def measure_afresh(
        self, cases: Sequence[Case], number: int
    ) -> Mapping[str, Measurement | Reason]:
        self.fresh.append([case.id for case in cases])
        return {case.id: self.read(case, number) for case in cases}

    def read(self, case: Case, number: int) -> Measurement | Reason:
        speeds = self.speeds[case.id]
        if number > len(speeds):
            return Reason(text="the server didn't start")
        measured = self.ledger.find(case.id, number)
        if measured is not None:
            return measured.measurement
        measurement = builders.measurement({SPEED.name: speeds[number - 1]}, case=case)
        launch = MeasuredLaunch(case_id=case.id, number=number, measurement=measurement)
        self.ledger.add(launch)
        return measurement


def record(
    context: RunContext, speeds: Mapping[str, Sequence[float]], left_s: float
) -> tuple[ScriptedRunner, RecordingBudget]:
    """Record the first case's server: three launches, and then as many as the budget allows."""
    selection = runs.selection(context, {case_id: [SPEED.name] for case_id in speeds})
    timeline = Timeline()
    runner = ScriptedRunner(
        context=context,
        selection=selection,
        servers=runs.all_servers(context),
        ledger=Ledger(context.run_folder / "ledger.jsonl"),
        timeline=timeline,
        speeds=speeds,
    )
    budget = RecordingBudget(left_s=left_s, store=context.store)
    judge = GroupJudge(
        context=context, selection=selection, cases=runner, budget=budget, timeline=timeline
    )
    for number in (1, 2, 3):
        judge.judge(SPEED, ONE, runs.servers(number, ONE))
    return runner, budget


@pytest.mark.parametrize(
    ("first", "second", "left_s", "fresh_launches"),
    [
        pytest.param(STEADY, STEADY, 60.0, 0, id="three-decide"),
        pytest.param(UNSTEADY, UNSTEADY, 60.0, 1, id="more-decide"),
        pytest.param(UNSTEADY[:3], UNSTEADY[:3], 60.0, 1, id="no-more-start"),
        # Until eight degrees of freedom are known, the spread itself is a guess.
        pytest.param((100.0, 200.0, 50.0) * 4, STEADY, 60.0, 2, id="none-would"),
        pytest.param(UNSTEADY, UNSTEADY, -1.0, 0, id="no-time"),
    ],
)
def test_more_launches_are_measured_while_they_let_later_runs_judge_more(
    tmp_path: Path,
    first: Sequence[float],
    second: Sequence[float],
    left_s: float,
    fresh_launches: int,
) -> None:
    context = runs.context(tmp_path, cases=(ONE, OTHER), update_baselines=True)

    runner, _ = record(context, {ONE.id: first, OTHER.id: second}, left_s)

    assert runner.fresh == [[ONE.id, OTHER.id]] * fresh_launches


def test_servers_share_the_time_that_is_left(tmp_path: Path) -> None:
    alone = builders.with_concurrency(4, builders.on_server(draft_tokens=2))
    context = runs.context(tmp_path, cases=(ONE, alone), update_baselines=True)

    runner, budget = record(context, {ONE.id: UNSTEADY, alone.id: UNSTEADY}, 60.0)

    assert runner.fresh
    assert all(case_ids == [ONE.id] for case_ids in runner.fresh)
    assert budget.left_s < 60.0


def test_a_server_gets_its_part_of_what_the_others_left(tmp_path: Path) -> None:
    budget = RecordingBudget(left_s=60.0, store=runs.context(tmp_path).store)
    servers = {"a", "b", "c"}

    assert budget.share_s("a", servers) == 20.0
    budget.spend(30.0)
    assert budget.share_s("b", servers) == 15.0
    assert budget.share_s("c", servers) == 30.0
