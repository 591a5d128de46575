"""Pinned acceptance: a drafter of vLLM's `custom_class` that is right as often as a schedule says.

It knows the target's answers from a recording, and spoils its drafts so that exactly the wanted
ones are accepted.
"""

import math
import os
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path

from specreg.core.errors import UnsupportedError
from specreg.engines.drafter import scheduled

METHOD, DRAFTER = "custom_class", "scheduled.Drafter"
_RECORDING = "SCHEDULED_RECORDING"
_SCHEDULE = "SCHEDULED_ACCEPTED"
_LONGEST_CYCLE = 20
_OFF_FRAC = 0.01
"""So far the steps may be off; without anything else at work they are exact."""


def schedule_of(length_tokens: float, draft_tokens: int) -> tuple[int, ...]:
    """The drafts to accept in each step, over and over, as evenly as can be: 2.5 is 1, 2.

    Args:
        length_tokens: 1 + A / S, of which the nearest twentieth is taken or something better.
        draft_tokens: k.

    Raises:
        UnsupportedError: it isn't between 1 and k + 1.
    """
    told = math.isfinite(length_tokens)
    share = Fraction(length_tokens - 1 if told else -1).limit_denominator(_LONGEST_CYCLE)
    if not 0 <= share <= draft_tokens:
        message = (
            f"--pin {length_tokens:g}: with {draft_tokens} draft tokens per step an acceptance"
            f" length is from 1 to {draft_tokens + 1}; give one of these"
        )
        raise UnsupportedError(message)
    above, below = share.numerator, share.denominator
    return tuple((step + 1) * above // below - step * above // below for step in range(below))


def pinned_variables(
    schedule: Iterable[int], recording: Path, own: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """The environment of an engine whose drafter follows a schedule.

    Args:
        schedule: see `schedule_of`.
        recording: where the answers are.
        own: the engine's own variables, which may hold a schedule.
    """
    folders = filter(None, (str(Path(scheduled.__file__).parent), own.get("PYTHONPATH", "")))
    variables = {
        _SCHEDULE: ",".join(map(str, schedule)),
        **own,
        "PYTHONPATH": os.pathsep.join(folders),
        _RECORDING: str(recording),
    }
    return tuple(sorted(variables.items()))


def plain_variables(own: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The environment of the engine that the recording is made of."""
    return tuple(one for one in own.items() if one[0] not in {_RECORDING, _SCHEDULE})


def recording_in(method: str, own: Mapping[str, str]) -> Path | None:
    """Where the drafter of an engine finds its recording; None where it has none."""
    found = own.get(_RECORDING)
    return Path(found) if found and method == METHOD else None


def why_not_pinned(own: Mapping[str, str], steps: int, answers_tokens: Iterable[int]) -> str:
    """Why a drafter accepted otherwise than by its schedule; empty where it didn't.

    Args:
        own: the engine's variables.
        steps: of all answers.
        answers_tokens: the length of each answer.
    """
    schedule = tuple(map(int, own[_SCHEDULE].split(",")))
    expected = sum(scheduled.step_after(tokens, schedule) for tokens in answers_tokens)
    if steps and abs(steps - expected) <= _OFF_FRAC * expected:
        return ""
    return (
        f"NOT_PINNED: the answers took {steps} steps, by their schedule it would be {expected}: the"
        " server doesn't answer as it did when its answers were recorded; pin without what draws"
        " or changes them, or take another case"
    )
