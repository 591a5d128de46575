"""Token ids drawn at random: prompts of an exact length, the same for each tokenizer.

They overstate throughput with speculation: a model that is asked nonsense soon repeats itself, and
what repeats itself is easily drafted. Their figures are for prefill and for comparison with other
tools, never for what users will see.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from specreg.datasets._dataset import Dataset, Prompt, PromptSet, Wanted

MOST_PROMPTS = 1024
MOST_TOKENS = 2**22
"""Of all prompts of a length; longer than 4,096 tokens there are fewer."""


def _draw(one: PromptSet, wanted: Wanted) -> tuple[Prompt, ...]:
    return _drawn(int(one.config), wanted.vocabulary())


@functools.cache  # each case of a tier asks for the same
def _drawn(length_tokens: int, vocabulary: int) -> tuple[Prompt, ...]:
    """All prompts of a length; each has a seed of its own, so that it stays whatever the others."""
    ids = np.arange(vocabulary).astype(object)  # one Python integer each, however often it is drawn
    return tuple(
        Prompt(
            id=f"random-{number}",
            category="random",
            token_ids=tuple(ids[_draws(length_tokens, vocabulary, number)]),
        )
        for number in range(min(MOST_PROMPTS, max(1, MOST_TOKENS // length_tokens)))
    )


def _draws(length_tokens: int, vocabulary: int, number: int) -> NDArray[np.int64]:
    """As many numbers below `vocabulary` as there are tokens, by NumPy's frozen generator."""
    return np.random.RandomState([length_tokens, number]).randint(vocabulary, size=length_tokens)


DATASET = Dataset(
    name="random", load=_draw, configs=("128", "512", "1024", "2048", "8192"), takes_length=True
)
