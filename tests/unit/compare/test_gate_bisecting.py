"""A search halves what is left, and says so where nobody could tell."""

import pytest

from specreg.compare.gate.bisecting import Step, Tried, bisect_versions, versions_between
from specreg.core.errors import UnsupportedError

VERSIONS = tuple(f"0.{minor}.0" for minor in range(20, 33))


class Compare:
    """Versions from one on are bad; some can't be told."""

    def __init__(self, first_bad: str, *unknown: str) -> None:
        self.first_bad = VERSIONS.index(first_bad)
        self.unknown = unknown
        self.asked: list[str] = []

    def __call__(self, version: str) -> Tried:
        self.asked.append(version)
        bad = VERSIONS.index(version) >= self.first_bad
        step = Step.UNKNOWN if version in self.unknown else Step.BAD if bad else Step.GOOD
        return Tried(version=version, step=step)


@pytest.mark.parametrize("first_bad", VERSIONS[1:])
def test_each_change_is_found_in_few_comparisons(first_bad: str) -> None:
    compare = Compare(first_bad)
    found = bisect_versions(VERSIONS, compare)
    assert found.first_bad == first_bad
    assert found.last_good == VERSIONS[VERSIONS.index(first_bad) - 1]
    assert found.between == ()
    assert len(compare.asked) <= 5  # log2 of twelve steps, and the last one


def test_a_last_version_that_nobody_can_measure_is_called_so() -> None:
    with pytest.raises(UnsupportedError, match=r"0.32.0: nobody can tell whether it is worse"):
        bisect_versions(VERSIONS, Compare("0.26.0", "0.32.0"))


def test_what_nobody_can_tell_is_left_between() -> None:
    compare = Compare("0.26.0", "0.26.0")
    found = bisect_versions(VERSIONS, compare)
    assert (found.last_good, found.between, found.first_bad) == ("0.25.0", ("0.26.0",), "0.27.0")


def test_a_last_version_that_isnt_worse_ends_it() -> None:
    with pytest.raises(UnsupportedError, match=r"0.32.0: isn't worse than 0.20.0"):
        bisect_versions(VERSIONS, lambda version: Tried(version=version, step=Step.GOOD, why=""))


def test_releases_are_in_the_order_of_versions_without_previews() -> None:
    released = ("0.9.0", "0.10.0", "0.11.0rc1", "0.11.0", "0.12.0")
    assert versions_between("0.9.0", "0.11.0", released) == ("0.9.0", "0.10.0", "0.11.0")


def test_a_version_that_never_was_and_a_swapped_pair_are_said() -> None:
    with pytest.raises(UnsupportedError, match=r"'0.8.0': was never released; the last ones are"):
        versions_between("0.8.0", "0.11.0", ("0.9.0", "0.11.0"))
    with pytest.raises(UnsupportedError, match="the good one must be the older; swap them"):
        versions_between("0.11.0", "0.9.0", ("0.9.0", "0.11.0"))


def test_a_version_may_be_spelt_otherwise_than_the_index_does() -> None:
    released = ("0.29.0", "0.30.0", "0.31.0")
    assert versions_between("0.29", "0.31", released) == released
    assert versions_between("0.29", "0.31.0", ("0.29", *released)) == released
    with pytest.raises(UnsupportedError, match="'foo': is no version; give one as"):
        versions_between("0.29.0", "0.31.0", (*released, "foo"))
