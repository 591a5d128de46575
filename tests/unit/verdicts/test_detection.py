"""What a run can detect against a baseline, by how its recorded launches differ."""

import numpy as np
import pytest

from specreg.acceptance.record import AcceptanceRecord
from specreg.measurement.metrics import METRICS
from specreg.verdicts.detection import detectable_acceptance
from tests.unit import builders

LENGTH = METRICS["acceptance_length_tokens"]
STEPS = 100


def launch_of(accepted: list[int]) -> AcceptanceRecord:
    """A launch whose prompts took as many steps and accepted so many drafts."""
    prompts = [
        builders.prompt_acceptance(
            builders.counts(STEPS - count, count), prompt_id=f"prompt-{number}"
        )
        for number, count in enumerate(accepted)
    ]
    return builders.acceptance_of(prompts)


def drawn_launches(prompts: int) -> list[AcceptanceRecord]:
    """Three launches of which no answer repeats."""
    draw = np.random.default_rng(0)
    return [launch_of(draw.binomial(STEPS, 0.5, prompts).tolist()) for _ in range(3)]


def test_launches_that_repeat_detect_anything() -> None:
    detectable = detectable_acceptance(LENGTH, 0.05, [launch_of([50, 60, 40, 55, 45, 50])] * 3)
    assert detectable is not None
    assert (detectable.decides, detectable.mde_frac) == (True, 0.0)


@pytest.mark.parametrize(("prompts", "decides"), [(8, False), (400, True)])
def test_more_prompts_detect_less(prompts: int, *, decides: bool) -> None:
    """A prompt accepts 50 of 100 drafts by chance, so 8 of them know AL - 1 within 4 % or so."""
    detectable = detectable_acceptance(LENGTH, 0.05, drawn_launches(prompts))
    assert detectable is not None
    assert detectable.decides is decides
    assert (detectable.mde_frac <= 0.05) is decides
    assert detectable.nights >= 2


def test_a_single_launch_does_not_tell_how_launches_differ() -> None:
    assert detectable_acceptance(LENGTH, 0.05, drawn_launches(8)[:1]) is None
