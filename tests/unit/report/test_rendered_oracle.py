"""What `specreg oracle` prints."""

import dataclasses

import pytest

from specreg.baselines.comparison import CaseBaselines
from specreg.datasets.prompts import Prompt
from specreg.report.cases import render_oracle
from tests.unit import builders

ONE_TURN = Prompt(id="one", category="any", turns=("Hello",))
TWO_TURNS = Prompt(id="two", category="any", turns=("Hello", "And you?"))
WARNING = "of all turns, not of the first alone: don't compare"


def rendered(*prompts: Prompt, turns: int | None = None, known: bool = True) -> str:
    case = dataclasses.replace(builders.CASE, turns=turns)
    steps = builders.counts(1, 1, 1, 1)
    settings = dataclasses.replace(builders.SETTINGS, turns=turns)
    baseline = builders.baseline(of=steps, settings=settings) if known else None
    environment = builders.ENVIRONMENT
    return render_oracle(
        case,
        prompts,
        steps,
        CaseBaselines(environment=environment, settings=settings, exact=baseline, spreads={}),
    )


def test_it_prints_the_steps_and_their_acceptance() -> None:
    lines = rendered(ONE_TURN, TWO_TURNS, turns=1, known=False).splitlines()
    assert lines[0].startswith(f"{builders.CASE.id}: 2 prompts, answered greedily")
    assert lines[1] == "  S, A, D               4, 6, 12"
    assert lines[3].startswith("  acceptance length     2.5")
    assert lines[-1] == "recorded: nothing with these settings"


@pytest.mark.parametrize(
    ("prompts", "turns", "warns"),
    [
        ((ONE_TURN, TWO_TURNS), None, True),
        ((ONE_TURN, TWO_TURNS), 2, True),
        ((ONE_TURN, TWO_TURNS), 1, False),
        ((ONE_TURN,), None, False),
    ],
)
def test_it_says_where_later_turns_were_recorded_too(
    prompts: tuple[Prompt, ...], turns: int | None, *, warns: bool
) -> None:
    assert rendered(*prompts, turns=turns).endswith(WARNING) == warns
