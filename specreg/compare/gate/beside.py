"""Beside one another: servers that are up in, what each did with the same rounds out.

The rounds are short and alternate, so that whatever a shared machine does meanwhile it does to all.
"""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import uvloop

from specreg.compare.gate.cores import Cores
from specreg.compare.gate.launched import Arm
from specreg.core.errors import InvalidMeasurementError, ServerError, SpecregError
from specreg.datasets.prompts import Prompt
from specreg.load.chat_client import Clock
from specreg.matrix import Case
from specreg.measurement.arm import Lane, open_lane, warm_up
from specreg.measurement.measure import check_client, deal
from specreg.measurement.metrics import Replay
from specreg.servers.server import StartedServer

_WAVES = 2
"""A round beside others asks for as many prompts as twice fill the load."""
_NS_PER_S = 10**9


class SideError(SpecregError):
    """One of several sides failed; `arm`: which."""

    def __init__(self, arm: Arm, message: str) -> None:
        super().__init__(message)
        self.arm = arm


def measure_beside(
    sides: Mapping[Arm, tuple[Case, StartedServer]],
    prompts: Sequence[Prompt],
    *,
    least_s: float,
    apart: bool,
    show: Callable[[str], None],
    clock: Clock = time.monotonic_ns,
) -> Mapping[Arm, Replay]:
    """Replays a case's prompts on each side, a round here and a round there.

    What was accepted is told of the first time that all prompts are replayed; where speed counts,
    they are replayed again until each side has had enough, unless a drafter learns from them.

    Args:
        sides: of each its case and its running server, with nobody else using it.
        prompts: the dataset's; as many as the cases take are replayed.
        least_s: how long each side is asked for, at least, where speed counts.
        apart: whether what computes has cores of its own meanwhile, see `Cores`.
        show: is told what goes on.
        clock: monotonic, in nanoseconds.

    Raises:
        SideError: a check broke on one side, or its server went away.
    """
    try:
        return uvloop.run(
            _measure(sides, prompts, least_s=least_s, apart=apart, show=show, clock=clock)
        )
    except SideError as error:
        # A server that is gone is the first reason. It is asked outside of the loop.
        with blaming(error.arm):
            sides[error.arm][1].check_alive()
        raise


async def _measure(
    sides: Mapping[Arm, tuple[Case, StartedServer]],
    prompts: Sequence[Prompt],
    *,
    least_s: float,
    apart: bool,
    show: Callable[[str], None],
    clock: Clock,
) -> Mapping[Arm, Replay]:
    case = next(iter(sides.values()))[0]
    taken = prompts[: case.prompts]
    spare = prompts[2 * case.prompts :] or taken
    parts = deal(taken, rounds_of(case, sides=len(sides)))
    async with contextlib.AsyncExitStack() as stack:
        lanes = {
            arm: await stack.enter_async_context(open_lane(*side, clock=clock))
            for arm, side in sides.items()
        }
        cores = Cores([server for _, server in sides.values()])
        show(f"{case.id}: warming up")
        for arm, lane in lanes.items():
            with _blaming(arm):
                await warm_up(lane.case, spare, lane.crew.replay_under)
                await lane.begin()
        if apart:
            stack.enter_context(cores.kept_apart())
        show(f"{case.id}: measuring")
        # Each order in turn, so that nobody is always the first, or always comes after another.
        orders = itertools.cycle(itertools.permutations(lanes))
        done: dict[Arm, Replay] = {}
        again = case.speed and not case.needs_fresh_server
        while not done or (again and _least_replayed_s(lanes) < least_s):
            for part, order in zip(parts, orders, strict=False):
                for arm in order:
                    with _blaming(arm):
                        await lanes[arm].replay(part)
            if not done:
                for arm, lane in lanes.items():
                    with _blaming(arm):
                        done[arm] = await _replay_of(lane)
        for arm, lane in lanes.items():
            with _blaming(arm):
                check_client(lane.rounds)
    return {
        arm: dataclasses.replace(replay, rounds=tuple(lanes[arm].rounds))
        for arm, replay in done.items()
    }


def rounds_of(case: Case, *, sides: int) -> int:
    """Into how many rounds a case's prompts are cut where so many sides are up."""
    if sides == 1 or not case.load.concurrency:
        return case.rounds
    return max(math.ceil(case.prompts / (_WAVES * case.load.concurrency)), case.rounds)


def _least_replayed_s(lanes: Mapping[Arm, Lane]) -> float:
    """How long the side that has been asked for the shortest time was."""
    return min(
        sum(part.ended_ns - part.started_ns for part in lane.rounds) / _NS_PER_S
        for lane in lanes.values()
    )


async def _replay_of(lane: Lane) -> Replay:
    accepted, gauges = await lane.acceptance()
    return Replay(
        rounds=tuple(lane.rounds),
        control_rounds=(),
        acceptance=accepted,
        limits=lane.case.limits,
        gauges=gauges,
    )


@contextlib.contextmanager
def _blaming(arm: Arm) -> Iterator[None]:
    """Says of what goes wrong on which side it did."""
    try:
        yield
    except InvalidMeasurementError as error:
        raise SideError(arm, str(error)) from error


@contextlib.contextmanager
def blaming(arm: Arm) -> Iterator[None]:
    """Says of a server that fails whose it is."""
    try:
        yield
    except ServerError as error:
        raise SideError(arm, str(error).splitlines()[0]) from error
