"""Acceptance as counts: what was drafted and accepted, and the figures that follow from it."""

import dataclasses
import itertools
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from specreg.core.readable import Label

_CountT = TypeVar("_CountT")
_KeyT = TypeVar("_KeyT")
_RequestKey = tuple[str | tuple[str, ...], int]
"""A prompt and a turn; or the prompts of a round, and 0."""
_AnswerSet = set[tuple["StepCounts", int]]
"""The counts and the number of tokens of each different answer."""


class Source(StrEnum):
    """The origin of the counts of an acceptance record."""

    VLLM_COUNTERS = "vllm_counters"
    VLLM_REQUEST = "vllm_request"
    SGLANG_REQUEST = "sglang_request"
    TRTLLM_COUNTERS = "trtllm_counters"
    REFERENCE = "reference"
    STREAM_CHUNKS = "stream_chunks"


_RECONCILED = ({Source.VLLM_COUNTERS, Source.VLLM_REQUEST},)
"""Sets of sources that may be compared with each other. Each measurement checks that the counts of
its requests add up to the engine's counters."""


class View(StrEnum):
    """Which tokens are counted.

    Attributes:
        VERIFIER: all tokens that the verifier accepted.
        EMITTED: only the tokens that reached the client.
    """

    VERIFIER = "verifier"
    EMITTED = "emitted"


