"""Draft with n-grams, and verify the draft of one step of speculative decoding.

This is pure Python and numpy, without a model. V is the size of the vocabulary, k the number of
drafts.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating]

LONGEST_RUN_TOKENS = 4
"""The longest run of last tokens that is looked up. `vllm.py` sets the same number for `ngram`."""
SHORTEST_RUN_TOKENS = 2
"""The shortest run that is looked up in the text. `NGramStore` also has runs of one token."""


def propose(context: Sequence[int], draft_tokens: int) -> tuple[int, ...]:
    """Look up what followed the last tokens of a text at their first occurrence in it.

    The same as vLLM's NgramProposer: it takes the longest run of last tokens that occurred earlier
    in the text, and the first occurrence of that run.

    Returns:
        At most `draft_tokens` ids: fewer if the text ends before, none if no run occurred before.
    """
    # The ids become a string, because str has a fast search. An id is a code point, < 0x110000.
    text = "".join(map(chr, context))
    longest = min(LONGEST_RUN_TOKENS, len(text) - 1)
    for tokens in range(longest, SHORTEST_RUN_TOKENS - 1, -1):
        # The search ends before the last token: the end of the text isn't an earlier occurrence,
        # but may overlap with one.
        occurrence = text.find(text[-tokens:], 0, len(text) - 1)
        if occurrence >= 0:
            start = occurrence + tokens
            return tuple(context[start : start + draft_tokens])

    return ()


def propose_padded(context: Sequence[int], draft_tokens: int) -> tuple[int, ...]:
    """Look up what followed the last tokens of a text at their last occurrence before its end.

    The same as vLLM's NgramGPUSpeculator, of model runner V2: it takes the longest run of last
    tokens that occurred earlier in the text, and the last occurrence of that run. Missing ids are
    filled with the last token of the text.

    Returns:
        Exactly `draft_tokens` ids.
    """
    text = "".join(map(chr, context))
    followers: tuple[int, ...] = ()
    longest = min(LONGEST_RUN_TOKENS, len(text) - 1)
    for tokens in range(longest, SHORTEST_RUN_TOKENS - 1, -1):
        occurrence = text.rfind(text[-tokens:], 0, len(text) - 1)
        if occurrence >= 0:
            start = occurrence + tokens
            followers = tuple(context[start : start + draft_tokens])
            break

    padding = (context[-1],) * (draft_tokens - len(followers))
    return (*followers, *padding)


class NGramStore:
    """Counts of the tokens that followed each run of tokens (Ou et al. 2024).

    A run has 1 to `LONGEST_RUN_TOKENS` tokens. The store holds the `max_runs` runs that it learnt
    last, about 0.5 kB each.
    """

    def __init__(self, max_runs: int = 2**20) -> None:
        self._max_runs = max_runs
        self._counts = OrderedDict[tuple[int, ...], dict[int, int]]()

    def learn(self, context: Sequence[int], token_ids: Sequence[int]) -> None:
        """Count tokens as followers of each run of tokens at the end of a text.

        Args:
            context: the text.
            token_ids: the tokens, the best one last: if several followed a run equally often, the
                last one is drafted.
        """
        longest = min(LONGEST_RUN_TOKENS, len(context))
        for tokens in range(1, longest + 1):
            run = tuple(context[-tokens:])
            counts = self._counts.setdefault(run, {})
            for token_id in token_ids:
                # Removing the count first moves the token to the end: the last learnt comes last.
                count = counts.pop(token_id, 0)
                counts[token_id] = count + 1
            self._counts.move_to_end(run)

        while len(self._counts) > self._max_runs:
            self._counts.popitem(last=False)

    def propose(self, context: Sequence[int], draft_tokens: int) -> tuple[int, ...]:
        """Draft token by token.

        Each draft is the token that most often followed the longest known run of last tokens. Of
        tokens that followed equally often, the one that was learnt last is drafted.

        Returns:
            At most `draft_tokens` ids: fewer, or none, if no run of last tokens is known.
        """
        text = list(context[-LONGEST_RUN_TOKENS:])
        drafted: list[int] = []
        while len(drafted) < draft_tokens:
            counts = self._counts_after(text)
            if counts is None:
                break
            # `max` returns the first of equal counts. In reversed order that is the last learnt.
            token_id = max(reversed(counts), key=counts.__getitem__)
            drafted.append(token_id)
            text.append(token_id)

        return tuple(drafted)

    def _counts_after(self, text: Sequence[int]) -> dict[int, int] | None:
        """Return the counts after the longest known run of last tokens; None if none is known."""
        longest = min(LONGEST_RUN_TOKENS, len(text))
        for tokens in range(longest, 0, -1):
            run = tuple(text[-tokens:])
            if run in self._counts:
                return self._counts[run]
        return None


def likeliest(logits: FloatArray, count: int) -> list[int]:
    """Return the ids of the likeliest tokens, the likeliest last.

    Args:
        logits: of shape [V].
        count: how many tokens, at most V.
    """
    ids = np.argpartition(logits, -count)[-count:]
    ordered: list[int] = ids[np.argsort(logits[ids])].tolist()
    return ordered


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The tokens drafted after a text.

    Attributes:
        token_ids: k ids, k >= 0.
        distributions: the distributions q from which they were drawn, of shape [k, V]. None if each
            token was certain, as with a lookup or a greedy draft model.
    """

    token_ids: tuple[int, ...]
    distributions: FloatArray | None = None


