"""Acceptance as counts: what was drafted and accepted, and the figures that follow from it."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """Where an acceptance record comes from."""

    VLLM_COUNTERS = "vllm_counters"
    VLLM_REQUEST = "vllm_request"


class View(StrEnum):
    """Whose tokens are counted: all the verifier accepted, or those that reached the client."""

    VERIFIER = "verifier"
    EMITTED = "emitted"


class Weighting(StrEnum):
    """What weighs the same in a mean: each step, each request or each category."""

    STEP = "step"
    REQUEST = "request"
    CATEGORY = "category"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """The steps of one request, or of many added up.

    Attributes:
        steps: verify steps in which something was drafted (S).
        accepted: draft tokens that the target accepted (A).
        proposed: draft tokens (D).
        position_counts: entry i counts the steps with more than i drafts accepted (P_(i+1)); as
            long as the drafts of a step.
    """

    steps: int
    accepted: int
    proposed: int
    position_counts: tuple[int, ...]

    @classmethod
    def from_histogram(cls, histogram: Iterable[int], proposed: int) -> "StepCounts":
        """Counts from h_j, the number of steps with j drafts accepted (j from 0).

        S = Σ h_j, A = Σ j·h_j, P_i = Σ_(j ≥ i) h_j.
        """
        steps_by_accepted = tuple(histogram)
        return cls(
            steps=sum(steps_by_accepted),
            accepted=sum(j * steps for j, steps in enumerate(steps_by_accepted)),
            proposed=proposed,
            position_counts=tuple(
                sum(steps_by_accepted[i:]) for i in range(1, len(steps_by_accepted))
            ),
        )

    def __add__(self, other: "StepCounts") -> "StepCounts":
        width = max(len(self.position_counts), len(other.position_counts))
        return StepCounts(
            steps=self.steps + other.steps,
            accepted=self.accepted + other.accepted,
            proposed=self.proposed + other.proposed,
            position_counts=tuple(
                a + b
                for a, b in zip(
                    _padded(self.position_counts, width),
                    _padded(other.position_counts, width),
                    strict=True,
                )
            ),
        )

    def __sub__(self, other: "StepCounts") -> "StepCounts":
        return self + StepCounts(
            steps=-other.steps,
            accepted=-other.accepted,
            proposed=-other.proposed,
            position_counts=tuple(-count for count in other.position_counts),
        )

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
        """AR = A / D, 0..1; None when nothing was drafted."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def marginal_acceptance(self) -> tuple[float, ...]:
        """P_i / S for each position, 0..1, never rising; they add up to AL - 1."""
        return tuple(count / self.steps for count in self.position_counts) if self.steps else ()


NO_STEPS = StepCounts(steps=0, accepted=0, proposed=0, position_counts=())


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAcceptance:
    """What one prompt did: its counts and its completion tokens."""

    prompt_id: str
    category: str
    counts: StepCounts
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRecord:
    """The acceptance of a measurement, with the tags without which it can't be compared.

    Attributes:
        source, view, weighting: two records that differ in one of them are not compared.
        total: all steps of the window.
        prompts: what each prompt did, in the order of the prompts; empty where the source only
            knows the sum.
    """

    source: Source
    view: View
    weighting: Weighting
    total: StepCounts
    prompts: tuple[PromptAcceptance, ...]

    @property
    def by_category(self) -> "Mapping[str, AcceptanceRecord]":
        """The part of each category, in the order in which the prompts bring them up."""
        categories: dict[str, list[PromptAcceptance]] = {}
        for prompt in self.prompts:
            categories.setdefault(prompt.category, []).append(prompt)
        return {
            category: dataclasses.replace(
                self,
                total=sum((prompt.counts for prompt in prompts), NO_STEPS),
                prompts=tuple(prompts),
            )
            for category, prompts in categories.items()
        }


def _padded(counts: tuple[int, ...], width: int) -> tuple[int, ...]:
    return counts + (0,) * (width - len(counts))
