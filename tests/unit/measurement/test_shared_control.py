"""Several cases beside one control, end to end against scripted servers."""

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
import pytest

from specreg.acceptance.record import AcceptanceRecord
from specreg.core.errors import ServerDiedError
from specreg.core.families import Family
from specreg.load.chat_client import Record
from specreg.matrix.case import Load
from specreg.measurement.arm import Arm, StoppingRule, has_all_prompts
from specreg.measurement.measure import (
    Measurement,
    Plan,
    balanced_orders,
    combine_with_control,
    measure,
    workload_of,
)
from specreg.servers.server import Server
from specreg.stats.intervals import Look
from tests.doubles.vllm.script import BEFORE_ROUNDS, DEFAULTS, SLOWING, Fault, Script
from tests.unit import builders
from tests.unit.builders.busy_machines import duration_s, invalid_if_idle
from tests.unit.builders.started_servers import start

QUIET = Plan(show=lambda _: None, clock=lambda: time.monotonic_ns() // 3)
"""Its clock is slow, so that a busy machine doesn't put the client behind."""
CASE = dataclasses.replace(builders.CASE, load=Load(concurrency=1), control=builders.PLAIN_SPEC)
PLAIN = dataclasses.replace(CASE, server=builders.PLAIN_SPEC, control=None)
SCRIPTS = {
    "quick": Script(step_ms=4.0),
    "slow": Script(step_ms=16.0),
    "control": Script(step_ms=16.0),
    "failing": Script(
        fault=Fault.HTTP_500, fault_after_requests=BEFORE_ROUNDS + 2, step_ms=4.0, stretches=SLOWING
    ),
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Server]]:
    started: dict[str, Server] = {}
    quick = start(tmp_path_factory.mktemp("quick"), SCRIPTS["quick"])
    slow = start(tmp_path_factory.mktemp("slow"), SCRIPTS["slow"])
    control = start(
        tmp_path_factory.mktemp("control"), SCRIPTS["control"], spec=builders.PLAIN_SPEC
    )
    with quick as started["quick"], slow as started["slow"], control as started["control"]:
        yield started


def arm_of(server: Server, *, least_s: float = 0.0, enough: StoppingRule = has_all_prompts) -> Arm:
    return Arm(case=CASE, server=server, least_s=least_s, enough=enough)


def control_of(servers: Mapping[str, Server], *, least_s: float = 0.0) -> Arm:
    return Arm(case=PLAIN, server=servers["control"], is_control=True, least_s=least_s)


def measured(*arms: Arm, plan: Plan = QUIET) -> tuple[Measurement, ...]:
    return measure(arms, workload_of(CASE, builders.PROMPTS), plan)


def rounds_of(measurement: Measurement) -> int:
    assert measurement.replay is not None
    return len(measurement.replay.rounds)


def needed_all_rounds(case: Measurement, control: Measurement) -> bool:
    """Whether case or control lacked time before the prompts were replayed the last time."""
    rounds_before = rounds_of(case) - CASE.rounds
    assert case.replay is not None
    assert control.replay is not None
    durations_s = [
        duration_s(arm_rounds[:rounds_before])
        for arm_rounds in (case.replay.rounds, control.replay.rounds)
    ]
    return min(durations_s) < 0.5


@pytest.mark.parametrize("arms", range(1, 8))
def test_each_arm_has_each_place_and_follows_each_other_arm_equally_often(arms: int) -> None:
    orders = balanced_orders(arms)

    places = Counter((position, arm) for order in orders for position, arm in enumerate(order))
    neighbours = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(places) == arms**2
    assert len(set(places.values())) == 1
    assert len(neighbours) == arms * (arms - 1)
    assert len(set(neighbours.values())) <= 1
    for order, next_order in zip(orders[::2], orders[1::2], strict=True):
        assert list(next_order) == list(order)[::-1]


