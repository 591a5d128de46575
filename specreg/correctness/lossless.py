"""Compare greedy answers token by token, and distinguish rounding from a wrong token.

Greedy speculation must not change a text. At the first token in which two answers differ, either
rounding has decided between two tokens of nearly equal probability, or one of the tokens is wrong.
The server that gave the plain answers, those without speculation, reports how likely both tokens
were. Later tokens aren't compared, because the two answers then continue different texts.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specreg.core.errors import InvalidMeasurementError
from specreg.engines.wire_format import Transcript
from specreg.matrix.case import ROUNDING_NATS

MAX_NOISE_NATS = 1.0
"""The largest gap that rounding can explain, unless `rounding_nats` of the case is larger. If the
plain answers at two batch sizes differ by more, they can't serve as the reference."""
_MAX_NAMED = 3
"""How many differences a verdict describes."""

Candidates = tuple[Sequence[int], Sequence[int]]
"""A text, and candidates for its next token, as token ids."""
Score = Callable[[Sequence[Candidates]], Sequence[Sequence[float]]]
"""Returns the log-probabilities of each text's candidates, in nats, as a server computes them."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The first token in which an answer differs from the answer without speculation.

    Attributes:
        position: the index of the token in the answers, from 0.
        plain: the token without speculation; None if the answer without speculation has ended.
        speculative: the token with speculation; None if the answer with speculation has ended.
        text: the ids of the prompt and of the tokens before this one, which both answers share.
        gap_nats: how much likelier `plain` is than `speculative`; None if an answer has ended.
    """

    prompt_id: str
    position: int
    plain: int | None
    speculative: int | None
    text: tuple[int, ...] = ()
    gap_nats: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Losslessness:
    """The comparison of a case's answers with the plain ones, those without speculation.

    Attributes:
        prompts: the number of all answers, at least one.
        compared_by_token: how many of them were compared token by token. The rest are known to be
            equal.
        partings: the first difference of each answer that isn't equal.
        plain_partings: for each prompt whose plain answer depends on the batch size, the first
            difference of its two plain answers; None if they weren't generated again.
        rounding_nats: the gap that the case attributes to rounding; 0 demands that every token is
            equal.
    """

    prompts: int
    compared_by_token: int
    partings: tuple[Parting, ...]
    plain_partings: tuple[Parting, ...] | None
    rounding_nats: float

    @property
    def bound_nats(self) -> float:
        """The largest gap that counts as rounding.

        It is `rounding_nats`, or the largest gap between two plain answers if that is larger.
        """
        bound_nats = max(self.rounding_nats, 0.0)
        for parting in self.plain_partings or ():
            if parting.gap_nats is not None:
                bound_nats = max(bound_nats, abs(parting.gap_nats))
        return bound_nats

    @property
    def failures(self) -> tuple[Parting, ...]:
        """The differences that rounding doesn't explain."""
        # A case that demands equal tokens excuses none, however noisy its control is.
        if not self.rounding_nats:
            return self.partings
        bound_nats = self.bound_nats

        # An answer that has ended has no token whose probability could be compared.
        failures = [
            parting
            for parting in self.partings
            if parting.gap_nats is None or abs(parting.gap_nats) > bound_nats
        ]
        return tuple(failures)

    @property
    def equal_frac(self) -> float:
        """The share of the answers that are equal, 0..1."""
        return 1 - len(self.partings) / self.prompts

    @property
    def plain_equal_frac(self) -> float | None:
        """The share of the control's own answers that are equal at another batch size, 0..1.

        It covers the answers that were compared token by token; None if the control didn't generate
        them at another batch size.
        """
        if self.plain_partings is None:
            return None
        return 1 - len(self.plain_partings) / self.compared_by_token

    def describe(self, plain: str, speculative: str) -> str:
        """Return a sentence about the answers that are equal and those that aren't.

        Args:
            plain: a name for the plain answers, such as `without speculation`.
            speculative: a name for the other answers.
        """
        summary = f"{self.equal_frac:.1%} of {self.prompts} answers are equal"
        if self.compared_by_token < self.prompts:
            summary += (
                f" (the {self.compared_by_token} that weren't equal in the timed rounds were"
                " generated again and compared token by token)"
            )

        clauses = [summary]
        if self.plain_equal_frac is not None:
            share = f"{self.plain_equal_frac:.1%} are the same at another batch size"
            clauses.append(f"of those {plain}, {share}")
        rounded = len(self.partings) - len(self.failures)
        if rounded:
            bound = f"up to {self.bound_nats:.2f} nats"
            clauses.append(f"differences that rounding explains ({bound}): {rounded}")
        shown_failures = self.failures[:_MAX_NAMED]
        clauses += [_describe_failure(failure, plain, speculative) for failure in shown_failures]
        return "; ".join(clauses)


