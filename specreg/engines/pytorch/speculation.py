"""One step of speculative decoding: n-gram lookup, and the verification of a draft.

Pure Python and numpy, without a model. V is the size of the vocabulary, k the number of drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Occurrence(StrEnum):
    """Which of several earlier places is taken."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRule:
    """How to look up; the defaults are what `METHODS` asks of vLLM, and what vLLM does.

    Attributes:
        longest_tokens, shortest_tokens: how many of the last tokens to look for: the longest that
            stood there before are taken. 1 ≤ shortest ≤ longest.
        occurrence: which place, where there are several (vLLM's NgramProposer: the first).
    """

    longest_tokens: int = 4
    shortest_tokens: int = 2
    occurrence: Occurrence = Occurrence.FIRST


def propose(context: Sequence[int], rule: LookupRule, draft_tokens: int) -> tuple[int, ...]:
    """What to draft after a text.

    Args:
        context: the ids of all tokens so far, prompt and answer; each below 0x110000.
        rule: how to look up.
        draft_tokens: the most to draft.

    Returns:
        At most `draft_tokens` ids: fewer where the text ends before, none where nothing was found.
    """
    # As a text, because str has a fast search; an id is a code point.
    text = "".join(map(chr, context))
    find = text.find if rule.occurrence is Occurrence.FIRST else text.rfind
    for tokens in range(min(rule.longest_tokens, len(text) - 1), rule.shortest_tokens - 1, -1):
        # Up to the last token: the text's own end is no earlier place, but may overlap with one.
        place = find(text[-tokens:], 0, len(text) - 1)
        if place >= 0:
            start = place + tokens
            return tuple(context[start : start + draft_tokens])
    return ()


Floats = NDArray[np.floating]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What was drafted after a text.

    Attributes:
        token_ids: k ids, k from 0.
        distributions: what they were drawn from, q of shape [k, V]; None where each was certain,
            as the result of a lookup or of a greedy draft model is.
    """

    token_ids: tuple[int, ...]
    distributions: Floats | None = None


NO_DRAFT = Draft(token_ids=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What the target made of a draft.

    Attributes:
        accepted: how many of the drafts, from the first on.
        next_id: the target's own token after them: the correction, or the bonus if all were
            accepted.
    """

    accepted: int
    next_id: int


def verify(
    draft: Draft, logits: Floats, temperature: float, random: np.random.Generator
) -> Verified:
    """What the target accepts of a draft.

    Args:
        draft: k tokens.
        logits: the target's before each of them and after the last, of shape [k + 1, V].
        temperature: 0 is greedy, and takes nothing from `random`.
        random: where chance comes from.
    """
    if temperature == 0:
        return verify_greedy(draft.token_ids, logits.argmax(axis=-1).tolist())
    return verify_sampled(draft, distributions(logits, temperature), random)


def verify_greedy(token_ids: Sequence[int], choices: Sequence[int]) -> Verified:
    """Accepts drafts as long as they are the target's own choices.

    Args:
        token_ids: k drafts.
        choices: k + 1 ids, the target's likeliest at each place.
    """
    accepted = 0
    while accepted < len(token_ids) and token_ids[accepted] == choices[accepted]:
        accepted += 1
    return Verified(accepted=accepted, next_id=choices[accepted])


def verify_sampled(draft: Draft, target: Floats, random: np.random.Generator) -> Verified:
    """Speculative sampling: what is emitted is distributed as the target says, whatever q is.

    A draft x is accepted with probability min(1, p(x) / q(x)). After a rejection the next token is
    drawn from max(0, p - q), normalized; after k accepted ones from p. (Leviathan et al. 2023,
    algorithm 1; Chen et al. 2023, algorithm 2.)

    Args:
        draft: k tokens.
        target: p of shape [k + 1, V].
        random: where chance comes from.
    """
    for place, token_id in enumerate(draft.token_ids):
        p, q = target[place], _drawn_from(draft, place, target.shape[-1])
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
    """A token id, drawn from weights of shape [V] that need not add up to 1."""
    # Up to the first place where nothing is left: a token of weight 0 is never drawn.
    cumulated = distribution.cumsum()
    return int(np.searchsorted(cumulated, random.random() * cumulated[-1], side="right"))


def _drawn_from(draft: Draft, place: int, vocabulary: int) -> Floats:
    """Q of one draft, of shape [V]."""
    if draft.distributions is not None:
        q: Floats = draft.distributions[place]
        return q
    certain = np.zeros(vocabulary)
    certain[draft.token_ids[place]] = 1.0
    return certain


def _remainder(p: Floats, q: Floats) -> Floats:
    """max(0, p - q). All zeros only where p = q, which rejects nothing but by rounding: p then."""
    left: Floats = np.maximum(p - q, 0.0)
    return left if left.any() else p
