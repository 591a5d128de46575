"""Test by permutation whether two servers draw their answers from the same distribution.

Speculative sampling must not change the distribution of answers (Leviathan et al. 2023). The test
draws many answers to a few prompts, with and without speculation, and compares how often each
beginning of one, two and three tokens occurs.
"""

from collections.abc import Sequence

import numpy as np

BEGINNINGS_TOKENS = (1, 2, 3)
"""How many first tokens are compared. The first token comes from the prefill, and speculation
begins with the second one."""
SHUFFLES = 20_000
"""The shuffles per test, with which `SAMPLING_LEVEL` has a standard error of about 0.0002."""
SAMPLING_LEVEL = 1e-3
"""The probability that two servers with the same distribution are called different."""

Draws = Sequence[Sequence[int]]
"""The answers that one server drew to one prompt, as token ids."""


def chance_of_difference(
    drawn: Sequence[tuple[Draws, Draws]], *, tokens: int, seed: int = 0, shuffles: int = SHUFFLES
) -> float:
    """Return the probability that draws from one distribution differ at least as much, 0..1.

    The statistic is Pearson's χ² of the table of beginnings and servers. It is summed over the
    prompts, so that small differences in every prompt add up. Its distribution comes from assigning
    the draws of each prompt to the two servers at random. Unlike the χ² distribution, this is valid
    for rare beginnings too.

    Args:
        drawn: for each prompt, the draws with speculation and those without, at least one of each.
        tokens: how many first tokens of a draw are compared.
        seed: the seed of the shuffles.
        shuffles: the number of shuffles. The result is at least 1 / (shuffles + 1).
    """
    random = np.random.default_rng(seed)
    statistic = 0.0
    shuffled_statistics = np.zeros(shuffles)
    for draws, control_draws in drawn:
        all_draws = (*draws, *control_draws)
        beginnings = [tuple(draw[:tokens]) for draw in all_draws]
        codes = _codes_of(beginnings)
        totals = np.bincount(codes)
        # A beginning that the first server never drew has the count 0.
        first_codes = codes[: len(draws)]
        counts = np.bincount(first_codes, minlength=len(totals))
        statistic += float(_statistic(counts, totals))
        # Shuffling draws and servers gives each beginning a hypergeometric count on one server.
        shuffled = random.multivariate_hypergeometric(totals, len(draws), shuffles, method="count")
        shuffled_statistics += _statistic(shuffled, totals)

    # A shuffle that gives the same table may have a slightly different statistic by rounding.
    is_as_large = shuffled_statistics >= statistic - 1e-9
    as_large = int(is_as_large.sum())

    # The draws themselves count as one of the shuffles, so the probability is never 0.
    return (as_large + 1) / (shuffles + 1)


def _codes_of(beginnings: Sequence[tuple[int, ...]]) -> list[int]:
    """Return a number for each beginning, from 0. Equal beginnings have the same number."""
    codes: dict[tuple[int, ...], int] = {}
    return [codes.setdefault(beginning, len(codes)) for beginning in beginnings]


def _statistic(counts: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return χ² = Σ (count - expected)² / expected, over the beginnings and both servers.

    Args:
        counts: how many draws of one server have each beginning, of shape (…, beginnings).
        totals: the same for both servers together, of shape (beginnings,), each 1 or more.
    """
    share = counts.sum(-1, keepdims=True) / totals.sum()
    # The deviations of the two servers are opposite, so their two terms share a numerator.
    squares = (counts - share * totals) ** 2
    terms = squares / totals / (share * (1 - share))
    return np.asarray(terms.sum(-1))