class CountedSteps(StrEnum):
    """Which steps of a method that may find no draft are counted.

    Attributes:
        DRAFTED: the steps in which something was drafted.
        ALL: every step, because a step that finds no draft is filled up with tokens that count as
            drafts.
    """

    DRAFTED = "drafted"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts(Generic[_CountT]):
    """The fields of `StepCounts`: integers, or arrays with an entry for each prompt."""

    steps: _CountT
    accepted: _CountT
    proposed: _CountT | None
    position_counts: tuple[_CountT, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts(Counts[int]):
    """The verify steps of one request, or of several requests added up.

    Attributes:
        steps: the number of counted verify steps (S), usually those in which something was
            drafted; see `CountedSteps`.
        accepted: the number of draft tokens that the target accepted (A).
        proposed: the number of draft tokens (D); None if the source doesn't report it.
        position_counts: entry i counts the steps with more than i drafts accepted (P_(i+1)). It has
            as many entries as a step can accept drafts; from some sources, only as many as the most
            that a step did accept.
    """

    @classmethod
    def from_histogram(cls, histogram: Iterable[int], proposed: int | None) -> "StepCounts":
        """Build the counts from h_j, the number of steps with j drafts accepted (j from 0).

        S = Σ h_j, A = Σ j·h_j, P_i = Σ_(j ≥ i) h_j.
        """
        steps_by_accepted = tuple(histogram)
        accepted = sum(j * steps for j, steps in enumerate(steps_by_accepted))

        # A step that accepted j drafts has accepted the first, the second, … and the j-th.
        positions = range(1, len(steps_by_accepted))
        position_counts = [sum(steps_by_accepted[position:]) for position in positions]
        return cls(
            steps=sum(steps_by_accepted),
            accepted=accepted,
            proposed=proposed,
            position_counts=tuple(position_counts),
        )

    def __add__(self, addend: "StepCounts") -> "StepCounts":
        # A sum in which the drafts of one part are missing would be too small.
        proposed = None
        if self.proposed is not None and addend.proposed is not None:
            proposed = self.proposed + addend.proposed
        positions = itertools.zip_longest(self.position_counts, addend.position_counts, fillvalue=0)
        return StepCounts(
            steps=self.steps + addend.steps,
            accepted=self.accepted + addend.accepted,
            proposed=proposed,
            position_counts=tuple(map(sum, positions)),
        )

    def __sub__(self, subtrahend: "StepCounts") -> "StepCounts":
        proposed = None
        if subtrahend.proposed is not None:
            proposed = -subtrahend.proposed
        return self + StepCounts(
            steps=-subtrahend.steps,
            accepted=-subtrahend.accepted,
            proposed=proposed,
            position_counts=tuple(-count for count in subtrahend.position_counts),
        )

    def to_depth(self, draft_tokens: int) -> "StepCounts":
        """Pad `position_counts` with zeros to the most drafts that a step can accept.

        Counts without steps stay as they are.
        """
        if not self.steps:
            return self
        padding = (0,) * (draft_tokens - len(self.position_counts))
        return dataclasses.replace(self, position_counts=(*self.position_counts, *padding))

    def undrafted_steps(self, later_tokens: int) -> int:
        """Return how many steps drafted nothing, at least, and aren't part of S.

        A counted step emits the drafts that it accepts, and one token more. Such a step emits one
        token. So these steps show as tokens that the counted steps can't have emitted, less the
        tokens that the end of the answer cut off. The chunks of the stream show nothing about
        steps: a front end may send each token in a chunk of its own, or several steps in one.

        Args:
            later_tokens: the number of tokens after the first one of each request: N - R.
        """
        return max(later_tokens - self.accepted - self.steps, 0)

    def over_all_steps(self, later_tokens: int) -> "StepCounts":
        """Return all steps and the accepted drafts that were delivered, without the other counts.

        Engines differ in which steps they count, and in whether they count accepted drafts that the
        end of the answer cut off. These two numbers mean the same for all of them.

        Args:
            later_tokens: the number of tokens after the first one of each request: N - R.
        """
        steps = self.steps + self.undrafted_steps(later_tokens)
        # Each step emits one token that isn't a draft.
        delivered = max(later_tokens - steps, 0)
        return StepCounts(steps=steps, accepted=delivered, proposed=None, position_counts=())

    @property
    def histogram(self) -> tuple[int, ...]:
        """The number of steps with exactly j drafts accepted: h_j = P_j - P_(j+1), with P_0 = S."""
        at_least = (self.steps, *self.position_counts, 0)
        return tuple(earlier - later for earlier, later in itertools.pairwise(at_least))

    @property
    def acceptance_length(self) -> float | None:
        """AL = 1 + A / S, in tokens per step, 1 or more; None without steps."""
        if not self.steps:
            return None
        return 1 + self.accepted / self.steps

    @property
    def acceptance_rate(self) -> float | None:
        """AR = A / D, from 0 to 1; None if nothing was drafted, or if D is unknown."""
        if not self.proposed:
            return None
        return self.accepted / self.proposed

    @property
    def marginal_acceptance(self) -> tuple[float, ...]:
        """P_i / S for each position, from 0 to 1, never rising; they add up to AL - 1."""
        if not self.steps:
            return ()
        return tuple(count / self.steps for count in self.position_counts)

    @property
    def conditional_acceptance(self) -> tuple[float, ...]:
        """P_i / P_(i-1) for each position that was reached, with P_0 = S; from 0 to 1."""
        at_least = (self.steps, *self.position_counts)
        pairs = itertools.pairwise(at_least)
        return tuple(later / earlier for earlier, later in pairs if earlier)


NO_STEPS = StepCounts(steps=0, accepted=0, proposed=0, position_counts=())


def _sum_if_known(one: int | None, other: int | None) -> int | None:
    """Return a sum; None if a part of it isn't known."""
    if one is None or other is None:
        return None
    return one + other


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """How many equal series each counter of a server has, all of which are in its sum.

    Each rank of tensor parallelism may count all steps. Some servers do so for some counters only.
    """

    steps: int = 1
    accepted: int = 1
    proposed: int = 1
    positions: int = 1
    requests: int = 1
    further: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """A server's own counters at a moment, or their rise, summed over its copies of the model.

    Attributes:
        steps: the number of verify steps (S).
        counts: all counts of the steps; None if the server counts only steps.
        requests: the number of requests that ended; None if the server doesn't count them.
        running_requests: the number of requests running at the moment. For a rise, it is the larger
            one of the numbers before and after it. None if the server doesn't report it.
        further: the engine's further counters, by the names that metrics use for them; see
            `WireFormat.further_counters`.
        copies: how many equal series each counter has.
    """

    steps: int
    counts: StepCounts | None = None
    requests: int | None = None
    running_requests: int | None = None
    further: Mapping[str, float] = field(default_factory=dict)
    copies: Copies = Copies()

    def __add__(self, other: "Counters") -> "Counters":
        """Add the counters of another replica.

        What one of them doesn't count isn't known, except for a further counter: a server may leave
        that out until it counts something.
        """
        counts = None
        if self.counts is not None and other.counts is not None:
            counts = self.counts + other.counts
        return Counters(
            steps=self.steps + other.steps,
            counts=counts,
            requests=_sum_if_known(self.requests, other.requests),
            running_requests=_sum_if_known(self.running_requests, other.running_requests),
            further={
                name: self.further.get(name, 0.0) + other.further.get(name, 0.0)
                for name in {**self.further, **other.further}
            },
            copies=self.copies,
        )

    @property
    def of_one_copy(self) -> "Counters":
        """The counts of one of the copies."""
        copies = self.copies
        counts = self.counts
        if counts is not None:
            proposed = counts.proposed
            counts = StepCounts(
                steps=counts.steps // copies.steps,
                accepted=counts.accepted // copies.accepted,
                proposed=None if proposed is None else proposed // copies.proposed,
                position_counts=tuple(
                    count // copies.positions for count in counts.position_counts
                ),
            )

        requests = self.requests
        further = {
            name: amount / copies.further.get(name, 1) for name, amount in self.further.items()
        }
        return dataclasses.replace(
            self,
            steps=self.steps // copies.steps,
            counts=counts,
            requests=None if requests is None else requests // copies.requests,
            further=further,
            copies=Copies(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAcceptance:
    """The acceptance of one request.

    Attributes:
        category: the category of the prompt.
        counts: the counts of the request's steps.
        completion_tokens: the number of tokens of the answer.
        turn: which turn of the conversation it is, from 1.
    """

    prompt_id: Label
    category: Label
    counts: StepCounts
    completion_tokens: int
    turn: int = 1

    @property
    def later_tokens(self) -> int:
        """The number of tokens after the first one, which the prefill emits."""
        return max(self.completion_tokens - 1, 0)

    @property
    def over_all_steps(self) -> "PromptAcceptance":
        """The acceptance over all steps, see `StepCounts.over_all_steps`."""
        return dataclasses.replace(self, counts=self.counts.over_all_steps(self.later_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAcceptance:
    """The acceptance of a round's requests together, from the counters before and after it.

    Attributes:
        prompt_ids: the ids of the round's prompts, each once, in their order.
        counts: the counts of the steps of all requests.
        completion_tokens: the number of tokens of all answers.
        requests: the number of requests.
    """

    prompt_ids: tuple[str, ...]
    counts: StepCounts
    completion_tokens: int
    requests: int

    @property
    def later_tokens(self) -> int:
        """The number of tokens after the first one of each request, which the prefill emits."""
        return max(self.completion_tokens - self.requests, 0)

    @property
    def over_all_steps(self) -> "RoundAcceptance":
        """The acceptance over all steps, see `StepCounts.over_all_steps`."""
        return dataclasses.replace(self, counts=self.counts.over_all_steps(self.later_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRecord:
    """The acceptance of a measurement.

    Attributes:
        source: the origin of the counts. Records of different sources are not compared, except for
            those that are reconciled with one another.
        view: which tokens are counted. Records of different views are not compared.
        total: the counts of all requests.
        prompts: the acceptance of each request, in the order of the prompts; empty if the source
            reports only the sum.
        later_tokens: the number of tokens delivered after the first one of each request: N - R for
            N tokens of R requests; None if it isn't known.
        counted: which steps are counted. Two records that count different steps are compared over
            all steps.
        rounds: the acceptance of each round or batch that is compared, if the counters were read
            between them; empty if the source reports each request, or if only the sum is known.
        chunks_split_steps: whether the tokens of a step came in several chunks, so that the times
            between chunks aren't those of steps, see `have_split_steps`.
    """

    source: Source
    view: View
    total: StepCounts
    prompts: tuple[PromptAcceptance, ...]
    later_tokens: int | None = None
    counted: CountedSteps = CountedSteps.DRAFTED
    rounds: tuple[RoundAcceptance, ...] = ()
    chunks_split_steps: bool = False

    @property
    def undrafted_steps(self) -> int | None:
        """How many steps drafted nothing, at least; None if the tokens aren't known."""
        if self.prompts:
            steps = (prompt.counts.undrafted_steps(prompt.later_tokens) for prompt in self.prompts)
            return sum(steps)
        if self.later_tokens is None:
            return None
        return self.total.undrafted_steps(self.later_tokens)

    @property
    def prompt_ids(self) -> tuple[str, ...]:
        """The ids of the prompts of all requests and rounds of the record, in their order."""
        # A prompt with several turns has several requests. A dictionary has its id once, in order.
        prompt_ids = dict.fromkeys(prompt.prompt_id for prompt in self.prompts)
        for round_acceptance in self.rounds:
            prompt_ids |= dict.fromkeys(round_acceptance.prompt_ids)
        return tuple(prompt_ids)

    def counts_as(self, source: Source, view: View) -> bool:
        """Return whether a source and a view count the same steps as this record."""
        if self.view is not view:
            return False
        sources = {self.source, source}
        return len(sources) == 1 or sources in _RECONCILED

    @property
    def over_all_steps(self) -> "AcceptanceRecord":
        """The record over all steps, see `StepCounts.over_all_steps`."""
        prompts = tuple(prompt.over_all_steps for prompt in self.prompts)
        rounds = tuple(round_acceptance.over_all_steps for round_acceptance in self.rounds)
        total = self.total
        if prompts:
            total = sum((prompt.counts for prompt in prompts), NO_STEPS)
        elif self.later_tokens is not None:
            total = total.over_all_steps(self.later_tokens)

        return dataclasses.replace(
            self, total=total, prompts=prompts, counted=CountedSteps.ALL, rounds=rounds
        )

    @property
    def by_category(self) -> "Mapping[str, AcceptanceRecord]":
        """The record of each category, in the order of the prompts."""
        return self._parts_by(lambda prompt: prompt.category)

    @property
    def by_turn(self) -> "Mapping[int, AcceptanceRecord]":
        """The record of each turn, from the first."""
        return self._parts_by(lambda prompt: prompt.turn)

    def to_depth(self, draft_tokens: int) -> "AcceptanceRecord":
        """Pad all counts with zeros to the most drafts that a step can accept."""
        prompts = []
        for prompt in self.prompts:
            counts = prompt.counts.to_depth(draft_tokens)
            prompts.append(dataclasses.replace(prompt, counts=counts))
        rounds = []
        for round_acceptance in self.rounds:
            counts = round_acceptance.counts.to_depth(draft_tokens)
            rounds.append(dataclasses.replace(round_acceptance, counts=counts))
        total = self.total.to_depth(draft_tokens)
        return dataclasses.replace(self, total=total, prompts=tuple(prompts), rounds=tuple(rounds))

    def repeats(self, second_record: "AcceptanceRecord") -> bool:
        """Return whether the answers that both records have are equal in counts and length."""
        answers = _answers_by_request(self)
        second_answers = _answers_by_request(second_record)
        shared_requests = answers.keys() & second_answers.keys()
        return all(answers[request] == second_answers[request] for request in shared_requests)

    def only(self, prompt_ids: Container[str]) -> "AcceptanceRecord":
        """Return the record of some prompts, and of the rounds that replayed none but these."""
        rounds = [
            round_acceptance
            for round_acceptance in self.rounds
            if all(prompt_id in prompt_ids for prompt_id in round_acceptance.prompt_ids)
        ]
        prompts = [prompt for prompt in self.prompts if prompt.prompt_id in prompt_ids]
        return self._part(prompts, rounds)

    def _parts_by(
        self, key: Callable[[PromptAcceptance], _KeyT]
    ) -> "Mapping[_KeyT, AcceptanceRecord]":
        prompts_by_key: dict[_KeyT, list[PromptAcceptance]] = {}
        for prompt in self.prompts:
            prompts_by_key.setdefault(key(prompt), []).append(prompt)
        return {value: self._part(prompts) for value, prompts in prompts_by_key.items()}

    def _part(
        self, prompts: Iterable[PromptAcceptance], rounds: Iterable[RoundAcceptance] = ()
    ) -> "AcceptanceRecord":
        prompts_of_part = tuple(prompts)
        rounds_of_part = tuple(rounds)
        parts: tuple[PromptAcceptance | RoundAcceptance, ...] = (*prompts_of_part, *rounds_of_part)
        return dataclasses.replace(
            self,
            total=sum((part.counts for part in parts), NO_STEPS),
            prompts=prompts_of_part,
            later_tokens=sum(part.later_tokens for part in parts),
            rounds=rounds_of_part,
        )


def _answers_by_request(record: AcceptanceRecord) -> dict[_RequestKey, _AnswerSet]:
    """Return the different answers to each request. A round has the sums of all its answers."""
    answers: dict[_RequestKey, _AnswerSet] = {}
    for prompt in record.prompts:
        answer = (prompt.counts, prompt.completion_tokens)
        answers.setdefault((prompt.prompt_id, prompt.turn), set()).add(answer)
    for round_acceptance in record.rounds:
        answer = (round_acceptance.counts, round_acceptance.completion_tokens)
        answers.setdefault((round_acceptance.prompt_ids, 0), set()).add(answer)
    return answers
