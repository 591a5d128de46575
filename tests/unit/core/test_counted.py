"""One thing is named in the singular, and several in the plural."""

import pytest

from specreg.core.counted import counted


@pytest.mark.parametrize(
    ("number", "noun", "words"),
    [
        (0, "case", "0 cases"),
        (1, "case", "1 case"),
        (2, "case", "2 cases"),
        (1, "launch", "1 launch"),
        (2, "more launch", "2 more launches"),
        (12, "GPU", "12 GPUs"),
    ],
)
def test_a_noun_is_in_the_plural_unless_there_is_one_thing(
    number: int, noun: str, words: str
) -> None:
    assert counted(number, noun) == words
