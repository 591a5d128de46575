"""Cases that differ in their speculation alone are measured side by side, beside one control."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from specreg.core.errors import ServerDiedError, ServerStartError, SpecregError
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Case, companions_of
from specreg.measurement.arm import Arm
from specreg.measurement.measure import Measurement
from specreg.runs.goals import CaseLaunch
from specreg.runs.ledger import read_ledger
from specreg.servers.handle import ServerHandle, Servers
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher
from specreg.servers.server import Server
from specreg.suite.case_runner import CaseRunner
from specreg.suite.result import Run
from specreg.suite.server_set import ServerSet
from tests.unit import builders
from tests.unit.builders import runs

PLAIN = builders.PLAIN_CASE
DRAFTING, EAGLE, NGRAM = (
    dataclasses.replace(builders.on_server(method=name), control=builders.PLAIN_SPEC)
    for name in ("draft_model", "eagle3", "ngram")
)
LEARNING = dataclasses.replace(builders.on_server(method="suffix"), control=builders.PLAIN_SPEC)
SINGLE_EAGLE = builders.with_concurrency(1, EAGLE)
ALL = (PLAIN, DRAFTING, EAGLE, NGRAM)


def joined(
    *later_cases: Case,
    case: Case = PLAIN,
    may_join: Callable[[Case], bool] = lambda _: True,
    most: int = 10,
) -> list[Case]:
    """The companions of a case where memory holds so many servers."""
    return companions_of(case, later_cases, may_join=may_join, fit=lambda specs: len(specs) <= most)


def test_cases_that_differ_in_their_speculation_alone_are_companions() -> None:
    assert joined(DRAFTING, SINGLE_EAGLE, EAGLE, LEARNING, NGRAM) == [DRAFTING, EAGLE, NGRAM]
    assert joined(EAGLE, PLAIN, case=DRAFTING) == [EAGLE, PLAIN]
    other_prompts = builders.with_request(EAGLE, prompts=3)
    assert joined(other_prompts) == []
    alone, other_alone = (dataclasses.replace(case, control=None) for case in (DRAFTING, EAGLE))
    assert joined(other_alone, case=alone) == []
    assert joined(EAGLE, case=LEARNING) == []


def test_companions_are_what_memory_holds_and_what_is_to_be_measured() -> None:
    assert joined(DRAFTING, EAGLE, NGRAM, most=3) == [DRAFTING, EAGLE]
    assert joined(DRAFTING, EAGLE, case=NGRAM, most=3) == [DRAFTING]
    assert joined(PLAIN, EAGLE, case=NGRAM, most=2) == [PLAIN], "the control is there already"
    assert joined(DRAFTING, EAGLE, may_join=lambda case: case == EAGLE) == [EAGLE]


def test_a_case_of_another_control_ends_the_companions() -> None:
    other_spec = dataclasses.replace(builders.PLAIN_SPEC, models="other")
    between = dataclasses.replace(builders.PLAIN_CASE, server=other_spec)
    assert joined(DRAFTING, between, EAGLE) == [DRAFTING]


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class ScriptedServers(Servers):
    """Servers that are ready at once, unless they are said to fail.

    Attributes:
        most: how many of them memory holds.
        failing: the methods whose servers don't start.
        failures: how often a server didn't start.
    """

    most: int = 10
    failing: frozenset[str] = frozenset()
    failures: int = 0

    def fit_beside(self, specs: Sequence[ServerSpec]) -> bool:
        return len(specs) <= self.most

    def handle(self, launch: Launch) -> ServerHandle:
        return self._handles.setdefault(launch, runs.handle(launch, self._scripted))

    def _scripted(self, spec: ServerSpec) -> AbstractContextManager[Server]:
        if spec.method in self.failing:
            self.failures += 1
            raise ServerStartError("SERVER_NOT_STARTED: x", "ended", "look", Path("log"), "")
        return runs.ready([])


class ScriptedArms:
    """Measures nothing, and notes the cases of each measurement.

    Attributes:
        groups: by measurement the methods of its arms; the control's is marked.
        dying: a method whose server dies if it is measured beside others.
    """

    def __init__(self, dying: str = "") -> None:
        self.groups: list[list[str]] = []
        self.dying = dying

    def __call__(self, arms: Sequence[Arm], *_: object) -> list[Measurement]:
        methods = [arm.case.server.method for arm in arms]
        marks = ["*" if arm.is_control else "" for arm in arms]
        self.groups.append([f"{method}{mark}" for method, mark in zip(methods, marks, strict=True)])
        if self.dying in methods and len(arms) > 2:
            raise ServerDiedError(f"SERVER_DIED: server of '{self.dying}'")
        empty = builders.measurement({})
        return [dataclasses.replace(empty, case=arm.case) for arm in arms]


@dataclasses.dataclass
class ScriptedRun:
    """A run whose servers and arms are scripted."""

    servers: ScriptedServers
    arms: ScriptedArms
    run: Run[CaseRunner]

    def measure(self, *cases: Case, number: int = 1) -> list[Measurement]:
        """Measure cases one after the other, as their tests do."""
        measurements = []
        for case in cases:
            launches = CaseLaunch.of(case, number)
            control = self.servers.handle(launches.control)
            server = self.servers.handle(launches.server)
            servers_of_case = ServerSet.of(case, server, control)
            measurements.append(self.run.cases.measure(case, servers_of_case))
        return measurements


def scripted(
    folder: Path,
    cases: Sequence[Case] = ALL,
    *,
    dying: str = "",
    is_worker: bool = False,
    selected: Sequence[Case] | None = None,
    resumes: bool = False,
    **servers: Any,  # noqa: ANN401 - any field of ScriptedServers
) -> ScriptedRun:
    context = runs.context(
        folder, cases=cases, is_worker=is_worker, update_baselines=True, launches=1
    )
    selection = runs.selection(context, {case.id: () for case in selected or cases})
    launcher = ServerLauncher(provision=context.provision, root=context.root, ready_within_s=1.0)
    scripted_servers = ScriptedServers(launcher=launcher, logs=folder / "logs", **servers)
    arms = ScriptedArms(dying)
    resumed = read_ledger(folder / "ledger.jsonl") if resumes else None
    run = runs.run(context, selection, resumed=resumed, servers=scripted_servers, measure_arms=arms)
    return ScriptedRun(scripted_servers, arms, run)


def test_all_methods_and_their_control_are_measured_in_one_go(tmp_path: Path) -> None:
    here = scripted(tmp_path)

    measurements = here.measure(*ALL)

    assert here.arms.groups == [["none*", "draft_model", "eagle3", "ngram"]]
    assert [measurement.case for measurement in measurements] == list(ALL)
    assert [launch.case for launch in here.run.cases.ledger.measured] == list(ALL)
    keys = read_ledger(tmp_path / "ledger.jsonl").measured
    assert [key.case_id for key in keys] == [case.id for case in ALL]
    pairs = [pair.pair for pair in here.run.cases.time.pairs if "measuring" in pair.phases_s]
    assert pairs == [case.server.id for case in ALL]


def test_a_control_that_is_no_case_of_the_run_is_the_last_arm(tmp_path: Path) -> None:
    here = scripted(tmp_path, selected=[DRAFTING, NGRAM])

    here.measure(DRAFTING, NGRAM)

    assert here.arms.groups == [["draft_model", "ngram", "none*"]]


def test_what_memory_does_not_hold_is_measured_in_its_turn(tmp_path: Path) -> None:
    here = scripted(tmp_path, most=2)

    here.measure(*ALL)

    assert here.arms.groups == [["none*", "draft_model"], ["eagle3", "none*"], ["ngram", "none*"]]


def test_a_server_that_does_not_start_is_left_out_and_its_own_test_says_why(tmp_path: Path) -> None:
    here = scripted(tmp_path, failing=frozenset({"eagle3"}))

    here.measure(PLAIN, DRAFTING, NGRAM)

    assert here.arms.groups == [["none*", "draft_model", "ngram"]]
    for _ in range(2):
        with pytest.raises(SpecregError, match="SERVER_NOT_STARTED"):
            here.measure(EAGLE)
    assert here.servers.failures == 2


def test_a_server_that_lacked_memory_beside_others_starts_in_its_own_turn(tmp_path: Path) -> None:
    here = scripted(tmp_path, failing=frozenset({"eagle3"}))

    here.measure(PLAIN, DRAFTING)
    here.servers.failing = frozenset()
    here.measure(EAGLE, NGRAM)

    assert here.arms.groups == [["none*", "draft_model", "ngram"], ["eagle3", "none*"]]


def test_where_a_server_dies_each_case_is_measured_alone(tmp_path: Path) -> None:
    here = scripted(tmp_path, dying="eagle3")

    here.measure(*ALL)

    assert here.arms.groups == [
        ["none*", "draft_model", "eagle3", "ngram"],
        ["none"],
        ["draft_model", "none*"],
        ["eagle3", "none*"],
        ["ngram", "none*"],
    ]
    (remark,) = here.run.cases.retried
    assert remark == f"{PLAIN.id}: measured again, SERVER_DIED: server of 'eagle3'"


def test_what_was_measured_before_is_not_measured_again(tmp_path: Path) -> None:
    first = scripted(tmp_path, selected=[DRAFTING, EAGLE])
    first.measure(DRAFTING)
    again = scripted(tmp_path, resumes=True)

    again.measure(*ALL)

    assert again.arms.groups == [["none*", "ngram"]]
    launches = again.run.cases.ledger.measured
    assert [launch.is_resumed for launch in launches] == [False, True, True, False]


def test_workers_and_further_launches_measure_each_case_alone(tmp_path: Path) -> None:
    worker = scripted(tmp_path / "worker", is_worker=True)
    worker.measure(PLAIN, EAGLE)
    assert worker.arms.groups == [["none"], ["eagle3", "none*"]]

    further = scripted(tmp_path / "further")
    further.measure(EAGLE, number=2)
    assert further.arms.groups == [["eagle3", "none*"]]


def test_acceptance_alone_needs_no_control(tmp_path: Path) -> None:
    context = runs.context(tmp_path, cases=ALL)
    names = {case.id: [runs.LENGTH.name] for case in ALL[1:]}
    here = scripted(tmp_path)
    run = runs.run(
        context, runs.selection(context, names), servers=here.servers, measure_arms=here.arms
    )

    ScriptedRun(here.servers, here.arms, run).measure(*ALL[1:])

    assert here.arms.groups == [["draft_model"], ["eagle3"], ["ngram"]]
