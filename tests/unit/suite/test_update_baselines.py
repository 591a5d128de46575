"""Recording: how many launches more, and which cases they are for."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from specreg.core.reasons import Reason
from specreg.matrix.case import Case, Tier
from specreg.measurement.measure import Measurement
from specreg.servers.launch import launches_of
from specreg.suite.run import Suite
from tests.unit import builders
from tests.unit.suite.test_run import SPEED, parts

ONE, OTHER = builders.with_concurrency(1), builders.with_concurrency(4)
LAUNCH = launches_of(ONE, 3)[1]


@dataclasses.dataclass(slots=True, kw_only=True)
class Recording(Suite):
    """A run whose launches have the speeds that are written down; it keeps who was asked for."""

    speeds: Mapping[str, Sequence[float]]
    asked_for: list[list[str]] = dataclasses.field(default_factory=list)

    def take(self, case: Case, launch: int) -> Measurement | Reason:
        speeds = self.speeds[case.id]
        if launch > len(speeds):
            return Reason(text="the server didn't start")
        values = {SPEED.name: speeds[launch - 1]}
        self._measured[case.id, launch] = found = builders.measurement(values, case=case)
        return found

    def measure_afresh(
        self, cases: Sequence[Case], further: int
    ) -> Mapping[str, Measurement | Reason]:
        self.asked_for.append([case.id for case in cases])
        return {case.id: self.take(case, self.launches + further) for case in cases}


def recording(folder: Path, one: Sequence[float], other: Sequence[float]) -> Recording:
    """A run of two cases of one server after its three launches."""
    speeds = {ONE.id: one, OTHER.id: other}
    asked = {case_id: {SPEED.name} for case_id in speeds}
    made = Recording(**parts(folder, update_baselines=True), asked=asked, speeds=speeds)
    made.tier = Tier(name="cpu", needs_gpus=0, cases=(ONE, OTHER))
    for case in made.tier.cases:
        for number in (1, 2, 3):
            made.take(case, number)
    return made


STEADY = (100.0,) * 12
UNSTEADY = (100.0, 101.0, 99.0) * 4


@pytest.mark.parametrize(
    ("one", "other", "left_s", "asked"),
    [
        pytest.param(STEADY, STEADY, 60.0, 0, id="three-tell"),
        pytest.param(UNSTEADY, UNSTEADY, 60.0, 1, id="more-tell"),
        pytest.param(UNSTEADY[:3], UNSTEADY[:3], 60.0, 1, id="no-more-start"),
        pytest.param((100.0, 200.0, 50.0) * 4, STEADY, 60.0, 0, id="none-would"),
        pytest.param(UNSTEADY, UNSTEADY, -1.0, 0, id="no-time"),
    ],
)
def test_more_launches_are_measured_while_they_let_a_run_tell_more(
    tmp_path: Path, one: Sequence[float], other: Sequence[float], left_s: float, asked: int
) -> None:
    suite = recording(tmp_path, one, other)
    suite.further_s = left_s
    suite.measure_further(LAUNCH)
    assert suite.asked_for == [[ONE.id, OTHER.id]] * asked


def test_servers_share_the_time_that_is_left(tmp_path: Path) -> None:
    suite = recording(tmp_path, UNSTEADY, UNSTEADY)
    alone = dataclasses.replace(OTHER, server=dataclasses.replace(OTHER.server, draft_tokens=2))
    suite.tier = Tier(name="cpu", needs_gpus=0, cases=(ONE, alone))
    suite.asked = {ONE.id: {SPEED.name}, alone.id: {SPEED.name}}
    suite.further_s = 60.0
    suite.measure_further(LAUNCH)
    assert suite.asked_for
    assert all(cases == [ONE.id] for cases in suite.asked_for)
    assert suite.further_s < 60.0
