"""Measuring and checking cases: at most once, again on a fresh server, or taken over."""

import contextlib
import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from specreg.acceptance.record import StepCounts
from specreg.core.errors import (
    HungError,
    InvalidMeasurementError,
    MemoryHeldError,
    ServerDiedError,
    SpecregError,
)
from specreg.core.reasons import Reason
from specreg.correctness.checks import LOSSLESS, CorrectnessCheck, RunningCase
from specreg.engines.server_spec import ServerSpec
from specreg.measurement.arm import Arm, StoppingRule
from specreg.measurement.measure import Measurement, Plan, Workload
from specreg.runs.goals import CaseLaunch
from specreg.runs.ledger import read_ledger
from specreg.servers.handle import ServerHandle
from specreg.servers.launch import Launch
from specreg.servers.server import Server
from specreg.stats.intervals import Look
from specreg.suite.case_runner import CaseRunner
from specreg.suite.result import Run
from specreg.suite.server_set import ServerSet
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.http_servers import answering
from tests.unit.builders.runs import LAUNCH, MEASURED

EQUAL = Verdict(case_id=builders.CASE.id, metric=LOSSLESS, outcome=Outcome.PASS)
METHODS = [
    dataclasses.replace(builders.on_server(method=name), control=builders.PLAIN_SPEC)
    for name in ("draft_model", "eagle3", "ngram")
]


def check_of(*results: Verdict | SpecregError) -> CorrectnessCheck:
    """A check that ends in these results, one after the other."""
    results_left = iter(results)

    def check(_: RunningCase) -> Verdict:
        result = next(results_left)
        if isinstance(result, SpecregError):
            raise result
        return result

    return CorrectnessCheck(LOSSLESS, check)


def test_a_server_that_failed_to_start_is_not_tried_again() -> None:
    errors = iter([ServerDiedError("first"), ServerDiedError("second")])

    def start(_: ServerSpec) -> AbstractContextManager[Server]:
        raise next(errors)

    handle = runs.handle(LAUNCH, start)

    for _ in range(2):
        with pytest.raises(ServerDiedError, match="first"):
            _ = handle.server


def test_a_measurement_whose_server_dies_is_tried_twice_and_not_again(tmp_path: Path) -> None:
    started: list[Server] = []
    run = runs.run(runs.context(tmp_path))
    servers = ServerSet(runs.handle(LAUNCH, lambda _: runs.ready(started)))

    for _ in range(2):
        with pytest.raises(ServerDiedError):
            run.cases.measure(builders.CASE, servers)

    assert len(started) == 2
    (remark,) = run.cases.retried
    assert remark.startswith(f"{builders.CASE.id}: measured again, SERVER_DIED: ")


def test_a_check_whose_server_died_is_made_once_more_on_a_fresh_one(tmp_path: Path) -> None:
    started: list[Server] = []
    context = runs.context(tmp_path)
    run = runs.run(context)
    servers = ServerSet(runs.handle(LAUNCH, lambda _: runs.ready(started)))
    gone = InvalidMeasurementError("HTTP_ERROR", "connection refused")

    verdict = run.judge.check(check_of(gone, EQUAL), builders.CASE, servers)

    assert verdict is EQUAL
    assert len(started) == 2
    assert run.judge.verdicts == (EQUAL,)
    (remark,) = run.cases.retried
    assert remark.startswith(f"{builders.CASE.id}: lossless_frac checked again, SERVER_DIED: ")
    assert "ended with status 1" in remark

    again = runs.run(context, resumed=read_ledger(run.cases.ledger.path))
    assert again.cases.check(check_of(), builders.CASE, runs.servers()) == EQUAL


@pytest.mark.parametrize("error", [HungError(120.0), InvalidMeasurementError("UNSTEADY", "x")])
def test_a_server_that_hangs_in_a_check_is_stopped_and_no_other(
    tmp_path: Path, error: SpecregError
) -> None:
    with answering(lambda _, __: {}) as url:
        ended = builders.server(url)
        names = [field.name for field in dataclasses.fields(Server)]
        alive = Server(**{name: getattr(ended, name) for name in names})
        server, control = (
            runs.handle(LAUNCH, lambda _: contextlib.nullcontext(alive)) for _ in range(2)
        )
        run = runs.run(runs.context(tmp_path))
        with pytest.raises(type(error)):
            run.cases.check(check_of(error), builders.CASE, ServerSet(server, control))

    stays = not isinstance(error, HungError)
    assert (server.is_ready, control.is_ready) == (stays, stays)


def failing_run(folder: Path, error: SpecregError) -> Run[CaseRunner]:
    """A run in which the second launch of the case has failed."""
    run = runs.run(runs.context(folder))
    second = dataclasses.replace(LAUNCH, number=2)

    def start(_: ServerSpec) -> AbstractContextManager[Server]:
        raise error

    failed = runs.handle(second, start)
    with pytest.raises(type(error)):
        run.cases.measure(builders.CASE, ServerSet(failed))
    return run


