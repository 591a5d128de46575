"""Sampling: answers drawn with and without speculation in, whether they are drawn alike out.

Speculative sampling must leave the distribution of a text as it was (Leviathan et al. 2023), and
nobody sees in one text whether it did. Many draws of a few prompts tell: how often each beginning
of one, two and three tokens came, with speculation and without.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

BEGINNINGS_TOKENS = (1, 2, 3)
"""The first token comes from the prefill; what a step verifies begins with the second."""
SHUFFLES = 20_000
LEVEL = 1e-3
"""How often two servers that draw alike are told apart, whatever the prompts."""


def chance_of_alike(
    with_speculation: Sequence[Sequence[int]],
    without: Sequence[Sequence[int]],
    *,
    tokens: int,
    seed: int = 0,
    shuffles: int = SHUFFLES,
) -> float:
    """How often draws from one distribution differ as much as these, 0..1.

    The statistic is Pearson's χ² of the table of beginnings by server. Its chance is that of
    shuffling which draw came from which server, so that rare beginnings need no pooling.

    Args:
        with_speculation: the drawn answers in ids, one at least.
        without: the same of the other server.
        tokens: how many of their first tokens count.
        seed: of the shuffles.
        shuffles: how many, one at least; no chance is less than 1 in one more than these.
    """
    ours = [tuple(one[:tokens]) for one in with_speculation]
    theirs = [tuple(one[:tokens]) for one in without]
    places = {one: place for place, one in enumerate(Counter([*ours, *theirs]))}
    drawn = np.array([places[one] for one in (*ours, *theirs)])
    totals = np.bincount(drawn, minlength=len(places))

    def statistic(drawn_by_us: np.ndarray) -> float:
        seen = np.bincount(drawn_by_us, minlength=len(places))
        # χ² itself is this times a constant, less another: the totals never change.
        return float((seen**2 / totals).sum())

    found = statistic(drawn[: len(ours)]) - 1e-9
    random = np.random.default_rng(seed)
    as_far = sum(
        statistic(random.permutation(drawn)[: len(ours)]) >= found for _ in range(shuffles)
    )
    return (as_far + 1) / (shuffles + 1)


def holm(chances: Sequence[float]) -> float:
    """The smallest of several chances, as one: times how many there are (Bonferroni's bound)."""
    return min(1.0, min(chances) * len(chances))