def _describe_failure(failure: Parting, plain: str, speculative: str) -> str:
    """Return a clause about the first difference of two answers, with its gap."""
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
    regenerate_plain: Callable[[], Sequence[Transcript]] | None,
    score: Score,
    *,
    rounding_nats: float = ROUNDING_NATS,
    known_equal: int = 0,
) -> Losslessness:
    """Compare answers to the same prompts token by token.

    Args:
        prompt_ids: the id of each prompt, at least one.
        plain: the answers without speculation.
        speculative: the answers with speculation.
        regenerate_plain: generates the plain answers at another batch size. It is called only if
            some answers differ. None if there is no other batch size.
        score: asks the server without speculation how likely tokens are.
        rounding_nats: the gap that rounding explains; 0 demands that every token is equal.
        known_equal: the number of further answers that are known to be equal.

    Raises:
        InvalidMeasurementError: `CONTROL_UNSTEADY`, the plain answers at another batch size differ
            by more than rounding explains; or a server didn't answer.
    """
    partings = _partings(prompt_ids, plain, speculative, score)
    plain_partings = None
    if partings and regenerate_plain:
        plain_partings = _partings(prompt_ids, plain, regenerate_plain(), score)
    losslessness = Losslessness(
        prompts=len(plain) + known_equal,
        compared_by_token=len(plain),
        partings=partings,
        plain_partings=plain_partings,
        rounding_nats=rounding_nats,
    )
    most_nats = max(MAX_NOISE_NATS, rounding_nats)
    if losslessness.bound_nats > most_nats:
        raise InvalidMeasurementError(
            "CONTROL_UNSTEADY", bound_nats=losslessness.bound_nats, most_nats=most_nats
        )

    return losslessness


def score_partings(partings: Sequence[Parting], score: Score) -> tuple[Parting, ...]:
    """Ask a server how likely the tokens of partings are, and return the partings with their gaps.

    A parting has no gap if one of its answers has ended.
    """
    questions = []
    for parting in partings:
        if parting.plain is not None and parting.speculative is not None:
            candidates = (parting.plain, parting.speculative)
            questions.append((parting.text, candidates))

    answers: Sequence[Sequence[float]] = ()
    if questions:
        answers = score(questions)
    log_probabilities = iter(answers)
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
    compared: Sequence[Transcript],
    score: Score,
) -> tuple[Parting, ...]:
    """Return the first difference of each pair of answers that differ, with its gap.

    Args:
        prompt_ids: the id of each prompt.
        plain: the answers without speculation.
        compared: the answers with speculation, or those without it at another batch size.
        score: asks the server without speculation how likely tokens are.
    """
    partings = []
    for prompt_id, plain_answer, answer in zip(prompt_ids, plain, compared, strict=True):
        tokens = itertools.zip_longest(plain_answer.output, answer.output)
        for position, (plain_token, token) in enumerate(tokens):
            if plain_token != token:
                text = (*plain_answer.prompt, *plain_answer.output[:position])
                parting = Parting(prompt_id, position, plain_token, token, text)
                partings.append(parting)
                # What follows continues two different texts, and can't be compared.
                break

    return score_partings(partings, score)