def test_cases_beside_one_control_take_turns_and_have_its_rounds(
    servers: Mapping[str, Server],
) -> None:
    turns: list[tuple[int, int | None]] = []

    def record(arm: int, number: int | None) -> Record:
        turns.append((arm, number))
        return lambda _: None

    plan = dataclasses.replace(QUIET, record=record)
    quick, slow, control = measured(
        arm_of(servers["quick"]), arm_of(servers["slow"]), control_of(servers), plan=plan
    )

    assert turns[:6] == [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)]
    assert Counter(arm for arm, _ in turns) == {0: CASE.rounds, 1: CASE.rounds, 2: CASE.rounds}
    speedups = {}
    for name, case in (("quick", quick), ("slow", slow)):
        combined = combine_with_control(case, control)
        assert invalid_if_idle(combined) == {}
        assert combined.replay is not None
        assert control.replay is not None
        assert combined.replay.control_rounds == control.replay.rounds
        if Family.SPEEDUP not in combined.invalid:
            speedups[name] = combined.values["speedup_ratio"]
    if len(speedups) == 2:
        assert speedups["quick"] > 1.5 * speedups["slow"]
    truths = [
        builders.truth(prompt, DEFAULTS) for prompt in builders.PROMPTS[: CASE.request.prompts]
    ]
    assert quick.acceptance is not None
    assert quick.acceptance.total == builders.counts_of(truths)
    assert quick.acceptance == slow.acceptance


def test_an_arm_that_had_its_time_leaves_and_the_control_stays_for_the_rest(
    servers: Mapping[str, Server],
) -> None:
    """Each is asked for a quarter of a second, and leaves with the prompts that complete it."""
    quick, slow, control = measured(
        arm_of(servers["quick"], least_s=0.25),
        arm_of(servers["slow"], least_s=0.25),
        control_of(servers),
    )

    assert rounds_of(slow) <= rounds_of(quick) == rounds_of(control)
    combined = combine_with_control(slow, control)
    assert combined.replay is not None
    assert control.replay is not None
    assert combined.replay.control_rounds == control.replay.rounds[: rounds_of(slow)]
    for arm in (slow, quick):
        assert arm.replay is not None
        assert duration_s(arm.replay.rounds) >= 0.25
        assert needed_all_rounds(arm, control)


def test_a_control_that_is_a_case_itself_has_its_time_too(servers: Mapping[str, Server]) -> None:
    quick, control = measured(arm_of(servers["quick"]), control_of(servers, least_s=0.5))

    assert rounds_of(quick) == CASE.rounds
    assert control.replay is not None
    assert duration_s(control.replay.rounds) >= 0.5


def test_a_case_that_fails_leaves_the_others_and_the_control(
    tmp_path_factory: pytest.TempPathFactory, servers: Mapping[str, Server]
) -> None:
    with start(tmp_path_factory.mktemp("failing"), SCRIPTS["failing"]) as failing_server:
        failing, quick, control = measured(
            arm_of(failing_server), arm_of(servers["quick"]), control_of(servers)
        )

    assert failing.invalid.keys() == set(Family)
    assert failing.replay is None
    assert (invalid_if_idle(quick), invalid_if_idle(control)) == ({}, {})
    combined = combine_with_control(quick, control)
    assert Family.SPEEDUP in combined.invalid or combined.values["speedup_ratio"] > 0


def test_a_case_whose_server_dies_is_named_and_nothing_is_measured(
    tmp_path_factory: pytest.TempPathFactory, servers: Mapping[str, Server]
) -> None:
    script = msgspec.structs.replace(SCRIPTS["failing"], fault=Fault.CRASH_MID_RUN)
    died = pytest.raises(ServerDiedError, match="while it was measured")
    with start(tmp_path_factory.mktemp("dying"), script) as dying_server, died:
        measured(arm_of(dying_server), arm_of(servers["quick"]), control_of(servers))


def test_each_case_decides_by_itself_whether_it_needs_the_extension(
    servers: Mapping[str, Server],
) -> None:
    def never(_: AcceptanceRecord | None, __: Look) -> bool:
        return False

    quick, slow, control = measured(
        arm_of(servers["quick"], enough=never), arm_of(servers["slow"]), control_of(servers)
    )

    assert (quick.look, slow.look, control.look) == (Look.EXTENDED, Look.FULL, Look.FULL)
    assert quick.acceptance is not None
    assert slow.acceptance is not None
    assert len(quick.acceptance.prompts) == len(builders.PROMPTS)
    assert len(slow.acceptance.prompts) == CASE.request.prompts
    assert rounds_of(quick) == rounds_of(slow)