def test_a_fresh_launch_that_fails_says_why_and_the_run_goes_on(tmp_path: Path) -> None:
    run = failing_run(tmp_path, SpecregError("server 'x': ended\nits log"))
    results = run.cases.measure_afresh([builders.CASE], 2)
    assert results == {builders.CASE.id: Reason(text="server 'x': ended")}


def test_a_fresh_launch_without_its_memory_ends_the_run(tmp_path: Path) -> None:
    run = failing_run(tmp_path, MemoryHeldError("GPU 0: 40 GiB"))
    with pytest.raises(MemoryHeldError):
        run.cases.measure_afresh([builders.CASE], 2)


def test_a_fresh_launch_that_is_measured_already_stops_no_server(tmp_path: Path) -> None:
    """With three launches, a loss in each of them asks for the fourth."""
    context = runs.context(tmp_path, launches=3)
    everything = runs.everything(context)
    resumed = runs.resumed_from(context, everything, MEASURED, first=4)
    run = runs.run(context, everything, resumed=resumed)
    with run.cases.servers.start(LAUNCH) as handle:
        handle.launcher = runs.handle(LAUNCH).launcher
        for stays in (False, True):
            _ = handle.server
            results = run.cases.measure_afresh([builders.CASE], 4)
            assert results == {builders.CASE.id: MEASURED}
            assert handle.is_ready == stays


class ScriptedArms:
    """Measures nothing, and notes whether the last arm of each measurement was warm."""

    def __init__(self) -> None:
        self.last_is_warm: list[bool] = []

    def __call__(self, arms: Sequence[Arm], *_: object) -> list[Measurement]:
        self.last_is_warm.append(arms[-1].warm)
        empty = builders.measurement({})
        return [dataclasses.replace(empty, case=arm.case) for arm in arms]


def ready_handle(launch: Launch) -> ServerHandle:
    """A launch whose server is ready at once."""
    return runs.handle(launch)


def test_a_control_is_warmed_up_once_for_each_load_and_after_each_start(tmp_path: Path) -> None:
    arms = ScriptedArms()
    run = runs.run(runs.context(tmp_path, update_baselines=True), measure_arms=arms)
    control = ready_handle(CaseLaunch.of(METHODS[0], 1).control)
    cases = [
        builders.with_concurrency(1, METHODS[0]),
        builders.with_concurrency(4, METHODS[1]),
        builders.with_concurrency(1, METHODS[2]),
    ]

    for number, case in enumerate(cases, start=1):
        server = ready_handle(CaseLaunch.of(case, number).server)
        run.cases.measure(case, ServerSet(server, control))
    assert arms.last_is_warm == [False, False, True]

    control.stop()
    server = ready_handle(CaseLaunch.of(cases[0], 4).server)
    run.cases.measure(cases[0], ServerSet(server, control))
    assert arms.last_is_warm[3:] == [False]


def test_a_set_of_servers_has_a_control_only_where_the_case_has_one() -> None:
    server = ready_handle(LAUNCH)
    control = ready_handle(dataclasses.replace(LAUNCH, spec=builders.PLAIN_SPEC))

    assert list(ServerSet.of(METHODS[0], server, control)) == [server, control]
    assert list(ServerSet.of(builders.CASE, server, control)) == [server]


@pytest.mark.parametrize(
    ("second", "is_enough"),
    [
        pytest.param(runs.COUNTS, True, id="repeats-the-first"),
        pytest.param(builders.counts(9, 0, 5, 6), False, id="differs"),
    ],
)
def test_a_further_recorded_launch_replays_all_prompts_unless_it_repeats(
    tmp_path: Path, *, second: StepCounts, is_enough: bool
) -> None:
    """The prompts of the extension would repeat as well."""
    rules: list[StoppingRule] = []

    def measure_arms(arms: Sequence[Arm], _: Workload, __: Plan) -> Sequence[Measurement]:
        rules.append(arms[0].enough)
        return [MEASURED] * len(arms)

    context = runs.context(tmp_path, update_baselines=True)
    run = runs.run(context, measure_arms=measure_arms)
    for number in (1, 2):
        handle = runs.handle(dataclasses.replace(LAUNCH, number=number))
        run.cases.measure(builders.CASE, ServerSet(handle))

    first_rule, second_rule = rules
    assert not first_rule(MEASURED.acceptance, Look.FULL)
    acceptance = builders.acceptance(second, prompts=3)
    assert second_rule(acceptance, Look.FULL) == is_enough
    without_prompts = dataclasses.replace(acceptance, prompts=())
    assert second_rule(without_prompts, Look.FULL), "more prompts say no more about a sum"
