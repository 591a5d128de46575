"""Trying: numbers and something to try in; silent where each case ends in words or in a reading."""

import random
from collections.abc import Callable, Iterable

import pytest

from specreg.core.errors import SpecregError
from tests.unit.servers.test_server import at_most

_BLOCK_S = 60.0


def try_all(numbers: Iterable[int], attempt: Callable[[random.Random], object]) -> None:
    """Tries each number; the error of one says how to try it alone.

    Args:
        numbers: each the seed of a case.
        attempt: may raise a SpecregError of one line or more, and nothing else.
    """
    with at_most(_BLOCK_S):
        for number in numbers:
            try:
                attempt(random.Random(number))  # noqa: S311 - a case, no secret
            except SpecregError as error:
                words = str(error)
                assert words.strip(), f"case {number}: it says nothing"
                assert len(words) < 20_000, f"case {number}: it says too much"
            except Exception as error:
                error.add_note(f"case {number}: nox -s fuzz -- --only {number}")
                raise
            except pytest.fail.Exception:
                pytest.fail(f"case {number} takes too long: nox -s fuzz -- --only {number}")
