"""Simulated gates: two sides that differ by a known loss, launches drawn at random.

Prompts, acceptance and the spread of launches are those of `specreg.verdicts.simulation`. Some
prompts have
the same answer at each launch, as greedy ones do where rounding chooses nothing; the others have
another one each time. Sides with the same answer accept by the same draws, as a drafter that is a
little worse fails where the better one was close to.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    PromptAcceptance,
    Source,
    StepCounts,
    View,
    Weighting,
)
from specreg.compare.gate.answer import Decision, decide
from specreg.compare.gate.going import Group, Slot, go_on
from specreg.compare.gate.judging import Rules, Subject, count_figures
from specreg.compare.gate.launched import Arm, Launched
from specreg.compare.gate.quantities import QUANTITIES
from specreg.verdicts.simulation import (
    LAUNCH_SPREAD_FRAC,
    PROMPT_SPREAD,
    PROMPTS,
    RATES,
    STEPS,
    accepted_frac,
    shift_of,
)

CASES = 3
BLOCKS = 8
_STEP_MS, _TTFT_MS, _READY_S, _MEMORY_BYTES = 8.0, 40.0, 30.0, 2.5e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What side B loses: of AL - 1, and what a step, the prefill and a start take longer, 0..1."""

    acceptance_frac: float = 0.0
    step_frac: float = 0.0
    prefill_frac: float = 0.0
    start_up_frac: float = 0.0


NOTHING = Planted()


@dataclass(slots=True, kw_only=True)
class Scene:
    """Two sides to draw launches of.

    Attributes:
        random: draws.
        planted: what B loses in each case.
        repeating_frac: the share of the prompts whose answers repeat, 0..1.
        launch_spread_frac: how launches differ, as a standard deviation of logarithms.
        drift_frac: how much slower the machine becomes from one launch to the next.
        moved_frac: how much slower each launch of A2 is, as if the machine had moved.
        machine_spread_frac: how the machine differs from one time to another; launches that are up
            at the same time share that.
    """

    random: np.random.Generator
    planted: Planted = NOTHING
    repeating_frac: float = 0.5
    launch_spread_frac: float = LAUNCH_SPREAD_FRAC
    drift_frac: float = 0.0
    moved_frac: float = 0.0
    machine_spread_frac: float = 0.0
    _slow_frac: float = 1.0
    _prompts: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = field(
        default_factory=dict
    )

    def launch(self, slot: Slot) -> Sequence[Launched]:
        """What the launches of a slot do."""
        cases = dict.fromkeys(subject.case_id for subject in slot.group.subjects)
        self._slow_frac = self._noise(self.machine_spread_frac)
        return [self._of_case(case_id, slot, arm) for case_id in cases for arm in slot.arms]

    def _of_case(self, case_id: str, slot: Slot, arm: Arm) -> Launched:
        lost = self.planted if arm is Arm.B else NOTHING
        record = self._acceptance(case_id, shift_of(lost.acceptance_frac))
        tokens = record.total.acceptance_length or 1.0
        slow = math.exp(self.drift_frac * slot.number)
        slow *= self._slow_frac * (1 + (self.moved_frac if arm is Arm.A2 else 0.0))
        step = _STEP_MS * slow * self._noise() / (1 - lost.step_frac)
        ttft = _TTFT_MS * slow * self._noise() / (1 - lost.prefill_frac)
        return Launched(
            case_id=case_id,
            arm=arm,
            block=slot.block,
            number=slot.number,
            values={
                "throughput_tokens_per_s": 1000 * tokens / step,
                "step_p50_ms": step,
                "ttft_p50_ms": ttft,
                "tokens_per_step": tokens,
                "ready_s": _READY_S * self._noise() / (1 - lost.start_up_frac),
                "memory_bytes": _MEMORY_BYTES * self._noise(),
            },
            acceptance=record,
        )

    def _noise(self, spread_frac: float | None = None) -> float:
        spread = self.launch_spread_frac if spread_frac is None else spread_frac
        return math.exp(self.random.normal(0, spread)) if spread else 1.0

    def _acceptance(self, case_id: str, shift: float) -> AcceptanceRecord:
        shape = (PROMPTS, STEPS, len(RATES))
        if case_id not in self._prompts:
            hardness = self.random.normal(0, PROMPT_SPREAD, PROMPTS)
            self._prompts[case_id] = hardness, self.random.random(shape)
        hardness, repeated = self._prompts[case_id]
        draws = self.random.random(shape)
        repeating = round(self.repeating_frac * PROMPTS)
        draws[:repeating] = repeated[:repeating]
        rates = np.stack([accepted_frac(rate, hardness, shift) for rate in RATES], axis=-1)
        alive = np.cumprod(draws < rates[:, None, :], axis=-1).sum(axis=1)
        return _record(alive)


def _record(positions: NDArray[np.int64]) -> AcceptanceRecord:
    prompts = tuple(
        PromptAcceptance(
            prompt_id=f"prompt-{number}",
            category="",
            counts=StepCounts(
                steps=STEPS,
                accepted=sum(counts),
                proposed=STEPS * len(RATES),
                position_counts=tuple(counts),
            ),
            completion_tokens=1 + STEPS + sum(counts),
        )
        for number, counts in enumerate(positions.tolist())
    )
    return AcceptanceRecord(
        source=Source.VLLM_REQUEST,
        view=View.VERIFIER,
        weighting=Weighting.STEP,
        total=sum((one.counts for one in prompts), NO_STEPS),
        prompts=prompts,
    )


def simulated_groups(*, together: bool = False) -> tuple[Group, ...]:
    """Three cases on a server each; side A is launched once more for the first.

    Args:
        together: whether the sides are up at the same time.
    """
    deciding = frozenset(one.name for one in QUANTITIES.values() if not one.of_server)

    def subject(number: int, other: Arm) -> Subject:
        return Subject(
            case_id=f"case-{number}",
            quantities=tuple(QUANTITIES.values()),
            deciding=deciding,
            other=other,
        )

    return tuple(
        Group(
            name=f"case-{number}",
            subjects=tuple(
                subject(number, other) for other in (Arm.B, Arm.A2)[: 1 if number else 2]
            ),
            together=together,
        )
        for number in range(CASES)
    )


def simulated_decision(scene: Scene, *, together: bool = False) -> Decision:
    """A whole gate of three cases, stopped as a real one is.

    Args:
        scene: draws the launches.
        together: whether the sides are up at the same time.
    """
    groups = simulated_groups(together=together)
    subjects = list(itertools.chain.from_iterable(group.subjects for group in groups))
    rules = Rules(blocks=BLOCKS, figures=count_figures(subjects))
    return decide(subjects, go_on(groups, scene.launch, rules), rules)
