"""Executing the steps of a night: what is started, what goes on running, and what fails."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from specreg.core.errors import (
    HungError,
    InvalidMeasurementError,
    MemoryHeldError,
    ModelError,
    ServerDiedError,
    ServerStartError,
    SpecregError,
)
from specreg.core.timeline import Timeline
from specreg.correctness.checks import LOSSLESS, CorrectnessCheck, RunningCase
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Case
from specreg.measurement.arm import Arm
from specreg.measurement.measure import Measurement
from specreg.runs.execute import NightExecutor, Settings
from specreg.runs.goals import CaseGoal, CaseLaunch, NightGoal
from specreg.runs.ledger import FailedLaunch, Key, Ledger, read_ledger
from specreg.runs.plan import next_step
from specreg.servers.handle import ServerHandle, Servers
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher
from specreg.servers.server import Server
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.http_servers import answering
from tests.unit.builders.steps import checked, timed

PLAIN = builders.PLAIN_CASE
DRAFTING, EAGLE, NGRAM = (
    dataclasses.replace(builders.on_server(method=name), control=builders.PLAIN_SPEC)
    for name in ("draft_model", "eagle3", "ngram")
)
ALL = (PLAIN, DRAFTING, EAGLE, NGRAM)
CONTROL = CaseLaunch.of(EAGLE, 1).control
EQUAL = Verdict(case_id=EAGLE.id, metric=LOSSLESS, outcome=Outcome.PASS)


@dataclass(slots=True, kw_only=True, eq=False)
class ScriptedServers(Servers):
    """Servers that are ready at once, unless they are said to fail.

    Attributes:
        failing: the methods whose servers don't start.
        started: the ids of the servers that were started, in order.
        server: the server that every launch has; None for one whose process has ended.
        most: how many of them memory holds.
    """

    failing: frozenset[str] = frozenset()
    started: list[str] = field(default_factory=list)
    server: Server | None = None
    most: int = 10

    def fit_beside(self, specs: Sequence[ServerSpec]) -> bool:
        return len(specs) <= self.most

    def handle(self, launch: Launch) -> ServerHandle:
        handle = runs.handle(launch, lambda _: self._scripted(launch))
        return self._handles.setdefault(launch, handle)

    def _scripted(self, launch: Launch) -> AbstractContextManager[Server]:
        self.started.append(launch.id)
        if launch.spec.method in self.failing:
            raise ServerStartError("x", "ended", "look", Path("log"), "")
        if self.server is not None:
            return contextlib.nullcontext(self.server)
        return runs.ready([])

    @property
    def running(self) -> set[str]:
        """The ids of the servers that run."""
        return {launch.id for launch, server in self._handles.items() if server.is_up}


class ScriptedArms:
    """Measures nothing, and notes the cases of each measurement.

    Attributes:
        groups: by measurement the methods of its arms; the control's is marked.
        last_is_warm: by measurement whether its last arm was warm.
        errors: what the next measurements raise.
        dying: a method whose server dies if it is measured beside others.
    """

    def __init__(self, *errors: SpecregError, dying: str = "") -> None:
        self.groups: list[list[str]] = []
        self.last_is_warm: list[bool] = []
        self.errors = list(errors)
        self.dying = dying

    def __call__(self, arms: Sequence[Arm], *_: object) -> list[Measurement]:
        methods = [arm.case.server.method for arm in arms]
        marks = ["*" if arm.is_control else "" for arm in arms]
        self.groups.append([f"{method}{mark}" for method, mark in zip(methods, marks, strict=True)])
        self.last_is_warm.append(arms[-1].warm)
        if self.errors:
            raise self.errors.pop(0)
        if self.dying in methods and len(arms) > 2:
            raise ServerDiedError(f"server of '{self.dying}'")
        empty = builders.measurement({})
        return [dataclasses.replace(empty, case=arm.case) for arm in arms]


def key_of(case: Case, number: int) -> Key:
    """The key of a case on a launch."""
    return Key(
        case=case.key,
        case_id=case.id,
        launch=number,
        purpose="all",
        environment="cpu-x",
        engine="vllm",
        files_sha256="ab",
    )


@dataclass
class Machine:
    """A machine that runs nights with scripted servers and arms."""

    servers: ScriptedServers
    arms: ScriptedArms
    executor: NightExecutor

    @property
    def ledger(self) -> Ledger:
        """What was measured."""
        return self.executor.ledger

    @property
    def failures(self) -> list[FailedLaunch]:
        """What failed."""
        return list(self.ledger.failures)

    def run(self, night: NightGoal) -> None:
        """Run a night to its end."""
        while step := next_step(self.ledger, night):
            self.ledger.extend(self.executor.execute(step))


def machine(
    folder: Path,
    arms: ScriptedArms | None = None,
    *,
    failing: Sequence[str] = (),
    key: Callable[[Case, int], Key] = key_of,
    **fields: Any,  # noqa: ANN401 - any field of NightExecutor
) -> Machine:
    """A machine whose files are in a folder."""
    context = runs.context(folder)
    launcher = ServerLauncher(provision=context.provision, root=context.root, ready_within_s=1.0)
    servers = ScriptedServers(launcher=launcher, logs=folder / "logs", failing=frozenset(failing))
    measuring = arms or ScriptedArms()
    executor = NightExecutor(
        root=context.root,
        run_folder=folder,
        provision=context.provision,
        servers=servers,
        ledger=Ledger(folder / "ledger.jsonl"),
        settings=Settings(key_of=key, enough_of=lambda *_: None, least_s_of=lambda _: 0.0),
        timeline=Timeline(),
        compare=lambda _: (),
        measure_arms=measuring,
        **fields,
    )
    return Machine(servers, measuring, executor)


def night(goals: Sequence[CaseGoal], launches: int = 1) -> NightGoal:
    """A night of these cases."""
    return NightGoal.of(goals, launches=launches)


def checks_with(*results: Verdict | SpecregError) -> Mapping[str, CorrectnessCheck]:
    """A check of answers that ends in these results, one after the other."""
    results_left = list(results)

    def check(_: RunningCase) -> Verdict:
        result = results_left.pop(0)
        if isinstance(result, SpecregError):
            raise result
        return result

    return {LOSSLESS: CorrectnessCheck(LOSSLESS, check)}


def test_all_methods_and_their_control_are_measured_in_one_go(tmp_path: Path) -> None:
    here = machine(tmp_path)

    here.run(night(timed(*ALL)))

    assert here.arms.groups == [["none*", "draft_model", "eagle3", "ngram"]]
    assert [launch.case for launch in here.ledger.measured] == list(ALL)
    keys = read_ledger(tmp_path / "ledger.jsonl").measured
    assert [key.case_id for key in keys] == [case.id for case in ALL]
    time = here.executor.timeline.so_far()
    pairs = [pair.pair for pair in time.pairs if "measuring" in pair.phases_s]
    assert pairs == [case.server.id for case in ALL]


def test_a_control_that_is_no_case_of_the_run_is_the_last_arm(tmp_path: Path) -> None:
    here = machine(tmp_path)

    here.run(night(timed(DRAFTING, NGRAM)))

    assert here.arms.groups == [["draft_model", "ngram", "none*"]]


def test_what_memory_does_not_hold_is_measured_in_its_turn(tmp_path: Path) -> None:
    here = machine(tmp_path)
    here.servers.most = 2

    here.run(night(timed(*ALL)))

    assert here.arms.groups == [["none*", "draft_model"], ["eagle3", "none*"], ["ngram", "none*"]]


def test_acceptance_alone_needs_no_control(tmp_path: Path) -> None:
    here = machine(tmp_path)

    here.run(night([CaseGoal(case=case) for case in ALL[1:]]))

    assert here.arms.groups == [["draft_model"], ["eagle3"], ["ngram"]]


def test_a_server_that_does_not_start_is_left_out_and_tried_once_alone(tmp_path: Path) -> None:
    here = machine(tmp_path, failing=["eagle3"])

    here.run(night(timed(*ALL)))

    assert here.arms.groups == [["none*", "draft_model", "ngram"]]
    assert here.servers.started.count(EAGLE.server.id) == 2
    beside, alone = here.failures
    assert (beside.is_beside_others, alone.is_beside_others) == (True, False)
    assert alone.reason.code == "SERVER_NOT_STARTED"


def test_a_control_that_does_not_start_fails_every_case_and_starts_once(tmp_path: Path) -> None:
    here = machine(tmp_path, failing=["none"])

    here.run(night(timed(DRAFTING, EAGLE)))

    assert here.servers.started.count(CONTROL.id) == 1
    assert [failure.case_id for failure in here.failures] == [DRAFTING.id, EAGLE.id]


def test_where_a_server_dies_each_case_is_measured_alone(tmp_path: Path) -> None:
    here = machine(tmp_path, ScriptedArms(dying="eagle3"))

    here.run(night(timed(*ALL)))

    assert here.arms.groups == [
        ["none*", "draft_model", "eagle3", "ngram"],
        *(["none"], ["draft_model", "none*"], ["eagle3", "none*"], ["ngram", "none*"]),
    ]
    assert [launch.case for launch in here.ledger.measured] == list(ALL)


def test_a_case_whose_server_dies_gets_one_fresh_server(tmp_path: Path) -> None:
    dead = ServerDiedError("x")
    here = machine(tmp_path, ScriptedArms(dead, dead, dead))

    here.run(night([CaseGoal(case=EAGLE)]))

    assert here.servers.started == [EAGLE.server.id] * 2
    assert [failure.server_died for failure in here.failures] == [True, True]
    assert not here.ledger.measured


@pytest.mark.parametrize("error", [ServerDiedError("x"), HungError(120.0)])
def test_a_failed_launch_says_how_long_it_took(tmp_path: Path, error: SpecregError) -> None:
    now_s = 0.0

    def fail_slowly(*_: object) -> list[Measurement]:
        nonlocal now_s
        now_s += 7.0
        raise error

    here = machine(tmp_path, clock_s=lambda: now_s)
    here.executor.measure_arms = fail_slowly

    here.run(night([CaseGoal(case=EAGLE)]))

    assert {failure.lasted_s for failure in here.failures} == {7.0}


def test_a_case_that_cannot_be_read_starts_no_server(tmp_path: Path) -> None:
    def no_key(case: Case, _: int) -> Key:
        raise ModelError(f"model of '{case.id}': is missing")

    here = machine(tmp_path, key=no_key)

    here.run(night(timed(EAGLE)))

    assert here.servers.started == []
    (failure,) = here.failures
    assert isinstance(failure.error, ModelError)


def test_a_companion_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    def no_key_of_ngram(case: Case, number: int) -> Key:
        if case == NGRAM:
            raise ModelError("model 'x': is missing")
        return key_of(case, number)

    here = machine(tmp_path, key=no_key_of_ngram)

    here.run(night(timed(EAGLE, NGRAM)))

    assert [launch.case for launch in here.ledger.measured] == [EAGLE]
    assert [failure.case_id for failure in here.failures] == [NGRAM.id, NGRAM.id]


def test_a_server_runs_until_nothing_needs_it(tmp_path: Path) -> None:
    here = machine(tmp_path)
    other_plain = dataclasses.replace(builders.PLAIN_SPEC, models="other")
    other = dataclasses.replace(builders.on_server(models="other"), control=other_plain)
    first_night = night(timed(EAGLE, NGRAM))

    here.run(first_night)
    assert here.servers.running == {EAGLE.server.id, NGRAM.server.id, CONTROL.id}

    here.run(night([*timed(EAGLE, NGRAM), CaseGoal(case=other)]))
    assert here.servers.running == {other.server.id}


def test_a_second_launch_starts_every_server_afresh(tmp_path: Path) -> None:
    here = machine(tmp_path)

    here.run(night(timed(EAGLE), launches=2))

    names = [EAGLE.server.id, CONTROL.id]
    assert sorted(here.servers.started) == sorted([*names, *(f"{name}-launch2" for name in names)])
    assert here.servers.running == {f"{name}-launch2" for name in names}


def test_a_control_is_warmed_up_once_for_each_load_and_after_each_start(tmp_path: Path) -> None:
    here = machine(tmp_path)
    cases = [
        builders.with_concurrency(1, DRAFTING),
        builders.with_concurrency(4, EAGLE),
        builders.with_concurrency(1, NGRAM),
    ]

    here.run(dataclasses.replace(night(timed(*cases)), side_by_side=False))

    assert here.arms.last_is_warm == [False, False, True]
    here.servers.handle(CONTROL).stop()
    again = builders.with_concurrency(1, DRAFTING)
    here.run(night(timed(again), launches=2))
    assert here.arms.last_is_warm[3:] == [False]


def test_a_gpu_whose_memory_is_held_ends_the_night(tmp_path: Path) -> None:
    here = machine(tmp_path, ScriptedArms(MemoryHeldError("GPU 0: 40 GiB")))

    with pytest.raises(MemoryHeldError):
        here.run(night(timed(EAGLE)))

    assert here.failures == []


CHECKED_ONLY = CaseGoal(case=EAGLE, is_measured=False, checks=(LOSSLESS,))


def test_a_check_whose_server_died_is_made_once_more_on_a_fresh_one(tmp_path: Path) -> None:
    """The scripted server's process has ended, which explains an invalid answer."""
    gone = InvalidMeasurementError("HTTP_ERROR", answer="connection refused")
    here = machine(tmp_path, checks=checks_with(gone, EQUAL))

    here.run(night([CHECKED_ONLY]))

    assert here.servers.started.count(EAGLE.server.id) == 2
    (failure,) = here.failures
    assert (failure.check, failure.server_died) == (LOSSLESS, True)
    line = here.ledger.check(EAGLE.id, LOSSLESS)
    assert line is not None
    assert line.verdict["outcome"] == "PASS"


