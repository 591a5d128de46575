"""Executing the steps of a gate: what is started, and what is lost if a side fails."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specreg.compare.execute import GateExecutor, SideError
from specreg.compare.options import GateOptions
from specreg.compare.pairs import COMPARED, Pair, Side
from specreg.compare.plan import GateStep
from specreg.core.errors import HungError, ServerDiedError, ServerStartError
from specreg.core.families import ALL, Family
from specreg.core.reasons import Reason
from specreg.measurement.arm import Arm
from specreg.measurement.measure import Measurement
from specreg.runs.ledger import LEDGER, FailedLaunch, Ledger, MeasuredLaunch, read_ledger
from specreg.servers.handle import ServerHandle, Servers
from specreg.servers.launch import Launch
from specreg.servers.server import Server
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.gates import PAIR, key_of, launch

OTHER_CASE = builders.with_concurrency(4)
OTHER = Pair(a=OTHER_CASE, b=OTHER_CASE)
STEP = GateStep((PAIR, OTHER), 1, COMPARED)
HANGS = dict.fromkeys(ALL, HungError(60.0).reason)
REFUSES = dict.fromkeys(ALL, Reason(code="REFUSED", text="400"))


@dataclass(slots=True, kw_only=True, eq=False)
class SideServers(Servers):
    """Servers that are ready at once.

    Attributes:
        failing: the sides whose servers don't start.
        started: the ids of the launches that were started, in order.
    """

    failing: frozenset[Side] = frozenset()
    started: list[str] = field(default_factory=list)

    def handle(self, launch: Launch) -> ServerHandle:
        handle = runs.handle(launch, lambda _: self._scripted(launch))
        return self._handles.setdefault(launch, handle)

    def _scripted(self, launch: Launch) -> AbstractContextManager[Server]:
        self.started.append(launch.id)
        if launch.side in self.failing:
            raise ServerStartError("SERVER_NOT_STARTED: x", "ended", "look", Path("log"), "")
        return contextlib.nullcontext(builders.server())


@dataclass
class Machine:
    """A machine on which a gate of two pairs that share their servers takes its first steps.

    Attributes:
        executor: executes the steps.
        servers: its servers.
        shown: what it says.
    """

    executor: GateExecutor
    servers: SideServers
    shown: list[str]

    def take(self, step: GateStep) -> Ledger:
        """Take a step, and return the ledger."""
        self.executor.ledger.extend(self.executor.execute(step))
        return self.executor.ledger


def machine(
    folder: Path,
    *,
    failing: Sequence[Side] = (),
    invalid_on_b: Mapping[Family, Reason] | None = None,
) -> Machine:
    """A machine of which side B may fail."""

    def measure_arms(arms: Sequence[Arm], *_: object) -> list[Measurement]:
        measurements = []
        for side, arm in zip(COMPARED, arms, strict=True):
            measurement = launch(side, 1).measurement
            if side.is_b and invalid_on_b is not None:
                measurement = dataclasses.replace(
                    measurement, replay=None, values={}, invalid=invalid_on_b
                )
            measurements.append(dataclasses.replace(measurement, case=arm.case))
        return measurements

    run_servers = runs.all_servers(runs.context(folder))
    servers = SideServers(
        launcher=run_servers.launcher, logs=folder / "logs", failing=frozenset(failing)
    )
    shown: list[str] = []
    options = GateOptions(a="vllm==1", b="vllm==2", root=builders.ROOT, show=shown.append)
    executor = GateExecutor(
        root=builders.ROOT,
        servers=servers,
        ledger=Ledger(folder / LEDGER),
        options=options,
        key_of=key_of,
        measure_arms=measure_arms,
    )
    return Machine(executor, servers, shown)


def test_pairs_of_a_group_are_measured_on_the_same_servers(tmp_path: Path) -> None:
    here = machine(tmp_path)

    here.take(STEP)
    ledger = here.take(GateStep((OTHER,), 1, COMPARED))

    launched = [(launch.case_id, launch.arm) for launch in ledger.measured]
    assert launched == [(pair.id, side) for pair in (PAIR, OTHER) for side in COMPARED]
    server_id = PAIR.a.server.id
    assert here.servers.started == [f"001-A-{server_id}", f"001-B-{server_id}"]
    assert here.shown == [f"launch 1, sides A, B: {server_id}"]
    recorded = read_ledger(tmp_path / LEDGER).measured
    assert [(key.case_id, key.arm) for key in recorded] == launched


def test_the_next_launch_has_servers_of_its_own(tmp_path: Path) -> None:
    here = machine(tmp_path)

    here.take(STEP)
    here.take(GateStep((PAIR,), 2, (Side.B, Side.A)))

    server_id = PAIR.a.server.id
    assert here.servers.started[2:] == [f"002-B-{server_id}", f"002-A-{server_id}"]
    running = [launch.id for launch, handle in here.servers._handles.items() if handle.is_up]  # noqa: SLF001 - what runs
    assert running == here.servers.started[2:]


def test_a_side_that_never_started_ends_the_gate(tmp_path: Path) -> None:
    here = machine(tmp_path, failing=[Side.B])

    with pytest.raises(SideError, match=r"side B \('vllm==2'\): SERVER_NOT_STARTED"):
        here.take(STEP)

    assert not (tmp_path / LEDGER).exists()


def test_a_side_that_started_before_costs_a_launch_and_starts_again(tmp_path: Path) -> None:
    here = machine(tmp_path, failing=[Side.B])
    here.executor.ledger.add(launch(Side.B, 1))

    ledger = here.take(STEP._replace(number=2))

    assert [(failure.case_id, failure.arm) for failure in ledger.failures] == [
        (PAIR.id, Side.B),
        (OTHER.id, Side.B),
    ]
    here.servers.failing = frozenset()
    ledger = here.take(STEP._replace(number=2))
    assert [launch.number for launch in ledger.measured] == [1, 2, 2]


def test_a_server_that_hangs_costs_the_launch_of_all_pairs_on_it(tmp_path: Path) -> None:
    here = machine(tmp_path, invalid_on_b=HANGS)

    ledger = here.take(STEP)

    assert ledger.measured == ()
    assert [(failure.case_id, failure.arm) for failure in ledger.failures] == [
        (PAIR.id, Side.B),
        (OTHER.id, Side.B),
    ]


def test_a_side_that_measured_nothing_is_lost_alone(tmp_path: Path) -> None:
    here = machine(tmp_path, invalid_on_b=REFUSES)

    ledger = here.take(STEP)

    assert [type(launch) for launch in ledger.launches] == [MeasuredLaunch, FailedLaunch]
    (failure,) = ledger.failures
    assert (failure.case_id, failure.arm, failure.reason.code) == (PAIR.id, Side.B, "REFUSED")


def test_a_server_that_dies_is_named_by_its_side(tmp_path: Path) -> None:
    """The process of these servers has ended, so A is the first that is found dead."""
    here = machine(tmp_path)

    def die(*_: object) -> Sequence[Measurement]:
        raise ServerDiedError("SERVER_DIED: x")

    here.executor.measure_arms = die

    ledger = here.take(STEP)

    assert {failure.arm for failure in ledger.failures} == {Side.A}
    assert [failure.case_id for failure in ledger.failures] == [PAIR.id, OTHER.id]
