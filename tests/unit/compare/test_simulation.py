"""A few simulated gates; `python -m tests.bench.gate` draws many."""

import numpy as np
import pytest

from specreg.compare.judging import Answer, causes_of
from tests.bench.gate import World, simulated_decision


@pytest.mark.parametrize("together", [True, False], ids=["together", "in turn"])
def test_equal_sides_may_be_exchanged(together: bool) -> None:  # noqa: FBT001 - a parameter
    for seed in range(5):
        world = World(random=np.random.default_rng(seed))
        assert simulated_decision(world, together=together).answer is Answer.UPGRADE


@pytest.mark.parametrize(
    ("planted", "cause"),
    [
        ({"acceptance_frac": 0.05}, "acceptance"),
        ({"step_frac": 0.06}, "the cost of a step"),
        ({"prefill_frac": 0.12}, "prefill"),
    ],
    ids=["acceptance", "step", "prefill"],
)
def test_a_loss_is_found_and_called_what_it_is(planted: dict[str, float], cause: str) -> None:
    world = World(random=np.random.default_rng(1), **planted)
    found = simulated_decision(world)
    assert found.answer is Answer.DONT
    for case_id in {one.case_id for one in found.verdicts}:
        ours = [one for one in found.verdicts if one.case_id == case_id]
        assert cause in causes_of(ours)


def test_a_machine_that_moves_is_no_sides_doing() -> None:
    world = World(random=np.random.default_rng(1), moved_frac=0.1)
    found = simulated_decision(world)
    assert found.answer is Answer.UNDECIDED
    assert any("MACHINE_MOVED" in one for one in found.takes)
    worse = World(random=np.random.default_rng(1), machine_spread_frac=0.1)
    assert simulated_decision(worse, together=True).answer is Answer.UPGRADE
