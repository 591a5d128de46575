"""Test by permutation whether two servers draw their answers from one distribution.

Speculative sampling must not change the distribution (Leviathan et al. 2023). Many draws of a few
prompts show it: how often each beginning of one, two and three tokens came, with speculation and
without.
"""

from collections.abc import Sequence

import numpy as np

BEGINNINGS_TOKENS = (1, 2, 3)
"""The first token comes from the prefill; what a step verifies begins with the second."""
SHUFFLES = 20_000
LEVEL = 1e-3
"""How often two servers that draw alike are told apart, whatever the prompts."""

Draws = Sequence[Sequence[int]]
"""The answers that one server drew to one prompt, in ids."""


def chance_of_alike(
    drawn: Sequence[tuple[Draws, Draws]], *, tokens: int, seed: int = 0, shuffles: int = SHUFFLES
) -> float:
    """Return how often draws from one distribution differ as much as these, 0..1.

    The statistic is Pearson's χ² of the table of beginnings by server, summed over the prompts,
    so that a small difference in every prompt adds up. Its chance is that of shuffling which draw
    came from which server, prompt by prompt, so that rare beginnings need no pooling.

    Args:
        drawn: by prompt, the draws with speculation and without it, one of each at least.
        tokens: how many first tokens of a draw count.
        seed: of the shuffles.
        shuffles: how many there are. No chance is less than 1 / (shuffles + 1).
    """
    random = np.random.default_rng(seed)
    statistic = 0.0
    shuffled_statistics = np.zeros(shuffles)
    for draws, control_draws in drawn:
        codes = _codes_of([tuple(draw[:tokens]) for draw in (*draws, *control_draws)])
        totals = np.bincount(codes)
        counts = np.bincount(codes[: len(draws)], minlength=len(totals))
        statistic += float(_statistic(counts, totals))
        # How many draws of each beginning the one server has after a shuffle.
        shuffled = random.multivariate_hypergeometric(totals, len(draws), shuffles, method="count")
        shuffled_statistics += _statistic(shuffled, totals)
    as_large = int((shuffled_statistics >= statistic - 1e-9).sum())
    return (as_large + 1) / (shuffles + 1)


def _codes_of(beginnings: Sequence[tuple[int, ...]]) -> list[int]:
    """Number beginnings from 0 by their first appearance; equal ones have one number."""
    codes: dict[tuple[int, ...], int] = {}
    return [codes.setdefault(beginning, len(codes)) for beginning in beginnings]


def _statistic(counts: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return χ² of tables of beginnings by two servers, Σ (count - expected)² / expected over both.

    What one server has more of a beginning, the other has less.

    Args:
        counts: of one server, of shape (…, beginnings).
        totals: of both servers, of shape (beginnings,), 1 or more each.
    """
    share = counts.sum(-1, keepdims=True) / totals.sum()
    terms = (counts - share * totals) ** 2 / totals / (share * (1 - share))
    return np.asarray(terms.sum(-1))
