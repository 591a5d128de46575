"""Losslessness: answers with and without speculation in, whether any token was changed out.

Greedy speculation must not change a text. Where two texts part, either rounding chose between two
tokens that are as good as equally likely, or the speculation is wrong: the server without it says
how likely both were. What follows that place are two different texts, and tells nothing.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specreg.core.errors import InvalidMeasurementError
from specreg.engines.token_api import Transcript
from specreg.matrix.schema import ROUNDING_NATS

MOST_NOISE_NATS = 1.0
"""A server that parts from itself by more isn't rounding: nothing can be held against it."""

Score = Callable[[Sequence[tuple[Sequence[int], Sequence[int]]]], Sequence[Sequence[float]]]
"""Texts and candidates in, the log-probabilities of these without speculation out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where an answer leaves the one without speculation.

    Attributes:
        prompt_id: of which prompt; position: the first differing token of the answer, from 0.
        plain, other: the tokens there, None where an answer has ended.
        gap_nats: how much likelier `plain` is, without speculation; None where an answer has ended.
    """

    prompt_id: str
    position: int
    plain: int | None
    other: int | None
    gap_nats: float | None = None

    def is_rounding(self, bound_nats: float) -> bool:
        """Whether both tokens were as good as equally likely."""
        return self.gap_nats is not None and abs(self.gap_nats) <= bound_nats

    def __str__(self) -> str:
        where = f"prompt '{self.prompt_id}', token {self.position + 1}"
        if self.plain is None or self.other is None:
            one, another = ("without", "with") if self.plain is None else ("with", "without")
            return f"{where}: the answer {one} speculation has ended, {another} it goes on"
        return (
            f"{where}: {self.other} with speculation, {self.plain} without,"
            f" {self.gap_nats:.2f} nats likelier"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Losslessness:
    """What became of a case's answers.

    Attributes:
        prompts: how many were compared, one at least.
        partings: of the answers with speculation.
        noise: of the same answers without it, at another batch size; None where not asked again.
        rounding_nats: what the case calls rounding; 0 is a demand for every token.

    Raises:
        InvalidMeasurementError: `NOTHING_COMPARED`.
    """

    prompts: int
    partings: tuple[Parting, ...]
    noise: tuple[Parting, ...] | None
    rounding_nats: float

    def __post_init__(self) -> None:
        """Refuse no answers: no answers have no share that is equal."""
        if not self.prompts:
            message = "no answers with and without speculation; give the case a prompt at least"
            raise InvalidMeasurementError("NOTHING_COMPARED", message)

    @property
    def bound_nats(self) -> float:
        """What counts as rounding: the case's own noise where that is more."""
        floor = (abs(one.gap_nats) for one in self.noise or () if one.gap_nats is not None)
        return max(self.rounding_nats, *floor, 0.0)

    @property
    def failures(self) -> tuple[Parting, ...]:
        """What rounding doesn't explain."""
        if self.rounding_nats == 0:
            return self.partings
        return tuple(one for one in self.partings if not one.is_rounding(self.bound_nats))

    @property
    def equal_frac(self) -> float:
        """The share of the answers that speculation left as they were, 0..1."""
        return 1 - len(self.partings) / self.prompts

    @property
    def control_equal_frac(self) -> float | None:
        """The same of the control, which had only another batch size: the honest match rate."""
        return None if self.noise is None else 1 - len(self.noise) / self.prompts

    def __str__(self) -> str:
        control = (
            "not asked again without speculation"
            if self.control_equal_frac is None
            else f"{self.control_equal_frac:.1%} without speculation at another batch size"
        )
        said = [f"{self.equal_frac:.1%} of {self.prompts} answers are equal, {control}"]
        rounded = len(self.partings) - len(self.failures)
        if rounded:
            said.append(f"{rounded} part where both tokens lie within {self.bound_nats:.2f} nats")
        said.extend(map(str, self.failures[:3]))
        return "; ".join(said)


def check_lossless(
    prompt_ids: Sequence[str],
    plain: Sequence[Transcript],
    speculative: Sequence[Transcript],
    again: Callable[[], Sequence[Transcript]] | None,
    score: Score,
    *,
    rounding_nats: float = ROUNDING_NATS,
) -> Losslessness:
    """Compares answers token by token.

    Args:
        prompt_ids: what the prompts are called, one at least.
        plain: the answers without speculation, in that order.
        speculative: the same with it.
        again: asks for the same without it, at another batch size; only where answers part. None
            where there is no other batch size.
        score: asks the server without speculation.
        rounding_nats: below, rounding explains a difference; 0 demands that every token is equal.

    Raises:
        InvalidMeasurementError: `NOTHING_COMPARED`, there are no prompts; `CONTROL_UNSTEADY`,
            without speculation answers part by more than rounding.
    """
    prefixes = dict(zip(prompt_ids, plain, strict=True))

    def scored(partings: Sequence[Parting]) -> tuple[Parting, ...]:
        asked = [one for one in partings if None not in (one.plain, one.other)]
        questions = [_question(one, prefixes[one.prompt_id]) for one in asked]
        scores = score(questions) if questions else ()
        gaps = {
            one.prompt_id: likely - other
            for one, (likely, other) in zip(asked, scores, strict=True)
        }
        return tuple(dataclasses.replace(one, gap_nats=gaps.get(one.prompt_id)) for one in partings)

    partings = scored(_partings(prompt_ids, plain, speculative))
    noise = scored(_partings(prompt_ids, plain, again())) if partings and again else None
    found = Losslessness(
        prompts=len(plain), partings=partings, noise=noise, rounding_nats=rounding_nats
    )
    if found.bound_nats > max(MOST_NOISE_NATS, rounding_nats):
        message = (
            f"the server without speculation parts from itself by {found.bound_nats:.2f} nats at"
            f" another batch size, rounding by {MOST_NOISE_NATS:g} at most; nothing can be held"
            " against it: look at its kernels first"
        )
        raise InvalidMeasurementError("CONTROL_UNSTEADY", message)
    return found


def _question(one: Parting, text: Transcript) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What goes before a parting, and the tokens that follow there."""
    tokens = tuple(token for token in (one.plain, one.other) if token is not None)
    return (*text.prompt, *text.output[: one.position]), tokens


def _partings(
    prompt_ids: Sequence[str], plain: Sequence[Transcript], other: Sequence[Transcript]
) -> tuple[Parting, ...]:
    found = []
    for prompt_id, one, another in zip(prompt_ids, plain, other, strict=True):
        pairs = itertools.zip_longest(one.output, another.output)
        for position, (token, other_token) in enumerate(pairs):
            if token != other_token:
                found.append(
                    Parting(prompt_id=prompt_id, position=position, plain=token, other=other_token)
                )
                break
    return tuple(found)
