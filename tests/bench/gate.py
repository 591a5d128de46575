"""How often a gate errs, by simulation: `python -m tests.bench.gate [PART OF A ROW'S TITLE]`.

Accepted drafts are drawn as those of the suite's own simulation; the times of a launch are drawn
around what was planted.
"""

import functools
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specreg.acceptance.record import AcceptanceRecord, StepCounts
from specreg.compare.judging import Decision, Rules
from specreg.compare.pairs import Group, Pair, Side
from specreg.compare.plan import slots_of
from specreg.runs.ledger import ArmLaunch
from specreg.verdicts.selftest import PROMPT_SPREAD, PROMPTS, RATES, STEPS, accepted_frac, shift_of
from tests.unit import builders
from tests.unit.builders.gates import decision_of, launch

CASES = 3
LAUNCH_SPREAD_FRAC = 0.01
LAUNCHES = 16
_STEP_MS = 8.0
_TTFT_MS = 40.0


SLOW: Mapping[str, Any] = {"step_frac": 0.05}
MOVING: Mapping[str, Any] = {"machine_spread_frac": 0.1}
BOTH = {**SLOW, **MOVING}


@dataclass(kw_only=True)
class World:
    """Two sides to draw launches of.

    Attributes:
        random: draws.
        acceptance_frac: what B loses of AL - 1 in each case, 0..1.
        step_frac, prefill_frac: how much longer they take on B, 0..1.
        repeating_frac: the share of the prompts whose answers repeat, 0..1.
        launch_spread_frac: how launches differ, as a standard deviation of logarithms.
        drift_frac: how much slower the machine becomes from one launch to the next.
        moved_frac: how much slower each launch of B and A2 is, as if they had the worse core.
        machine_spread_frac: how the machine differs from one time to another; launches that are up
            at the same time share that.
        cases: how many cases there are, on a server each.
        noisier: how many times more the launches of the first case differ.
    """

    random: np.random.Generator
    acceptance_frac: float = 0.0
    step_frac: float = 0.0
    prefill_frac: float = 0.0
    repeating_frac: float = 0.5
    launch_spread_frac: float = LAUNCH_SPREAD_FRAC
    drift_frac: float = 0.0
    moved_frac: float = 0.0
    machine_spread_frac: float = 0.0
    cases: int = CASES
    noisier: float = 1.0
    _times: int = field(default=0, init=False)
    _prompts: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = field(
        default_factory=dict, init=False
    )

    def launches(
        self, group: Group, number: int, sides: tuple[Side, Side], *, together: bool
    ) -> list[ArmLaunch]:
        """What a launch of both sides does."""
        rows = []
        for slot in slots_of(number, sides, together=together):
            self._times += 1
            slow = self._noise(self.machine_spread_frac) * math.exp(self.drift_frac * self._times)
            rows += [self._of(pair, side, number, slow) for pair in group for side in slot]
        return rows

    def _of(self, pair: Pair, side: Side, number: int, slow: float) -> ArmLaunch:
        is_b = float(side is Side.B)
        record = self._acceptance(pair.id, shift_of(is_b * self.acceptance_frac))
        tokens = record.total.acceptance_length or 1.0
        slow *= 1 + (self.moved_frac if side in {Side.B, Side.A2} else 0.0)
        is_noisier = pair == self.pairs[0]
        spread = self.launch_spread_frac * (self.noisier if is_noisier else 1.0)
        step_ms = _STEP_MS * slow * self._noise(spread) / (1 - is_b * self.step_frac)
        return launch(
            side,
            number,
            pair=pair,
            tokens_per_s=1000 * tokens / step_ms,
            step_ms=step_ms,
            ttft_ms=_TTFT_MS * slow * self._noise(spread) / (1 - is_b * self.prefill_frac),
            tokens_per_step=tokens / 2,
            acceptance=record,
        )

    @functools.cached_property
    def pairs(self) -> Sequence[Pair]:
        """The cases as both sides run them."""
        cases = [builders.with_concurrency(number + 1) for number in range(self.cases)]
        return [Pair(a=case, b=case) for case in cases]

    def _noise(self, spread_frac: float) -> float:
        return math.exp(self.random.normal(0, spread_frac)) if spread_frac else 1.0

    def _acceptance(self, case_id: str, shift: float) -> AcceptanceRecord:
        shape = (PROMPTS, STEPS, len(RATES))
        if case_id not in self._prompts:
            logit_offsets = self.random.normal(0, PROMPT_SPREAD, PROMPTS)
            self._prompts[case_id] = logit_offsets, self.random.random(shape)
        logit_offsets, repeated = self._prompts[case_id]
        draws = self.random.random(shape)
        repeating = round(self.repeating_frac * PROMPTS)
        draws[:repeating] = repeated[:repeating]
        rates = np.stack([accepted_frac(rate, logit_offsets, shift) for rate in RATES], axis=-1)
        alive = np.cumprod(draws < rates[:, None, :], axis=-1).sum(axis=1)
        prompts = [
            builders.prompt_acceptance(
                StepCounts(
                    steps=STEPS,
                    accepted=sum(counts),
                    proposed=STEPS * len(RATES),
                    position_counts=tuple(counts),
                ),
                prompt_id=f"prompt-{number}",
            )
            for number, counts in enumerate(alive.tolist())
        ]
        return builders.acceptance_of(prompts)


