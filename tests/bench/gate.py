"""How often a gate errs, by simulation: the table of docs/gate.md. `python -m tests.bench.gate`."""

import sys
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from specreg.compare.gate.answer import cause_of
from specreg.compare.gate.simulation import CASES, Planted, Scene, simulated_decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Gates of one kind; `scene`: what `Scene` has otherwise."""

    said: str
    gates: int = 100
    scene: dict[str, object] = field(default_factory=dict)
    together: bool = False


ROWS = (
    Row(said="nothing", gates=300),
    Row(said="nothing, no answer repeats", scene={"repeating_frac": 0.0}),
    Row(said="nothing, the machine slows by 0.3 % a launch", scene={"drift_frac": 0.003}),
    Row(said="nothing, launches differ by 4 %", scene={"launch_spread_frac": 0.04}),
    Row(
        said="nothing, side by side, the machine moves by 10 %",
        gates=300,
        scene={"machine_spread_frac": 0.1},
        together=True,
    ),
    Row(said="nothing, the same in turn", scene={"machine_spread_frac": 0.1}),
    Row(
        said="a step that takes 5 % more, side by side, the machine moves by 10 %",
        scene={"planted": Planted(step_frac=0.05), "machine_spread_frac": 0.1},
        together=True,
    ),
    Row(said="a step that takes 5 % more", scene={"planted": Planted(step_frac=0.05)}),
    Row(
        said="a step that takes 3 % more, which is the tolerance",
        scene={"planted": Planted(step_frac=0.03)},
    ),
    Row(said="3 % of AL - 1", scene={"planted": Planted(acceptance_frac=0.03)}),
    Row(said="a prefill that takes 10 % more", scene={"planted": Planted(prefill_frac=0.1)}),
    Row(said="nothing, but the control's launches are 10 % slower", scene={"moved_frac": 0.1}),
)


def main() -> None:
    """Prints a row as soon as its gates are simulated."""
    for row in ROWS:
        answers, outcomes, causes = Counter[str](), Counter[str](), Counter[str]()
        launches = 0
        for seed in range(row.gates):
            scene = Scene(random=np.random.default_rng(seed), **row.scene)  # type: ignore[arg-type]
            found = simulated_decision(scene, together=row.together)
            answers[found.answer] += 1
            outcomes.update(one.outcome for one in found.judged if one.decides)
            launches += max(one.launches for one in found.judged)
            causes.update(
                cause_of([one for one in found.judged if one.case_id == f"case-{number}"]) or "none"
                for number in range(CASES)
            )
        columns = (
            row.said,
            str(row.gates),
            ", ".join(f"{count} {word}" for word, count in answers.most_common()),
            ", ".join(f"{count} {word}" for word, count in outcomes.most_common()),
            ", ".join(f"{count} {word}" for word, count in causes.most_common()),
            f"{launches / row.gates:.1f}",
        )
        sys.stdout.write(f"| {' | '.join(columns)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
