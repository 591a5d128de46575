"""Compare greedy answers token by token, and tell rounding from a changed text.

Greedy speculation must not change a text. Where two answers part, either rounding chose between two
tokens that are as good as equally likely, or one of them is wrong: the server that gave the plain
answers says how likely both were. After that token the texts differ, and say nothing.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specreg.core.errors import InvalidMeasurementError
from specreg.engines.wire_format import Transcript
from specreg.matrix.case import ROUNDING_NATS

MOST_NOISE_NATS = 1.0
"""A server that differs from itself by more can't be judged: that is no rounding."""
_MOST_NAMED = 3

Score = Callable[[Sequence[tuple[Sequence[int], Sequence[int]]]], Sequence[Sequence[float]]]
"""Takes texts with candidates, and gives the log-probabilities of these by a server."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where an answer first differs from the one without speculation.

    Attributes:
        prompt_id: the prompt.
        position: the index of the first differing token of the answer.
        plain: the token without speculation there; None if that answer has ended.
        speculative: the token with speculation there; None if that answer has ended.
        text: as ids, the prompt and what both answers say up to there.
        gap_nats: how much likelier `plain` is; None if an answer has ended.
    """

    prompt_id: str
    position: int
    plain: int | None
    speculative: int | None
    text: tuple[int, ...] = ()
    gap_nats: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Losslessness:
    """How a case's answers compare with the plain ones, those without speculation.

    Attributes:
        prompts: how many answers were compared, one at least.
        compared_by_token: how many of them were compared token by token; the rest are known to be
            equal.
        partings: where the answers part from the plain ones.
        noise: where the plain ones part from themselves at another batch size; None if they weren't
            asked for again.
        rounding_nats: what the case calls rounding; 0 demands that every token is equal.
    """

    prompts: int
    compared_by_token: int
    partings: tuple[Parting, ...]
    noise: tuple[Parting, ...] | None
    rounding_nats: float

    @property
    def bound_nats(self) -> float:
        """The gap that counts as rounding: the control's own noise if that is more."""
        noise_nats = [
            abs(parting.gap_nats) for parting in self.noise or () if parting.gap_nats is not None
        ]
        return max(self.rounding_nats, *noise_nats, 0.0)

    @property
    def failures(self) -> tuple[Parting, ...]:
        """The differences that rounding doesn't explain."""
        bound = self.bound_nats if self.rounding_nats else -1.0
        return tuple(
            parting
            for parting in self.partings
            if parting.gap_nats is None or abs(parting.gap_nats) > bound
        )

    @property
    def equal_frac(self) -> float:
        """The share of the answers that are equal, 0..1."""
        return 1 - len(self.partings) / self.prompts

    @property
    def control_equal_frac(self) -> float | None:
        """The share of the control's own answers that are equal at another batch size, 0..1.

        It is of the answers that were compared token by token; None if they weren't asked again.
        """
        if self.noise is None:
            return None
        return 1 - len(self.noise) / self.compared_by_token

    def describe(self, plain: str, speculative: str) -> str:
        """Say what is equal, what rounding explains and what nothing does.

        `plain` and `speculative` name the answers, "without speculation" for instance.
        """
        summary = f"{self.equal_frac:.1%} of {self.prompts} answers are equal"
        if self.compared_by_token < self.prompts:
            summary += (
                f" ({self.compared_by_token} that differed when they were timed were asked again)"
            )
        if self.control_equal_frac is not None:
            summary += f", {self.control_equal_frac:.1%} {plain} at another batch size"
        clauses = [summary]
        rounded = len(self.partings) - len(self.failures)
        if rounded:
            bound = f"{self.bound_nats:.2f} nats"
            clauses.append(f"{rounded} part where both tokens lie within {bound}")
        clauses += [
            _describe_failure(failure, plain, speculative)
            for failure in self.failures[:_MOST_NAMED]
        ]
        return "; ".join(clauses)


def _describe_failure(failure: Parting, plain: str, speculative: str) -> str:
    """Say where two answers part, and how likely both tokens are."""
    where = f"prompt '{failure.prompt_id}', token {failure.position + 1}"
    if failure.gap_nats is not None:
        gap = f"{abs(failure.gap_nats):.2f} nats apart"
        return f"{where}: {failure.speculative} {speculative}, {failure.plain} {plain}, {gap}"
    if failure.plain is None:
        return f"{where}: the answer {plain} has ended, the one {speculative} goes on"
    return f"{where}: the answer {speculative} has ended, the one {plain} goes on"


def check_lossless(
    prompt_ids: Sequence[str],
    plain: Sequence[Transcript],
    speculative: Sequence[Transcript],
    again: Callable[[], Sequence[Transcript]] | None,
    score: Score,
    *,
    rounding_nats: float = ROUNDING_NATS,
    known_equal: int = 0,
) -> Losslessness:
    """Compare answers to the same prompts token by token.

    Args:
        prompt_ids: one at least.
        plain: the answers without speculation.
        speculative: the answers with speculation.
        again: asks for the plain answers at another batch size; it is called only if some answers
            part. None if there is no other batch size.
        score: asks the server without speculation how likely tokens are.
        rounding_nats: the gap that rounding explains; 0 demands that every token is equal.
        known_equal: how many further answers are known to be equal.

    Raises:
        InvalidMeasurementError: `CONTROL_UNSTEADY`, the plain answers are others at another batch
            size, by more than rounding.
    """
    partings = _partings(prompt_ids, plain, speculative, score)
    noise = _partings(prompt_ids, plain, again(), score) if partings and again else None
    losslessness = Losslessness(
        prompts=len(plain) + known_equal,
        compared_by_token=len(plain),
        partings=partings,
        noise=noise,
        rounding_nats=rounding_nats,
    )
    if losslessness.bound_nats > max(MOST_NOISE_NATS, rounding_nats):
        message = (
            "the server that answers are held against answers differently at another batch size, by"
            f" {losslessness.bound_nats:.2f} nats; rounding is {MOST_NOISE_NATS:g} at most: take"
            " another version, or vLLM's engine_env VLLM_BATCH_INVARIANT on a GPU"
        )
        raise InvalidMeasurementError("CONTROL_UNSTEADY", message)
    return losslessness


def score_partings(partings: Sequence[Parting], score: Score) -> tuple[Parting, ...]:
    """Return partings with their gaps, for which a server is asked how likely both tokens are."""
    questions = [
        (parting.text, (parting.plain, parting.speculative))
        for parting in partings
        if parting.plain is not None and parting.speculative is not None
    ]
    log_probabilities = iter(score(questions) if questions else ())
    scored = []
    for parting in partings:
        if parting.plain is None or parting.speculative is None:
            scored.append(parting)
        else:
            plain_nats, speculative_nats = next(log_probabilities)
            gap_nats = plain_nats - speculative_nats
            scored.append(dataclasses.replace(parting, gap_nats=gap_nats))
    return tuple(scored)


def _partings(
    prompt_ids: Sequence[str],
    plain: Sequence[Transcript],
    speculative: Sequence[Transcript],
    score: Score,
) -> tuple[Parting, ...]:
    partings = []
    for prompt_id, plain_answer, other_answer in zip(prompt_ids, plain, speculative, strict=True):
        tokens = itertools.zip_longest(plain_answer.output, other_answer.output)
        for position, (plain_token, other_token) in enumerate(tokens):
            if plain_token != other_token:
                text = (*plain_answer.prompt, *plain_answer.output[:position])
                partings.append(Parting(prompt_id, position, plain_token, other_token, text))
                break
    return score_partings(partings, score)
