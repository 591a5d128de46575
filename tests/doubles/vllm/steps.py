"""What one request does, step by step, and the sums that a measurement must find."""

import dataclasses
import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

END_TOKEN_ID = 2
FIRST_WORD_ID = 3
_WORDS = """
amber basil cedar delta ember fjord grove heron indigo jasper kelp lotus maple nectar olive pearl
quartz river sage tulip umber violet willow xenon yarrow zephyr
"""
VOCABULARY = tuple(f" {word}" for word in _WORDS.split())
"""The text of the tokens from FIRST_WORD_ID on."""


class FinishReason(StrEnum):
    """Why an answer ends, in the words of the protocol."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Chunk:
    """What comes at once.

    Attributes:
        token_ids: the tokens delivered; with speculation up to k + 1.
        accepted: a_s of each verify step in it; empty for the prefill and without speculation.
        forward_passes: the times of a step it takes.
    """

    token_ids: tuple[int, ...]
    accepted: tuple[int, ...] = ()
    forward_passes: int = 1

    @property
    def text(self) -> str:
        return text_of(self.token_ids)

    def __add__(self, later: "Chunk") -> "Chunk":
        return Chunk(
            self.token_ids + later.token_ids,
            self.accepted + later.accepted,
            self.forward_passes + later.forward_passes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The truth about one request; the verifier's view where tokens were cut off.

    Attributes:
        draft_tokens: k, drafted in every step but the undrafted ones; 0 without speculation.
        accepted: a_s by step that drafts, 0..k, tokens past the end included.
        undrafted: the places of the steps without a draft among all steps, from 0.
        token_ids: the N tokens delivered, an end token included.
        finish_reason: why it ends.
    """

    draft_tokens: int
    accepted: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    undrafted: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return text_of(self.token_ids)

    @property
    def verify_steps(self) -> int:
        """S."""
        return len(self.accepted)

    @property
    def accepted_tokens(self) -> int:
        """A = Σ a_s."""
        return sum(self.accepted)

    @property
    def drafted_tokens(self) -> int:
        """D = Σ k_s."""
        return self.draft_tokens * self.verify_steps

    @property
    def completion_tokens(self) -> int:
        """N, as delivered."""
        return len(self.token_ids)

    @property
    def histogram(self) -> tuple[int, ...]:
        """h_j, the steps with a_s = j, for j in 0..k."""
        return tuple(self.accepted.count(j) for j in range(self.draft_tokens + 1))

    @property
    def accepted_per_position(self) -> tuple[int, ...]:
        """P_i, the steps that accepted position i, for i in 0..k-1."""
        return tuple(sum(a > i for a in self.accepted) for i in range(self.draft_tokens))

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The prefill's token, then one chunk per step, the last one cut."""
        if not self.draft_tokens:
            return tuple(Chunk((token,)) for token in self.token_ids)
        drafted = iter(self.accepted)
        positions = range(len(self.accepted) + len(self.undrafted))
        by_step = [() if position in self.undrafted else (next(drafted),) for position in positions]
        ends = [1]
        for accepted in by_step:
            ends.append(ends[-1] + sum(accepted) + 1)
        steps = zip(pairwise(ends), by_step, strict=True)
        later = (Chunk(self.token_ids[first:end], accepted) for (first, end), accepted in steps)
        return (Chunk(self.token_ids[:1]), *later)


def merged(chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
    """The chunks after the first in pairs, as a late client sees them."""
    return (*chunks[:1], *in_pairs(chunks[1:]))


def in_pairs(chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
    """Two chunks each as one."""
    return tuple(
        chunks[index] + chunks[index + 1] if index + 1 < len(chunks) else chunks[index]
        for index in range(0, len(chunks), 2)
    )


def split(chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
    """The chunks with one token in each, as some front ends send them.

    The first one of a step has its counts and takes its time.
    """
    pieces: list[Chunk] = []
    for chunk in chunks:
        first, *others = chunk.token_ids
        pieces.append(Chunk((first,), chunk.accepted, chunk.forward_passes))
        pieces += (Chunk((token,), forward_passes=0) for token in others)
    return tuple(pieces)


def changed(steps: Steps, from_token: int | None = None) -> Steps:
    """The same with the least likely words from a token on, which counts from 1.

    Without a token only the one halfway is changed.
    """
    first = steps.completion_tokens // 2 if from_token is None else from_token - 1
    last = first + 1 if from_token is None else steps.completion_tokens
    token_ids = tuple(
        likeliest(token)[-1] if first <= index < last and token != END_TOKEN_ID else token
        for index, token in enumerate(steps.token_ids)
    )
    return dataclasses.replace(steps, token_ids=token_ids)


def likeliest(token: int) -> tuple[int, ...]:
    """All words in the order of their chances where a token was said: it, and those after it."""
    words = range(FIRST_WORD_ID, FIRST_WORD_ID + len(VOCABULARY))
    other_words = (
        *(word for word in words if word > token),
        *(word for word in words if word < token),
    )
    return (token, *other_words)


def logprob(rank: int) -> float:
    """How likely the token of a rank, counted from 0, is: each is e times likelier than the next.

    In nats; Σ (1 - 1/e) / eʳ is 1.
    """
    return math.log(1 - 1 / math.e) - rank


def text_of(token_ids: tuple[int, ...]) -> str:
    """The text of tokens; an end token has none."""
    return "".join(VOCABULARY[i - FIRST_WORD_ID] for i in token_ids if i != END_TOKEN_ID)
