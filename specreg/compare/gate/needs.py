"""What it would take: undecided figures and how long launches take in, what to type out."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specreg.compare.gate.judging import LAUNCHES_PER_BLOCK, Judged, Rules
from specreg.compare.gate.quantities import ACCEPTANCE
from specreg.verdicts.judge import Outcome

_LEAST_BLOCKS = 2
"""With fewer a speed has no interval."""
_S_PER_MINUTE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long one launch more of each side takes; `case_ids`: of those that share it."""

    case_ids: frozenset[str]
    launch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """What launches take.

    Attributes:
        paces: of what shares launches; none where nobody knows.
        longest_s: of what was up at the same time, from its start to its end.
        is_up: whether it was `--minutes` that ended the gate.
    """

    paces: tuple[Pace, ...] = ()
    longest_s: float = 0.0
    is_up: bool = False


def takes_of(undecided: Sequence[Judged], rules: Rules, time: Time) -> tuple[str, ...]:
    """What it would take to decide some figures: first what to type, then why, in a line per case.

    Args:
        undecided: the figures.
        rules: by which they are.
        time: see there.
    """
    by_case: dict[str, list[Judged]] = {}
    for one in undecided:
        by_case.setdefault(one.case_id, []).append(one)
    lines = (f"{case_id}: {wants_of(ones)}" for case_id, ones in by_case.items())
    return (*_resumed(undecided, rules, time), *_anew(undecided), *lines)


def _resumed(undecided: Sequence[Judged], rules: Rules, time: Time) -> Iterator[str]:
    """How to go on, where launches would help: for how many of each side, and minutes in all."""
    wanting = [one for one in undecided if _by_launches(one)]
    most = max((launches_for(one) or 0 for one in wanting), default=0)
    if not most:
        return
    more_s = sum(pace.launch_s * _missing_launches(wanting, pace) for pace in time.paces)
    # A launch is begun only where one as long as the longest so far would still end in time.
    minutes = math.ceil((more_s + time.longest_s) / _S_PER_MINUTE)
    options = ["--resume"]
    options += [f"--launches {most}"] if most > rules.launches else []
    options += [f"--minutes {minutes}"] if time.is_up else []
    # What has no interval yet may need more than those to the first one.
    word = "about" if all(one.needed_launches is not None for one in wanting) else "at least"
    more = f", {minutes} minutes more" if time.paces else ""
    yield (
        f"{word} {most} launches of each side{more}: type the same with {' '.join(options)};"
        " a quieter machine needs fewer"
    )


def _missing_launches(wanting: Sequence[Judged], pace: Pace) -> int:
    """How many more of each side the cases that share them need."""
    ours = [one for one in wanting if one.case_id in pace.case_ids]
    return max(((launches_for(one) or one.launches) - one.launches for one in ours), default=0)


def _anew(undecided: Sequence[Judged]) -> Iterator[str]:
    """How to begin again, where it is prompts that are too few."""
    prompts = [one.needed_prompts for one in undecided if one.needed_prompts is not None]
    if prompts:
        yield (
            f"about {max(prompts)} prompts: a new gate, with --prompts {max(prompts)} and another"
            " --out; --resume goes on with the same prompts only"
        )


def _by_launches(one: Judged) -> bool:
    """Whether launches would decide a figure, for all that is known."""
    return one.outcome is not Outcome.INVALID and one.needed_prompts is None


def launches_for(one: Judged) -> int | None:
    """About how many launches of each side would decide a figure; two blocks for an interval.

    Returns:
        None where no launch would, or nobody can tell.
    """
    if one.needed_launches is not None or one.low_frac is not None or not _by_launches(one):
        return one.needed_launches
    blocks = 1 if one.quantity == ACCEPTANCE else _LEAST_BLOCKS
    return max(blocks * LAUNCHES_PER_BLOCK, one.launches + LAUNCHES_PER_BLOCK)


def wants_of(judged: Sequence[Judged]) -> str:
    """What the figures of a case need, those that need the same together."""
    in_order = sorted(judged, key=_want)
    return "; ".join(
        f"{want} ({', '.join(one.quantity for one in ones)})"
        for want, ones in itertools.groupby(in_order, key=_want)
    )


def _want(one: Judged) -> str:
    if one.needed_launches is not None:
        return f"about {one.needed_launches} launches instead of {one.launches}"
    if one.needed_prompts is not None:
        return f"about {one.needed_prompts} prompts"
    return one.reason or "nobody can tell"
