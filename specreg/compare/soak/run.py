"""Running a soak: a case and its running server in; block after block out, and what drifts."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specreg.compare.gate.memory import held_bytes
from specreg.compare.soak.block import Block, Watched, watched_of
from specreg.compare.soak.drift import LEAD_IN_FRAC, LOOKS, Drift, Look, State, drift_of
from specreg.compare.soak.journal import Journal, line_of
from specreg.compare.soak.table import render_drift
from specreg.core.errors import InvalidMeasurementError
from specreg.core.processes import resident_bytes
from specreg.datasets.prompts import Prompt
from specreg.load.chat_client import Clock
from specreg.matrix.case import Case
from specreg.measurement.arm import Arm
from specreg.measurement.measure import Plan, Workload, batch_of, measure
from specreg.measurement.metrics import Family, Replay
from specreg.servers.server import StartedServer

_BLOCKS = 100
"""How many a soak has, as near as the prompts allow; eight are needed after the lead-in."""
_NS_PER_S = 10**9


@dataclass(slots=True, kw_only=True)
class Soak:
    """One soak, and what has come of it so far.

    Attributes:
        case: whose load it is; on_gpu: whether its engine runs on a GPU.
        length_s: how long it takes, from the first block's start.
        prompts: of a block, None for as many as make a hundredth of that time.
        tolerance_frac: the loss in an hour that is fine, of all figures; None for each one's own.
        journal: gets each block as it ends, and each alarm.
        show: is told what goes on.
        clock: monotonic, in nanoseconds.
        blocks: so far; alarms_s: by figure, after how many seconds a look first showed its drift.
    """

    case: Case
    on_gpu: bool
    length_s: float
    prompts: int | None
    tolerance_frac: float | None
    journal: Journal
    show: Callable[[str], None]
    clock: Clock = time.monotonic_ns
    blocks: list[Block] = field(default_factory=list)
    alarms_s: dict[str, float] = field(default_factory=dict)

    def run(self, server: StartedServer, prompts: Sequence[Prompt]) -> None:
        """Block after block, until the time is over.

        Args:
            server: running, with nobody else using it.
            prompts: the dataset's; a block takes the first ones.

        Raises:
            InvalidMeasurementError: the warm-up generated nothing, a request failed, or a check of
                the meter broke: what came until then stays.
            ServerDiedError: the server went away.
        """
        # A block is prompts, not a time, and each begins at full load.
        load = dataclasses.replace(self.case.load, duration_s=None, ramp_up_s=0.0)
        arm = Arm(case=dataclasses.replace(self.case, load=load), server=server)
        self.show(f"{self.case.id}: warming up")
        taken = prompts[: self._warm_up(arm, prompts)]
        self.show(f"{self.case.id}: {len(taken)} prompts in each block")
        started_ns, looks = self.clock(), list(LOOKS)
        while (passed_s := (self.clock() - started_ns) / _NS_PER_S) < self.length_s:
            if looks and passed_s >= looks[0] * self.length_s:
                looks.pop(0)
                self.look(Look.EARLY)
            self.blocks.append(self._block(arm, server, taken, started_ns))
            self.journal.write(self.blocks[-1])

    def drifts(self, look: Look) -> tuple[Drift, ...]:
        """How each figure has moved so far, with the certainty of a look."""
        return tuple(
            drift_of(
                watched,
                self.blocks,
                lead_in_s=LEAD_IN_FRAC * self.length_s,
                level=look.value / len(self._watched),
                tolerance_frac=(
                    watched.tolerance_frac(self.case)
                    if self.tolerance_frac is None
                    else self.tolerance_frac
                ),
            )
            for watched in self._watched
        )

    def look(self, look: Look) -> tuple[Drift, ...]:
        """The same; of what drifts the alarm is raised, once each."""
        drifts = self.drifts(look)
        for drift in drifts:
            if drift.state is State.DRIFTS and drift.watched.name not in self.alarms_s:
                self.alarms_s[drift.watched.name] = self.passed_s
                self.journal.write(line_of(drift, self.passed_s))
                self.show(f"after {self.passed_s / 60:.1f} min: {render_drift(drift)}")
        return drifts

    @property
    def passed_s(self) -> float:
        """From the start of the first block to the end of the last, in seconds."""
        return self.blocks[-1].at_s + self.blocks[-1].lasted_s / 2 if self.blocks else 0.0

    @property
    def _watched(self) -> tuple[Watched, ...]:
        return watched_of(self.case, on_gpu=self.on_gpu)

    def _warm_up(self, arm: Arm, prompts: Sequence[Prompt]) -> int:
        """Warm the server up; how many prompts a block takes then."""
        size = batch_of(arm.case)
        (done,) = self._measured(arm, prompts[:size], warm_up=prompts)[0].rounds
        lasted_s = (done.ended_ns - done.started_ns) / _NS_PER_S
        return self.prompts or prompts_in(self.length_s / _BLOCKS, arm.case, size, lasted_s)

    def _measured(
        self, arm: Arm, prompts: Sequence[Prompt], warm_up: Sequence[Prompt] = ()
    ) -> tuple[Replay, str]:
        """What some prompts made of the server, and why their times mean nothing, if they don't."""
        plan = Plan(show=lambda _: None, parts=1, warms_up=bool(warm_up), clock=self.clock)
        (found,) = measure([arm], Workload(prompts=prompts, warm_up=warm_up), plan)
        why = found.invalid.get(Family.ACCEPTANCE, "")
        if found.replay is None or why:
            raise InvalidMeasurementError(*why.split(": ", 1))
        return found.replay, found.invalid.get(Family.LATENCY, "")

    def _block(
        self, arm: Arm, server: StartedServer, prompts: Sequence[Prompt], started_ns: int
    ) -> Block:
        replay, late = self._measured(arm, prompts)
        (done,), found = replay.rounds, replay.acceptance
        timed = bool(done.gaps.size) and not late
        gpu_bytes = held_bytes(server, on_gpu=True) if self.on_gpu else None
        return Block(
            number=len(self.blocks) + 1,
            at_s=((done.started_ns + done.ended_ns) / 2 - started_ns) / _NS_PER_S,
            lasted_s=(done.ended_ns - done.started_ns) / _NS_PER_S,
            requests=len(done.traces),
            acceptance_length_tokens=found.total.acceptance_length if found else None,
            step_ms=done.gaps.total_ns / done.gaps.size / 1e6 if timed else None,
            memory_bytes=resident_bytes(server.process) or None,
            gpu_memory_bytes=gpu_bytes,
            client_late=late,
        )


def prompts_in(within_s: float, case: Case, size: int, lasted_s: float) -> int:
    """How many prompts of a case take a time, in whole batches: one at least, all at most.

    Args:
        within_s: the time.
        case: its load.
        size: prompts of a batch of the warm-up, as many as are in flight at once.
        lasted_s: how long it took.
    """
    if case.load.requests_per_s:
        fit = math.floor(within_s * case.load.requests_per_s)
    else:
        fit = size * math.floor(within_s / lasted_s) if lasted_s else size
    return min(max(fit, size), case.prompts)
