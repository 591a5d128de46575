"""Bisecting: versions in order and a comparison in, the version where a case changed out.

Each comparison is a whole gate of the good version against one in between, which takes launches
until it can tell. One that can't halves nothing: it is left out, and its neighbours are tried.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec
from packaging.version import InvalidVersion, Version

from specreg.compare.gate.releases import check_released
from specreg.core.errors import UnsupportedError


class Step(StrEnum):
    """What a version is, compared with the good one."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A version that was compared; `why`: what it lost, or why there is no telling."""

    version: str
    step: Step
    why: str = ""


class Bisected(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found.

    Attributes:
        last_good, first_bad: the neighbours between which it changed, as far as could be told.
        between: versions between both of which nobody could tell.
    """

    last_good: str
    first_bad: str
    between: tuple[str, ...]


Compare = Callable[[str], Tried]
"""A version in; how it compares with the good one out, after as many launches as that may take."""


def bisect_versions(versions: Sequence[str], compare: Compare) -> Bisected:
    """The step of some versions in which the first one became the last one.

    The last is compared first: where it isn't bad there is nothing to find.

    Args:
        versions: from the good to the bad one, in order, two at least.
        compare: see there.

    Raises:
        UnsupportedError: the last version is not worse than the first, or nobody can tell.
    """
    good, last = versions[0], compare(versions[-1])
    if last.step is Step.UNKNOWN:
        message = f"{last.version}: nobody can tell whether it is worse than {good}, {last.why}"
        raise UnsupportedError(message)
    if last.step is Step.GOOD:
        message = (
            f"{last.version}: isn't worse than {good}; there is nothing to find, or --tolerance"
            " says what would be"
        )
        raise UnsupportedError(message)
    low, high, unknown = 0, len(versions) - 1, set[int]()
    while (middle := _middle(low, high, unknown)) is not None:
        step = compare(versions[middle]).step
        if step is Step.UNKNOWN:
            unknown.add(middle)
        elif step is Step.BAD:
            high = middle
        else:
            low = middle
    return Bisected(
        last_good=versions[low],
        first_bad=versions[high],
        between=tuple(versions[place] for place in range(low + 1, high)),
    )


def _middle(low: int, high: int, unknown: set[int]) -> int | None:
    """The untried place between both that is nearest to their middle; None without any."""
    left = [place for place in range(low + 1, high) if place not in unknown]
    return min(left, key=lambda place: abs(2 * place - low - high)) if left else None


def versions_between(good: str, bad: str, released: Sequence[str]) -> tuple[str, ...]:
    """The released versions from the good to the bad one, in order; pre-releases are left out.

    Raises:
        UnsupportedError: the good one isn't the older, one of both was never released, or
            something isn't a version.
    """
    known = {_version(one): one for one in released}
    first, last = _version(good), _version(bad)
    for version in (first, last):
        check_released(version, known)
    if not first < last:
        message = f"--good {good} --bad {bad}: the good one must be the older; swap them"
        raise UnsupportedError(message)
    between = sorted(one for one in known if first < one < last and not one.is_prerelease)
    return tuple(known[one] for one in (first, *between, last))


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise UnsupportedError(f"'{text}': is no version; give one as 0.31.0") from error
