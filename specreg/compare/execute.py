"""Do what the plan of a gate says: start the servers of its sides, measure, and compare answers."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from specreg.compare.answers import (
    ANSWERS,
    EQUAL_WHEN_TIMED,
    SavedVerdict,
    ask_a,
    compare_answers,
    were_all_equal,
)
from specreg.compare.options import GateOptions
from specreg.compare.pairs import Pair, Side
from specreg.compare.plan import GateStep
from specreg.core.errors import (
    InvalidMeasurementError,
    MemoryHeldError,
    ServerDiedError,
    SpecregError,
)
from specreg.core.reasons import Reason
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.arm import Arm
from specreg.measurement.measure import Measurement, Plan, workload_of
from specreg.runs.execute import Executor, hangs
from specreg.runs.ledger import Checked, FailedLaunch, Key, LedgerEntry, MeasuredLaunch
from specreg.servers.launch import Launch
from specreg.servers.server import Server

KeyOf = Callable[[Pair, Side, int], Key]
"""Returns the key of a pair's side on the launch with a number."""


class SideError(SpecregError):
    """Raised if a side of a gate fails.

    Attributes:
        side: the side that failed.
        started: whether its server had started.
    """

    def __init__(self, side: Side, message: str, *, started: bool = True) -> None:
        super().__init__(message)
        self.side = side
        self.started = started


@dataclass(slots=True, kw_only=True)
class GateExecutor(Executor[GateStep]):
    """Executes the steps of a gate on this machine.

    Attributes:
        options: the options of the command.
        key_of: names what is measured.
    """

    options: GateOptions
    key_of: KeyOf

    def execute(self, step: GateStep) -> Iterator[LedgerEntry]:
        """Execute a step, and yield each entry of the ledger once it is known.

        Raises:
            SideError: the server of a side has never started, neither now nor before.
            MemoryHeldError: another process holds the memory that a server needs.
            SpecregError: a server of an earlier step can't be stopped, or the ledger can't be
                written.
        """
        launches = [_launch_of(step.pair, side, step.number) for side in step.sides]
        self.servers.stop_others({*launches})

        try:
            yield from self._ask(step) if step.check else self._measure(step)
        except SideError as error:
            # A server that has started before may start again, so only its launch is lost.
            if not error.started and not self._has_started(error.side, step.pair):
                raise
            self.options.show(f"launch {step.number}, side {error.side}: {error}")
            for pair in step.pairs:
                yield _failed(step, pair, error.side, Reason(text=str(error)))
            for launch in launches:
                self.servers.handle(launch).stop()
                self.servers.handle(launch).forget_failure()

    def _start(self, step: GateStep) -> dict[Side, Server]:
        """Return the servers of a step, which are started if they don't run.

        Raises:
            SideError: a server can't start.
            MemoryHeldError: another process holds the memory that it needs.
        """
        handles = {
            side: self.servers.handle(_launch_of(step.pair, side, step.number))
            for side in step.sides
        }
        if not all(handle.is_ready for handle in handles.values()):
            # The two ids are equal if no setting differs.
            server_ids = dict.fromkeys((step.pair.a.server.id, step.pair.b.server.id))
            side_names = f"side{'s' * (len(step.sides) > 1)} {', '.join(step.sides)}"
            self.options.show(f"launch {step.number}, {side_names}: {' > '.join(server_ids)}")

        # They load at the same time. Each raises its own error when it is used.
        self.servers.start_all((), list(handles.values()))
        servers = {}
        for side, handle in handles.items():
            with blaming(side, self.options):
                servers[side] = handle.server
        return servers

    def _has_started(self, side: Side, pair: Pair) -> bool:
        """Return whether a server like that of a side has measured anything before."""
        return any(
            launch.case.server == pair.of(side).server and Side(launch.arm).is_b == side.is_b
            for launch in self.ledger.measured
        )

    def _measure(self, step: GateStep) -> Iterator[LedgerEntry]:
        """Measure a pair on the servers of a step, which take turns.

        Raises:
            SideError: a server can't start, dies or hangs, so that nothing of the launch counts.
        """
        servers = self._start(step)
        pair = step.pair
        arms = [
            Arm(case=pair.of(side), server=server, least_s=self.options.least_s)
            for side, server in servers.items()
        ]
        keys = [self.key_of(pair, side, step.number) for side in servers]
        plan = Plan(show=lambda _: None, record=self.ledger.record_round)
        workload = workload_of(pair.a, load_case_prompts(self.root, pair.a))
        try:
            self.ledger.begin(*keys)
            measurements = self.measure_arms(arms, workload, plan)
        except ServerDiedError:
            _check_alive(servers)
            raise

        # A server that hangs would hang on the pairs that are still to come.
        for side, measurement in zip(servers, measurements, strict=True):
            if hangs(measurement):
                raise SideError(side, str(_why_nothing(measurement)))
        for arm_number, (side, measurement) in enumerate(zip(servers, measurements, strict=True)):
            if measurement.replay is None:
                reason = _why_nothing(measurement)
                self.options.show(f"launch {step.number}, side {side}, {pair.id}: {reason}")
                yield _failed(step, pair, side, reason)
                continue
            self.ledger.end(measurement, arm_number=arm_number)
            yield MeasuredLaunch(
                case_id=pair.id, arm=side, number=step.number, measurement=measurement
            )

    def _ask(self, step: GateStep) -> Iterator[LedgerEntry]:
        """Generate the answers of a pair on the servers of a step, and compare them.

        If both sides were measured on this launch and all of their timed answers were equal,
        neither has to answer again.
        """
        pair = step.pair
        key_of_b = self.key_of(pair, Side.B, step.number)
        prompts = load_case_prompts(self.root, pair.a)[: pair.a.request.prompts]
        if were_all_equal(pair, step.number, prompts, self.ledger):
            yield Checked.of(key_of_b, step.check, EQUAL_WHEN_TIMED)
            return

        servers = self._start(step)
        line_of_a = self.ledger.check(pair.id, ANSWERS)
        side = Side.A
        try:
            if line_of_a is None:
                answers = ask_a(pair, servers[side], prompts)
                key_of_a = self.key_of(pair, side, step.number)
                line_of_a = Checked.of(key_of_a, ANSWERS, answers=answers)
                yield line_of_a
            side = Side.B
            if side in servers:
                self.options.show(f"{pair.id}: comparing the answers")
                verdict = compare_answers(pair, servers, prompts, line_of_a.answers)
                yield Checked.of(key_of_b, step.check, SavedVerdict.of(verdict))
        except (InvalidMeasurementError, ServerDiedError) as error:
            yield _failed(step, pair, side, Reason(text=f"side {side}: {error}"))
            for each_side in servers:
                self.servers.handle(_launch_of(pair, each_side, step.number)).stop_if_dead()