def simulated_decision(world: World, *, together: bool = False) -> Decision:
    """Run a whole gate of cases on a server each."""
    pairs = world.pairs
    rules = Rules(launches=LAUNCHES, figures=sum(len(pair.deciding) for pair in pairs))
    launched = functools.partial(world.launches, together=together)
    return decision_of([(pair,) for pair in pairs], rules, launched)


ROWS: Sequence[tuple[str, int, Mapping[str, Any], bool]] = (
    ("nothing", 300, {}, False),
    ("nothing, no answer repeats", 100, {"repeating_frac": 0.0}, False),
    ("nothing, the machine slows by 0.3 % a launch", 100, {"drift_frac": 0.003}, False),
    ("nothing, launches differ by 4 %", 100, {"launch_spread_frac": 0.04}, False),
    ("nothing, side by side, the machine moves by 10 %", 300, MOVING, True),
    ("nothing, the same in turn", 100, MOVING, False),
    ("a step that takes 5 % more, side by side, the machine moves by 10 %", 100, BOTH, True),
    ("a step that takes 5 % more", 100, SLOW, False),
    ("a step that takes 3 %, the tolerance, more", 100, {"step_frac": 0.03}, False),
    ("3 % of AL - 1", 100, {"acceptance_frac": 0.03}, False),
    ("a prefill that takes 10 % more", 100, {"prefill_frac": 0.1}, False),
    (
        "nothing, six cases, launches differ by 2 %",
        30,
        {"cases": 6, "launch_spread_frac": 0.02},
        False,
    ),
    ("nothing, six cases, one three times noisier", 250, {"cases": 6, "noisier": 3.0}, False),
    ("nothing, but what is up second is 10 % slower", 100, {"moved_frac": 0.1}, False),
)
"""What is planted, in how many gates, what `World` has otherwise, and whether both sides are up."""


def simulated_gate(row: int, seed: int) -> tuple[str, Sequence[str], int]:
    """Return the answer of one gate of a row, its outcomes, and the launches of a side."""
    _, _, changes, together = ROWS[row]
    world = World(random=np.random.default_rng(seed), **changes)
    decision = simulated_decision(world, together=together)
    outcomes = [str(verdict.outcome) for verdict in decision.verdicts]
    return decision.answer, outcomes, max(verdict.launches for verdict in decision.verdicts)


def main(pattern: str) -> None:
    """Print a row as soon as its gates are simulated.

    Args:
        pattern: a part of the titles of the rows to simulate; empty for all.
    """
    with ProcessPoolExecutor() as pool:
        for row, (title, gates, _, _) in enumerate(ROWS):
            if pattern not in title:
                continue
            answers = Counter[str]()
            outcomes = Counter[str]()
            launches = 0
            simulate = functools.partial(simulated_gate, row)
            for answer, gate_outcomes, gate_launches in pool.map(simulate, range(gates)):
                answers[answer] += 1
                outcomes.update(gate_outcomes)
                launches += gate_launches
            counted = (
                ", ".join(f"{count} {word}" for word, count in words.most_common())
                for words in (answers, outcomes)
            )
            columns = (title, str(gates), *counted, f"{launches / gates:.1f}")
            sys.stdout.write(f"| {' | '.join(columns)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
