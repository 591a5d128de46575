"""One step of speculative decoding: n-grams that draft, and the verification of a draft.

Pure Python and numpy, without a model. V is the size of the vocabulary, k the number of drafts.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

LONGEST_TOKENS, SHORTEST_TOKENS = 4, 2
"""How many of the last tokens to look up, as the methods' table asks it of vLLM."""


def propose(context: Sequence[int], draft_tokens: int) -> tuple[int, ...]:
    """Look up what followed the last tokens of a text when they first stood there.

    As vLLM's NgramProposer: the longest run of last tokens that was there before, and its first
    place.

    Returns:
        At most `draft_tokens` ids: fewer where the text ends before, none where nothing was found.
    """
    # As a text, because str has a fast search; an id is a code point, below 0x110000.
    text = "".join(map(chr, context))
    for tokens in range(min(LONGEST_TOKENS, len(text) - 1), SHORTEST_TOKENS - 1, -1):
        # Up to the last token: the text's own end is no earlier place, but may overlap with one.
        place = text.find(text[-tokens:], 0, len(text) - 1)
        if place >= 0:
            start = place + tokens
            return tuple(context[start : start + draft_tokens])
    return ()


class NGramStore:
    """What followed each run of 1 to `LONGEST_TOKENS` tokens, and how often (Ou et al. 2024).

    Holds the `most_contexts` runs that it read last: about 0.5 kB each.
    """

    def __init__(self, most_contexts: int = 2**20) -> None:
        self._most_contexts = most_contexts
        self._counts = OrderedDict[tuple[int, ...], dict[int, int]]()

    def learn(self, context: Sequence[int], token_ids: Sequence[int]) -> None:
        """Count each of some tokens once as what follows a text, the best of them last."""
        for tokens in range(1, min(LONGEST_TOKENS, len(context)) + 1):
            run = tuple(context[-tokens:])
            counts = self._counts.setdefault(run, {})
            for token_id in token_ids:
                counts[token_id] = counts.pop(token_id, 0) + 1
            self._counts.move_to_end(run)
        while len(self._counts) > self._most_contexts:
            self._counts.popitem(last=False)

    def propose(self, context: Sequence[int], draft_tokens: int) -> tuple[int, ...]:
        """Draft, token by token, what most often followed the longest run of last tokens known.

        Of equals, what was learnt last.

        Returns:
            At most `draft_tokens` ids: fewer where nothing is known of the last one, or none.
        """
        text, drafted = list(context[-LONGEST_TOKENS:]), list[int]()
        while len(drafted) < draft_tokens:
            runs = (tuple(text[start:]) for start in range(-min(LONGEST_TOKENS, len(text)), 0))
            counts = next((self._counts[run] for run in runs if run in self._counts), None)
            if counts is None:
                break
            drafted.append(max(reversed(counts), key=counts.__getitem__))
            text.append(drafted[-1])
        return tuple(drafted)


def likeliest(logits: Floats, count: int) -> list[int]:
    """The ids of the likeliest tokens, the likeliest last; logits of shape [V], count <= V."""
    ids = np.argpartition(logits, -count)[-count:]
    ordered: list[int] = ids[np.argsort(logits[ids])].tolist()
    return ordered


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What was drafted after a text.

    Attributes:
        token_ids: k ids, k from 0.
        distributions: what they were drawn from, q of shape [k, V]; None where each was certain,
            as those of a lookup or of a greedy draft model are.
    """

    token_ids: tuple[int, ...]
    distributions: Floats | None = None


NO_DRAFT = Draft(token_ids=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """How many drafts the target accepts, and its own token after them: correction or bonus."""

    accepted: int
    next_id: int


def verify(
    draft: Draft, logits: Floats, temperature: float, random: np.random.Generator
) -> Verified:
    """Verify a draft of k tokens by the target's logits before each and after the last, [k + 1, V].

    The temperature 0 is greedy, accepts the target's own choices, and draws nothing.
    """
    if temperature > 0:
        return verify_sampled(draft, distributions(logits, temperature), random)
    choices, accepted = logits.argmax(axis=-1).tolist(), 0
    while accepted < len(draft.token_ids) and draft.token_ids[accepted] == choices[accepted]:
        accepted += 1
    return Verified(accepted=accepted, next_id=choices[accepted])


def verify_sampled(draft: Draft, target: Floats, random: np.random.Generator) -> Verified:
    """Verify by speculative sampling: what is emitted is distributed as the target says.

    A draft x is accepted with probability min(1, p(x) / q(x)). After a rejection the next token is
    drawn from max(0, p - q), normalized; after k accepted ones from p. (Leviathan et al. 2023,
    algorithm 1; Chen et al. 2023, algorithm 2.) `target` is p, of shape [k + 1, V].
    """
    for place, token_id in enumerate(draft.token_ids):
        p = target[place]
        if draft.distributions is None:
            q: Floats = np.zeros(len(p))
            q[token_id] = 1.0
        else:
            q = draft.distributions[place]
        if random.random() * q[token_id] >= p[token_id]:
            return Verified(accepted=place, next_id=sample(_remainder(p, q), random))
    return Verified(accepted=len(draft.token_ids), next_id=sample(target[-1], random))


def distributions(logits: Floats, temperature: float) -> Floats:
    """softmax(logits / temperature) over the last axis, in float64; temperature > 0."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    normalized: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return normalized


def sample(distribution: Floats, random: np.random.Generator) -> int:
    """Draw a token id from weights of shape [V] that need not add up to 1."""
    # Up to the first place where nothing is left: a token of weight 0 is never drawn.
    cumulated = distribution.cumsum()
    return int(np.searchsorted(cumulated, random.random() * cumulated[-1], side="right"))


def _remainder(p: Floats, q: Floats) -> Floats:
    """max(0, p - q). All zeros only where p = q, which rejects nothing but by rounding: p then."""
    left: Floats = np.maximum(p - q, 0.0)
    return left if left.any() else p