@contextlib.contextmanager
def blaming(
    side: Side, options: GateOptions, kinds: tuple[type[SpecregError], ...] = (SpecregError,)
) -> Iterator[None]:
    """Turn errors of these kinds into a SideError that names the side that can't start."""
    try:
        yield
    except MemoryHeldError:
        # Another process holds the memory, so neither side is to blame.
        raise
    except kinds as error:
        typed = options.b if side.is_b else options.a
        raise SideError(side, f"side {side} ('{typed}'): {error}", started=False) from error


def _check_alive(servers: Mapping[Side, Server]) -> None:
    """Check that no server died.

    Raises:
        SideError: one has, whose side the error names.
    """
    for side, server in servers.items():
        try:
            server.check_alive()
        except ServerDiedError as error:
            raise SideError(side, error.head) from error


def _why_nothing(measurement: Measurement) -> Reason:
    """Return why a measurement has no replay."""
    return next(iter(measurement.invalid.values()), Reason.of("nothing_measured"))


def _launch_of(pair: Pair, side: Side, number: int) -> Launch:
    """Return the launch of a side's server, which the pairs of a group share."""
    return Launch(spec=pair.of(side).server, number=number, only_for=pair.only_for, side=side)


def _failed(step: GateStep, pair: Pair, side: Side, reason: Reason) -> FailedLaunch:
    """Return the entry of a pair that a step couldn't measure, or whose answers it didn't get."""
    return FailedLaunch(
        case_id=pair.id, arm=side, number=step.number, check=step.check, reason=reason
    )
