"""Acceptance as counts: what was drafted and accepted, and the figures that follow from it."""

import dataclasses
import itertools
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

_CountT = TypeVar("_CountT")
_KeyT = TypeVar("_KeyT")


class Source(StrEnum):
    """Where an acceptance record comes from."""

    VLLM_COUNTERS = "vllm_counters"
    VLLM_REQUEST = "vllm_request"
    SGLANG_REQUEST = "sglang_request"
    TRTLLM_COUNTERS = "trtllm_counters"
    REFERENCE = "reference"
    STREAM_CHUNKS = "stream_chunks"


class View(StrEnum):
    """Whose tokens are counted: all the verifier accepted, or those that reached the client."""

    VERIFIER = "verifier"
    EMITTED = "emitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts(Generic[_CountT]):
    """The fields of `StepCounts`, as integers or as columns of prompts."""

    steps: _CountT
    accepted: _CountT
    proposed: _CountT | None
    position_counts: tuple[_CountT, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts(Counts[int]):
    """The steps of one request, or of many added up.

    Attributes:
        steps: verify steps in which something was drafted (S).
        accepted: draft tokens that the target accepted (A).
        proposed: draft tokens (D); None where the source doesn't say.
        position_counts: entry i counts the steps with more than i drafts accepted (P_(i+1)); as
            long as the most that a step can accept, or as those of a source that ends with the
            most that one did.
    """

    @classmethod
    def from_histogram(cls, histogram: Iterable[int], proposed: int | None) -> "StepCounts":
        """Counts from h_j, the number of steps with j drafts accepted (j from 0).

        S = Σ h_j, A = Σ j·h_j, P_i = Σ_(j ≥ i) h_j.
        """
        steps = tuple(histogram)
        return cls(
            steps=sum(steps),
            accepted=sum(j * count for j, count in enumerate(steps)),
            proposed=proposed,
            position_counts=tuple(sum(steps[i:]) for i in range(1, len(steps))),
        )

    def __add__(self, other: "StepCounts") -> "StepCounts":
        known = self.proposed is not None and other.proposed is not None
        pairs = itertools.zip_longest(self.position_counts, other.position_counts, fillvalue=0)
        return StepCounts(
            steps=self.steps + other.steps,
            accepted=self.accepted + other.accepted,
            proposed=(self.proposed or 0) + (other.proposed or 0) if known else None,
            position_counts=tuple(map(sum, pairs)),
        )

    def __sub__(self, other: "StepCounts") -> "StepCounts":
        return self + StepCounts(
            steps=-other.steps,
            accepted=-other.accepted,
            proposed=None if other.proposed is None else -other.proposed,
            position_counts=tuple(-count for count in other.position_counts),
        )

    def to_depth(self, draft_tokens: int) -> "StepCounts":
        """Pad with zeros up to the most drafts that a step can accept; not without steps."""
        missing = draft_tokens - len(self.position_counts) if self.steps else 0
        return dataclasses.replace(self, position_counts=(*self.position_counts, *[0] * missing))

    @property
    def histogram(self) -> tuple[int, ...]:
        """h_j = P_j - P_(j+1), with P_0 = S: the steps with exactly j drafts accepted."""
        at_least = (self.steps, *self.position_counts, 0)
        return tuple(a - b for a, b in itertools.pairwise(at_least))

    @property
    def acceptance_length(self) -> float | None:
        """AL = 1 + A / S, tokens per step, 1 or more; None without steps."""
        return 1 + self.accepted / self.steps if self.steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """AR = A / D, 0..1; None when nothing was drafted, or D is unknown."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def marginal_acceptance(self) -> tuple[float, ...]:
        """P_i / S for each position, 0..1, never rising; they add up to AL - 1."""
        return tuple(count / self.steps for count in self.position_counts) if self.steps else ()

    @property
    def conditional_acceptance(self) -> tuple[float, ...]:
        """P_i / P_(i-1) for each position that was reached, with P_0 = S; 0..1."""
        at_least = (self.steps, *self.position_counts)
        return tuple(later / earlier for earlier, later in itertools.pairwise(at_least) if earlier)


NO_STEPS = StepCounts(steps=0, accepted=0, proposed=0, position_counts=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """A server's own counters, summed over its engines: at one moment, or what they moved by.

    None is what it doesn't say: of the steps more than S, how many `requests` ended, how many ran
    at that moment, or at the busier end of a move.
    """

    steps: int
    counts: StepCounts | None = None
    requests: int | None = None
    running_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAcceptance:
    """What one request did: its counts and its completion tokens; `turn` counts from 1.

    `undrafted_steps` are those that drafted nothing, which are none of the counted ones; None where
    that isn't known.
    """

    prompt_id: str
    category: str
    counts: StepCounts
    completion_tokens: int
    turn: int = 1
    undrafted_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRecord:
    """The acceptance of a measurement, with the tags without which it can't be compared.

    Attributes:
        source, view: two records that differ in one of them are not compared.
        prompts: what each request did, in the order of the prompts; empty where the source only
            knows the sum.
        undrafted_steps: of all requests, the steps that drafted nothing; see `undrafted_steps_of`.
        later_tokens: of all requests, the tokens delivered after the first one of each, N - R. Both
            are None where that isn't known.
    """

    source: Source
    view: View
    total: StepCounts
    prompts: tuple[PromptAcceptance, ...]
    undrafted_steps: int | None = None
    later_tokens: int | None = None

    @property
    def by_category(self) -> "Mapping[str, AcceptanceRecord]":
        """The record of each category alone, in the order of the prompts."""
        return self._parts_by(lambda one: one.category)

    @property
    def by_turn(self) -> "Mapping[int, AcceptanceRecord]":
        """The record of each turn alone, from the first."""
        return self._parts_by(lambda one: one.turn)

    def to_depth(self, draft_tokens: int) -> "AcceptanceRecord":
        """Pad all counts with zeros up to the most drafts that a step can accept."""
        prompts = tuple(
            dataclasses.replace(prompt, counts=prompt.counts.to_depth(draft_tokens))
            for prompt in self.prompts
        )
        return dataclasses.replace(self, total=self.total.to_depth(draft_tokens), prompts=prompts)

    def only(self, prompt_ids: Container[str]) -> "AcceptanceRecord":
        """The record of some prompts alone."""
        return self._part(prompt for prompt in self.prompts if prompt.prompt_id in prompt_ids)

    def _parts_by(
        self, key: Callable[[PromptAcceptance], _KeyT]
    ) -> "Mapping[_KeyT, AcceptanceRecord]":
        keys = dict.fromkeys(map(key, self.prompts))
        return {one: self._part(p for p in self.prompts if key(p) == one) for one in keys}

    def _part(self, prompts: Iterable[PromptAcceptance]) -> "AcceptanceRecord":
        kept = tuple(prompts)
        undrafted = [prompt.undrafted_steps for prompt in kept]
        known = [steps for steps in undrafted if steps is not None]
        return dataclasses.replace(
            self,
            total=sum((prompt.counts for prompt in kept), NO_STEPS),
            prompts=kept,
            undrafted_steps=sum(known) if len(known) == len(undrafted) else None,
            later_tokens=sum(prompt.completion_tokens - 1 for prompt in kept),
        )
