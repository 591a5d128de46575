"""Whether two servers draw alike."""

import numpy as np
import pytest

from specreg.stats.permutation import BEGINNINGS_TOKENS, SAMPLING_LEVEL, chance_of_difference


def drawn(chances: tuple[float, ...], draws: int, seed: int) -> list[tuple[int, ...]]:
    """Answers of three tokens, each drawn with the same chances."""
    random = np.random.default_rng(seed)
    return [tuple(row) for row in random.choice(len(chances), (draws, 3), p=chances).tolist()]


FLAT = (0.4, 0.3, 0.2, 0.1)
TILTED = (0.1, 0.2, 0.3, 0.4)


def test_of_one_distribution_every_chance_comes_as_often() -> None:
    """So that a level of 1 % is wrong 1 % of the time."""
    chances_found = [
        chance_of_difference(
            [
                (drawn(FLAT, 40, 4 * n), drawn(FLAT, 40, 4 * n + 1)),
                (drawn(TILTED, 30, 4 * n + 2), drawn(TILTED, 50, 4 * n + 3)),
            ],
            tokens=3,
            shuffles=100,
            seed=n,
        )
        for n in range(200)
    ]
    # Binomial with p the bound and n = 200: standard deviations of 0.02 to 0.035.
    for bound in (0.1, 0.3, 0.5, 0.7, 0.9):
        assert np.mean(np.array(chances_found) <= bound) == pytest.approx(bound, abs=0.1)


def test_the_chance_is_that_of_the_shuffles_worked_by_hand() -> None:
    """Of the 70 ways to deal four 1 and four 2 to two servers, 2 part them as these do."""
    chance = chance_of_difference([([(1,)] * 4, [(2,)] * 4)], tokens=1, shuffles=10_000)
    assert chance == pytest.approx(2 / 70, abs=0.006)


def test_a_difference_is_seen_only_by_as_many_tokens_as_hold_it() -> None:
    """The first tokens are the same; the pairs never are: only what a step verified differs."""
    with_speculation = [(1, 2), (3, 4)] * 30
    without = [(1, 4), (3, 2)] * 30
    chances = [
        chance_of_difference([(with_speculation, without)], tokens=tokens, shuffles=2000)
        for tokens in BEGINNINGS_TOKENS
    ]
    assert chances == pytest.approx([1.0, 1 / 2001, 1 / 2001])


def test_what_every_prompt_shows_a_little_is_seen_in_all_of_them() -> None:
    """A token of 0.5 becomes one of 0.62: no prompt alone tells, sixteen do."""
    pairs = [
        (drawn((0.5, 0.5), 100, 2 * n), drawn((0.62, 0.38), 100, 2 * n + 1)) for n in range(16)
    ]
    alone = [chance_of_difference([pair], tokens=1, shuffles=2000) for pair in pairs]
    assert min(alone) * len(alone) > SAMPLING_LEVEL
    assert chance_of_difference(pairs, tokens=1, shuffles=2000) == pytest.approx(1 / 2001)
