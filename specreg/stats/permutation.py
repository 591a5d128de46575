"""Test by permutation whether two servers draw their answers from one distribution.

Speculative sampling must leave it as it was (Leviathan et al. 2023). Many draws of a few prompts
tell: how often each beginning of one, two and three tokens came, with speculation and without.
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
    """How often draws from one distribution differ as much as these, 0..1.

    The statistic is Pearson's χ² of the table of beginnings by server, summed over the prompts,
    so that what every prompt shows a little shows in all of them. Its chance is that of shuffling
    which draw came from which server, prompt by prompt, so that rare beginnings need no pooling.

    `drawn` is by prompt, with speculation and without it, one draw at least of each, of which so
    many first tokens count. No chance is less than 1 in one more than the shuffles.
    """
    random = np.random.default_rng(seed)
    found, shuffled = 0.0, np.zeros(shuffles)
    for ours, theirs in drawn:
        places: dict[tuple[int, ...], int] = {}
        codes = [places.setdefault(tuple(one[:tokens]), len(places)) for one in (*ours, *theirs)]
        totals = np.bincount(codes)
        seen = np.bincount(codes[: len(ours)], minlength=len(totals))
        found += float(_statistic(seen, totals))
        # How many draws of each beginning the one server has after a shuffle.
        dealt = random.multivariate_hypergeometric(totals, len(ours), shuffles, method="count")
        shuffled += _statistic(dealt, totals)
    as_far = int((shuffled >= found - 1e-9).sum())
    return (as_far + 1) / (shuffles + 1)


def _statistic(seen: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """χ² of tables of beginnings by two servers, Σ (seen − expected)² / expected over both.

    What the one has more of a beginning, the other has less: `seen` counts the one server's,
    (…, beginnings), `totals` those of both, (beginnings,), 1 or more each.
    """
    share = seen.sum(-1, keepdims=True) / totals.sum()
    apart = (seen - share * totals) ** 2 / totals / (share * (1 - share))
    return np.asarray(apart.sum(-1))