@pytest.mark.parametrize("error", [HungError(120.0), InvalidMeasurementError("NOTHING_DRAFTED")])
def test_a_server_that_hangs_in_a_check_is_stopped_and_no_other(
    tmp_path: Path, error: InvalidMeasurementError
) -> None:
    here = machine(tmp_path, checks=checks_with(error))
    with answering(lambda _, __: {}) as url:
        ended = builders.server(url)
        names = [field.name for field in dataclasses.fields(Server)]
        here.servers.server = Server(**{name: getattr(ended, name) for name in names})
        here.run(night([CHECKED_ONLY]))

    (failure,) = here.failures
    assert failure.error is error
    stays = not isinstance(error, HungError)
    assert here.servers.running == ({EAGLE.server.id, CONTROL.id} if stays else set())


def test_what_failed_stands_in_the_ledger(tmp_path: Path) -> None:
    here = machine(tmp_path, failing=["eagle3"])

    here.run(night([CaseGoal(case=EAGLE)]))

    (line,) = read_ledger(tmp_path / "ledger.jsonl").failed
    assert (line.case_id, line.launch, line.check) == (EAGLE.id, 1, "")
    assert line.code == "SERVER_NOT_STARTED"


def test_a_resumed_night_takes_over_what_has_the_same_key(tmp_path: Path) -> None:
    first = machine(tmp_path)
    first.run(night(timed(DRAFTING)))
    first.ledger.extend([checked(DRAFTING, LOSSLESS)])
    again = machine(tmp_path)
    again.ledger.read([again.ledger.path])

    for key in again.ledger.recorded.keys:
        again.ledger.take_over(key.__eq__)
    again.run(night(timed(DRAFTING, EAGLE, checks=())))

    assert again.arms.groups == [["eagle3", "none*"]]
    assert [launch.is_resumed for launch in again.ledger.measured] == [True, False]
    assert again.ledger.check(DRAFTING.id, LOSSLESS) is not None
