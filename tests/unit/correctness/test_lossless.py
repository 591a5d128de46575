"""Losslessness: where two answers part, and what rounding explains of it."""

from collections.abc import Callable, Sequence

import pytest

from specreg.core.errors import InvalidMeasurementError
from specreg.correctness.lossless import Losslessness, Parting, check_lossless
from specreg.engines.wire_format import Transcript

Questions = Sequence[tuple[Sequence[int], Sequence[int]]]
PROMPT = (1, 2)


def answers(*outputs: tuple[int, ...]) -> list[Transcript]:
    """Answers to as many prompts, all of which are the same two tokens."""
    return [Transcript(prompt=PROMPT, output=output) for output in outputs]


def gaps(*nats: float) -> Callable[[Questions], list[tuple[float, float]]]:
    """Scores of which the first candidate's are so much more than the other's, in order."""
    gaps_left = iter(nats)

    def score(questions: Questions) -> list[tuple[float, float]]:
        return [(-1.0, -1.0 - next(gaps_left)) for _ in questions]

    return score


def compared(
    plain: tuple[int, ...],
    speculative: tuple[int, ...],
    *nats: float,
    again: tuple[int, ...] | None = None,
    rounding_nats: float = 0.25,
) -> Losslessness:
    """One answer without speculation against one with it; the control repeats its own."""
    return check_lossless(
        ["chat-0"],
        answers(plain),
        answers(speculative),
        lambda: answers(plain if again is None else again),
        gaps(*nats),
        rounding_nats=rounding_nats,
    )


def test_only_the_first_difference_counts_and_is_scored_after_its_text() -> None:
    """What follows are two different texts, which tell nothing."""
    asked_again: list[Questions] = []

    def score(questions: Questions) -> list[tuple[float, float]]:
        asked_again.append(questions)
        return [(-0.5, -2.0)]

    plain = answers((3, 4), (5, 6, 7, 8))
    with_it = answers((3, 4), (5, 9, 7, 1))
    check = check_lossless(["same", "other"], plain, with_it, lambda: plain, score)
    only = Parting("other", position=1, plain=6, speculative=9, text=(*PROMPT, 5), gap_nats=1.5)
    assert asked_again == [[((*PROMPT, 5), (6, 9))]]
    assert check.partings == check.failures == (only,)
    assert (check.equal_frac, check.plain_equal_frac) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("plain", "speculative", "says"),
    [
        ((5, 6), (5, 6, 7), "token 3: the answer without has ended, the one with goes on"),
        ((5, 6, 7), (5, 6), "token 3: the answer with has ended, the one without goes on"),
        ((), (5,), "token 1: the answer without has ended, the one with goes on"),
    ],
    ids=["without", "with", "at-once"],
)
def test_an_answer_that_ended_early_fails_whatever_the_rounding(
    plain: tuple[int, ...], speculative: tuple[int, ...], says: str
) -> None:
    """No scores are asked for: `gaps()` would not take a question."""
    check = compared(plain, speculative, rounding_nats=1e9)
    (failure,) = check.failures
    assert failure.gap_nats is None
    assert check.describe("without", "with").endswith(f"; prompt 'chat-0', {says}")


def test_the_bound_grows_by_the_noise_of_the_control() -> None:
    """Without speculation, another batch size alone changed a token across 0.4 nats."""
    verdict = compared((5, 6), (5, 7), 0.4, -0.4, again=(5, 8))
    beyond = compared((5, 6), (5, 7), 0.41, -0.4, again=(5, 8))
    assert (verdict.bound_nats, verdict.failures) == (0.4, ())
    assert (beyond.bound_nats, len(beyond.failures)) == (0.4, 1)
    assert verdict.plain_equal_frac == 0.0


def test_a_control_that_varies_with_the_batch_size_is_invalid() -> None:
    words = r"^CONTROL_UNSTEADY: .* other answers at another batch size: .* 1\.01 nats apart, "
    with pytest.raises(InvalidMeasurementError, match=words):
        compared((5, 6), (5, 7), 0.1, -1.01, again=(5, 8))
    assert compared((5, 6), (5, 7), 0.1, -1.0, again=(5, 8)).bound_nats == 1.0


def test_without_rounding_every_token_must_be_equal() -> None:
    assert compared((5,), (6,), 1e-6, rounding_nats=0).failures
    # Neither an exact tie nor what the control does at another batch size is an excuse then.
    assert compared((5,), (6,), 0.0, rounding_nats=0).failures
    assert compared((5,), (6,), 0.4, 0.5, again=(7,), rounding_nats=0).failures
    assert not compared((5,), (5,), rounding_nats=0).failures
