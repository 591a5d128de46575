"""One sitting: the servers that a slot takes in, what became of each case on them out."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from specreg.compare.gate.beside import SideError, blaming, measure_beside
from specreg.compare.gate.going import Slot
from specreg.compare.gate.hearing import Hearing
from specreg.compare.gate.launched import Arm, Launched, values_beside
from specreg.compare.gate.memory import held_bytes
from specreg.compare.gate.pinning import why_not_pinned
from specreg.compare.gate.plan import Pair, Shared
from specreg.core.errors import HungError, ServerError
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.servers.server import StartedServer

StartServer = Callable[
    [Case, Arm, str], contextlib.AbstractContextManager[tuple[StartedServer, float]]
]
"""A case, a side and a name for the log in; the server, and after how many seconds it was ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and how a gate runs.

    Attributes:
        root: the repository's root; folder: of what the gate leaves.
        on_gpu: whether the engines run on a GPU.
        ready_within_s: how long a server may take to its first token.
        least_s: how long a launch is asked, at least, where speed counts.
        show: is told what goes on.
    """

    root: Path
    folder: Path
    on_gpu: bool
    ready_within_s: float
    least_s: float
    show: Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Sitting:
    """Servers that are up at the same time, and what was measured on them.

    Attributes:
        place: see there; hearing: of the answers' texts.
        shared: what is measured; slot: on which sides, in which block.
        start: starts a server.
        values: of each server itself, by its side.
    """

    place: Place
    hearing: Hearing
    shared: Shared
    slot: Slot
    start: StartServer
    _measured: list[Launched] = field(default_factory=list)
    values: dict[Arm, dict[str, float]] = field(default_factory=dict)

    def run(self, stack: contextlib.ExitStack) -> None:
        """Measures all that share the servers, which end with the stack.

        What fails is told, not raised: of the side that failed, while nothing is told of those that
        were up with it.
        """
        try:
            servers = {arm: self._started(arm, stack) for arm in self.slot.arms}
            for pair in self.shared.pairs:
                self._measured += self._measure(pair, servers)
                self.hearing.listen(pair, servers)
            for arm, server in servers.items():
                if memory := held_bytes(server, on_gpu=self.place.on_gpu):
                    self.values[arm]["memory_bytes"] = float(memory)
        except SideError as error:
            self.place.show(f"block {self.slot.block}, side {error.arm}: {error}")
            told = {one.case_id for one in self._measured}
            left = [pair for pair in self.shared.pairs if pair.id not in told]
            # A side that fails once all is measured, as its answers are compared, has failed too.
            self._measured += [self._failed(pair, error) for pair in left or self.shared.pairs[-1:]]

    @property
    def launches(self) -> list[Launched]:
        """What is there so far; what a server says of itself stands with its first case."""
        first = self.shared.pairs[0].id
        return [
            msgspec.structs.replace(one, values={**one.values, **self.values.get(one.arm, {})})
            if one.case_id == first
            else one
            for one in self._measured
        ]

    def _started(self, arm: Arm, stack: contextlib.ExitStack) -> StartedServer:
        case = self.shared.pairs[0].of(arm)
        with blaming(arm):
            name = f"{self.slot.number:03}-{arm}-{case.server.id}"
            server, ready_s = stack.enter_context(self.start(case, arm, name))
        self.values[arm] = {"ready_s": ready_s}
        return server

    def _measure(self, pair: Pair, servers: Mapping[Arm, StartedServer]) -> list[Launched]:
        """A case on all sides, or the side that failed while its server lives on."""
        prompts = load_case_prompts(self.place.root, pair.a)
        sides = {arm: (pair.of(arm), server) for arm, server in servers.items()}
        try:
            replays = measure_beside(
                sides,
                prompts,
                least_s=self.place.least_s,
                # An engine on a GPU is held up by its host now and then; nobody crowds it here.
                apart=not self.place.on_gpu,
                show=lambda _: None,
            )
        except SideError as error:
            if isinstance(error.__cause__, ServerError | HungError):
                raise
            self.place.show(f"block {self.slot.block}, side {error.arm}, {pair.id}: {error}")
            return [self._failed(pair, error)]
        values = values_beside({arm: (sides[arm][0], one) for arm, one in replays.items()})
        return [
            Launched(
                case_id=pair.id,
                arm=arm,
                block=self.slot.block,
                number=self.slot.number,
                values=values[arm],
                acceptance=replay.acceptance,
                engine_version=servers[arm].engine_version,
                invalid=why_not_pinned(sides[arm][0], replay.acceptance),
            )
            for arm, replay in replays.items()
        ]

    def _failed(self, pair: Pair, error: SideError) -> Launched:
        return Launched(
            case_id=pair.id,
            arm=error.arm,
            block=self.slot.block,
            number=self.slot.number,
            invalid=str(error),
        )
