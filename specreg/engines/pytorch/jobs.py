"""What to answer, and the steps of an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to answer, and how.

    Attributes:
        prompt: its ids, one at least; with the answer no more than the context.
        output_cap_tokens: the most tokens of the answer, 1 or more.
        temperature: 0 is greedy.
        seed: of its random numbers, whoever else is in the batch; None for another each time.
        ignore_eos: whether the answer goes on to the cap.
        top: how many log-probabilities to tell of each token; None for none.
    """

    prompt: Sequence[int]
    output_cap_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    top: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step added to an answer.

    Attributes:
        token_ids: what is delivered: up to the end of the text, which is among them, or the cap.
        drafted, accepted: draft tokens; the verifier's count, so those beyond the end are in it.
        finish_reason: "stop" or "length" of the last step.
        logprobs: for each delivered token, where asked for, the natural logarithms of the
            likeliest tokens' probabilities and of its own, by id, likeliest first. Whatever the
            temperature is, they are those of temperature 1.
    """

    token_ids: tuple[int, ...]
    drafted: int
    accepted: int
    finish_reason: str | None
    logprobs: tuple[Mapping[int, float], ...] = ()
