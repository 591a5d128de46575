"""Requests in token ids: texts to ids, ids to ids, ids to scores, without a stream."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from specreg.acceptance.record import StepCounts
from specreg.acceptance.trace import Body
from specreg.core.errors import InvalidMeasurementError
from specreg.core.files import UNREADABLE
from specreg.engines.wire_format import Ask

AnswerT = TypeVar("AnswerT")
FormT = TypeVar("FormT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[AnswerT]):
    """A request: where to POST what, and how to read the answer.

    `parse` raises `InvalidMeasurementError`, `ANSWER_UNREADABLE`.
    """

    path: str
    body: Body
    parse: Callable[[bytes], AnswerT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How to answer, as in `Ask`; `seed` is for sampling, None for the server's own."""

    output_cap_tokens: int
    temperature: float = 0.0
    ignore_eos: bool = False
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """An answer in token ids, the one that ends a text included; its steps where it tells them."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    counts: StepCounts | None = None


class TokenApi(ABC):
    """How a server is asked in token ids. Subclasses hold no state."""

    @abstractmethod
    def encode(self, ask: Ask) -> Call[tuple[int, ...]]:
        """How to learn the ids of a prompt, the model's chat template included."""

    @abstractmethod
    def complete(self, model: str, ids: Sequence[int], wanted: Wanted) -> Call[Transcript]:
        """How to have ids continued."""

    @abstractmethod
    def score(
        self, model: str, ids: Sequence[int], candidates: Sequence[int]
    ) -> Call[tuple[float, ...]]:
        """How to learn the log-probabilities of candidates for the next token.

        In nats; of a candidate that the server doesn't tell, the most that it can be.
        """


def decode_answer(answer: bytes, form: type[FormT]) -> FormT:
    """An answer in a server's own form, else an InvalidMeasurementError, `ANSWER_UNREADABLE`."""
    try:
        return msgspec.json.decode(answer, type=form)
    except UNREADABLE as error:
        raise unreadable(str(error), answer) from error


def unreadable(lacks: str, answer: bytes) -> InvalidMeasurementError:
    """The error of an answer that says less than was asked for; `lacks` is what, and why."""
    text = answer[:200].decode(errors="replace")
    return InvalidMeasurementError("ANSWER_UNREADABLE", f"{lacks}, in: {text}")
