"""Compare greedy answers token by token, and tell rounding from a changed text.

Greedy speculation must not change a text. Where two answers part, either rounding chose between two
tokens that are as good as equally likely, or one of them is wrong: the server that gave the plain
answers says how likely both were. What follows that place are two different texts, and tells
nothing.
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
"""Texts and candidates in, the log-probabilities of these by a server out."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where an answer first differs from the one without speculation.

    Attributes:
        prompt_id: of which prompt; position: the first differing token of the answer, from 0.
        plain, other: the tokens there, None where an answer has ended.
        text: in ids, the prompt and what both answers say up to there.
        gap_nats: how much likelier `plain` is; None where an answer has ended.
    """

    prompt_id: str
    position: int
    plain: int | None
    other: int | None
    text: tuple[int, ...] = ()
    gap_nats: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Losslessness:
    """A case's answers beside the plain ones.

    Attributes:
        prompts: how many were compared, one at least; asked: how many of them token by token, the
            others being known to be equal.
        partings: of the answers from the plain ones.
        noise: of the plain ones from themselves, at another batch size; None where not asked again.
        rounding_nats: what the case calls rounding; 0 is a demand for every token.
    """

    prompts: int
    asked: int
    partings: tuple[Parting, ...]
    noise: tuple[Parting, ...] | None
    rounding_nats: float

    @property
    def bound_nats(self) -> float:
        """The gap that counts as rounding: the control's own noise where that is more."""
        floor = (abs(one.gap_nats) for one in self.noise or () if one.gap_nats is not None)
        return max(self.rounding_nats, *floor, 0.0)

    @property
    def failures(self) -> tuple[Parting, ...]:
        """The differences that rounding doesn't explain."""
        bound = self.bound_nats if self.rounding_nats else -1.0
        return tuple(
            one for one in self.partings if one.gap_nats is None or abs(one.gap_nats) > bound
        )

    @property
    def equal_frac(self) -> float:
        """The share of the answers that are equal, 0..1."""
        return 1 - len(self.partings) / self.prompts

    @property
    def control_equal_frac(self) -> float | None:
        """The same of the control's own answers at another batch size: the honest match rate.

        Of those that were compared token by token.
        """
        return None if self.noise is None else 1 - len(self.noise) / self.asked

    def describe(self, plain: str, other: str) -> str:
        """Say what is equal, what rounding explains and what nothing does.

        `plain` and `other` name the answers, "without speculation" for instance.
        """
        said = [f"{self.equal_frac:.1%} of {self.prompts} answers are equal"]
        if self.asked < self.prompts:
            said[0] += f" ({self.asked} that differed when they were timed were asked again)"
        if self.control_equal_frac is not None:
            said[0] += f", {self.control_equal_frac:.1%} {plain} at another batch size"
        rounded = len(self.partings) - len(self.failures)
        if rounded:
            said.append(f"{rounded} part where both tokens lie within {self.bound_nats:.2f} nats")
        for one in self.failures[:_MOST_NAMED]:
            where = f"prompt '{one.prompt_id}', token {one.position + 1}"
            if one.gap_nats is None:
                ended, on = (plain, other) if one.plain is None else (other, plain)
                said.append(f"{where}: the answer {ended} has ended, the one {on} goes on")
            else:
                apart = f"{abs(one.gap_nats):.2f} nats apart"
                said.append(f"{where}: {one.other} {other}, {one.plain} {plain}, {apart}")
        return "; ".join(said)


def check_lossless(
    prompt_ids: Sequence[str],
    plain: Sequence[Transcript],
    other: Sequence[Transcript],
    again: Callable[[], Sequence[Transcript]] | None,
    score: Score,
    *,
    rounding_nats: float = ROUNDING_NATS,
    known_equal: int = 0,
) -> Losslessness:
    """Compare answers to the same prompts, one at least, token by token.

    `again` asks for the plain ones at another batch size, if there is one, only where some part;
    `score` asks their server. Below `rounding_nats` rounding explains a difference, 0 demands that
    every token is equal. `known_equal` further answers are.

    Raises:
        InvalidMeasurementError: `CONTROL_UNSTEADY`, the plain answers are others at another batch
            size, by more than rounding.
    """
    partings = _partings(prompt_ids, plain, other, score)
    noise = _partings(prompt_ids, plain, again(), score) if partings and again else None
    found = Losslessness(
        prompts=len(plain) + known_equal,
        asked=len(plain),
        partings=partings,
        noise=noise,
        rounding_nats=rounding_nats,
    )
    if found.bound_nats > max(MOST_NOISE_NATS, rounding_nats):
        message = (
            "the server that answers are held against answers differently at another batch size, by"
            f" {found.bound_nats:.2f} nats; rounding is {MOST_NOISE_NATS:g} at most: take another"
            " version, or vLLM's engine_env VLLM_BATCH_INVARIANT on a GPU"
        )
        raise InvalidMeasurementError("CONTROL_UNSTEADY", message)
    return found


def score_partings(partings: Sequence[Parting], score: Score) -> tuple[Parting, ...]:
    """Ask how likely both tokens of each parting are."""
    asked = [
        (one.text, (one.plain, one.other))
        for one in partings
        if one.plain is not None and one.other is not None
    ]
    gaps = iter([plain - other for plain, other in score(asked)] if asked else ())
    return tuple(
        one if None in (one.plain, one.other) else dataclasses.replace(one, gap_nats=next(gaps))
        for one in partings
    )


def _partings(
    prompt_ids: Sequence[str],
    plain: Sequence[Transcript],
    others: Sequence[Transcript],
    score: Score,
) -> tuple[Parting, ...]:
    found = []
    for prompt_id, ours, theirs in zip(prompt_ids, plain, others, strict=True):
        tokens = list(itertools.zip_longest(ours.output, theirs.output))
        at = next((at for at, (one, other) in enumerate(tokens) if one != other), None)
        if at is not None:
            (one, other), text = tokens[at], (*ours.prompt, *ours.output[:at])
            found.append(Parting(prompt_id, position=at, plain=one, other=other, text=text))
    return score_partings(found, score)
