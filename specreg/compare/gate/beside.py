"""Beside one another: servers that are up in, what each did with the same rounds out.

The rounds are short and alternate, so that whatever a shared machine does meanwhile it does to all.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from specreg.compare.gate.cores import Cores
from specreg.compare.gate.launched import Arm as Side
from specreg.core.errors import ServerDiedError, ServerError, SpecregError
from specreg.datasets.prompts import Prompt
from specreg.load.chat_client import Clock
from specreg.matrix.case import Case
from specreg.measurement.arm import Arm
from specreg.measurement.measure import Plan, measure, workload_of
from specreg.measurement.metrics import Replay
from specreg.servers.server import StartedServer

_WAVES = 2
"""A round beside others asks for as many prompts as twice fill the load."""
_NS_PER_S = 10**9


class SideError(SpecregError):
    """One of several sides failed; `arm`: which."""

    def __init__(self, arm: Side, message: str) -> None:
        super().__init__(message)
        self.arm = arm


def measure_beside(
    sides: Mapping[Side, tuple[Case, StartedServer]],
    prompts: Sequence[Prompt],
    *,
    least_s: float,
    apart: bool,
    show: Callable[[str], None],
    clock: Clock = time.monotonic_ns,
) -> Mapping[Side, Replay]:
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
    arms, (case, _) = list(sides), next(iter(sides.values()))
    plan = Plan(show=show, parts=rounds_of(case, sides=len(sides)), least_s=least_s, clock=clock)
    cores = Cores([server for _, server in sides.values()])
    with cores.kept_apart() if apart else contextlib.nullcontext():
        try:
            found = measure(
                [Arm(case=one, server=server) for one, server in sides.values()],
                workload_of(case, prompts),
                plan,
            )
        except ServerDiedError:
            for arm in arms:
                with blaming(arm):
                    sides[arm][1].check_alive()
            raise
    for arm, one in zip(arms, found, strict=True):
        if one.invalid:
            raise SideError(arm, next(iter(one.invalid.values())))
    return {arm: one.replay for arm, one in zip(arms, found, strict=True) if one.replay}


def rounds_of(case: Case, *, sides: int) -> int:
    """Into how many rounds a case's prompts are cut where so many sides are up."""
    if sides == 1 or not case.load.concurrency:
        return case.rounds
    return max(math.ceil(case.prompts / (_WAVES * case.load.concurrency)), case.rounds)


@contextlib.contextmanager
def blaming(arm: Side) -> Iterator[None]:
    """Says of a server that fails whose it is."""
    try:
        yield
    except ServerError as error:
        raise SideError(arm, str(error).splitlines()[0]) from error