NO_DRAFT = Draft(token_ids=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The target's judgement of a draft.

    Attributes:
        accepted: how many drafts the target accepts, from the first one on.
        next_id: the target's own token after them: a correction, or a bonus if all are accepted.
    """

    accepted: int
    next_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: 0 is greedy.
        top_p: only the likeliest tokens that have this probability together are drawn, 0..1.
        top_k: only this many of the likeliest tokens are drawn; None for all.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None

    def distributions(self, logits: FloatArray) -> FloatArray:
        """Return the distributions from which tokens are drawn, one for each row of logits.

        The temperature must be above 0.
        """
        p = distributions(logits, self.temperature)
        if self.top_k is None and self.top_p >= 1:
            return p
        order = np.argsort(-p, axis=-1, kind="stable")
        sorted_p = np.take_along_axis(p, order, -1)
        if self.top_k is not None:
            sorted_p[..., self.top_k :] = 0.0
            sorted_p /= sorted_p.sum(axis=-1, keepdims=True)

        # A token stays if all likelier ones together have less than top_p. So the likeliest stays.
        before = sorted_p.cumsum(axis=-1) - sorted_p
        sorted_p[before >= self.top_p] = 0.0
        sorted_p /= sorted_p.sum(axis=-1, keepdims=True)
        cut = np.empty_like(p)
        np.put_along_axis(cut, order, sorted_p, -1)
        return cut


GREEDY = Sampling()


def verify(
    draft: Draft, logits: FloatArray, sampling: Sampling, random: np.random.Generator
) -> Verified:
    """Verify a draft of k tokens.

    Args:
        draft: the tokens to verify.
        logits: the target's logits before each of the tokens and after the last one, of shape
            [k + 1, V].
        sampling: how tokens are drawn. If it is greedy, drafts that equal the target's own choices
            are accepted, and nothing is drawn.
        random: the random numbers, which are only used at a temperature above 0.
    """
    if sampling.temperature > 0:
        return verify_sampled(draft, sampling.distributions(logits), random)
    choices = logits.argmax(axis=-1).tolist()
    accepted = 0
    while accepted < len(draft.token_ids) and draft.token_ids[accepted] == choices[accepted]:
        accepted += 1
    return Verified(accepted=accepted, next_id=choices[accepted])


def verify_sampled(draft: Draft, target: FloatArray, random: np.random.Generator) -> Verified:
    """Verify a draft by speculative sampling, which emits tokens with the target's distribution.

    A draft x is accepted with probability min(1, p(x) / q(x)). After a rejection the next token is
    drawn from max(0, p - q), normalized; after k accepted drafts from p. (Leviathan et al. 2023,
    algorithm 1; Chen et al. 2023, algorithm 2.)

    Args:
        draft: the tokens x and the distributions q from which they were drawn.
        target: the target's distributions p, of shape [k + 1, V].
        random: the random numbers that decide.
    """
    for index, token_id in enumerate(draft.token_ids):
        p = target[index]
        if draft.distributions is None:
            # A draft that was certain was drawn from a distribution with all weight on it.
            q: FloatArray = np.zeros(len(p))
            q[token_id] = 1.0
        else:
            q = draft.distributions[index]
        # The same as `random >= p / q`, without a division by a q of 0.
        is_rejected = random.random() * q[token_id] >= p[token_id]
        if is_rejected:
            next_id = sample(_remainder(p, q), random)
            return Verified(accepted=index, next_id=next_id)

    next_id = sample(target[-1], random)
    return Verified(accepted=len(draft.token_ids), next_id=next_id)


def distributions(logits: FloatArray, temperature: float) -> FloatArray:
    """Return softmax(logits / temperature) over the last axis, in float64; temperature > 0."""
    scaled = logits.astype(np.float64) / temperature
    # The largest logit is subtracted, because the exponential of a large number overflows.
    largest = scaled.max(axis=-1, keepdims=True)
    weights = np.exp(scaled - largest)
    normalized: FloatArray = weights / weights.sum(axis=-1, keepdims=True)
    return normalized


def sample(distribution: FloatArray, random: np.random.Generator) -> int:
    """Draw a token id from weights of shape [V] that need not add up to 1."""
    # With "right" the search ends behind equal sums, so a token of weight 0 is never drawn.
    cumulated = distribution.cumsum()
    drawn = random.random() * cumulated[-1]
    return int(np.searchsorted(cumulated, drawn, side="right"))


def _remainder(p: FloatArray, q: FloatArray) -> FloatArray:
    """Return max(0, p - q), or p if that is zero everywhere.

    It is zero everywhere only if p = q. Then nothing is rejected, except by a rounding error.
    """
    remainder: FloatArray = np.maximum(p - q, 0.0)
    return remainder if remainder.any() else p
