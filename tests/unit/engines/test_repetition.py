"""Events that repeat all so far are told from events of what is new alone by what they hold."""

from collections.abc import Iterator

import pytest

from specreg.engines.repetition import Addition, RepeatingStream
from tests.unit import builders

Event = tuple[str, list[int] | None, int]
"""Its text, its ids, and how many tokens the answer has by then."""
UNRECOGNISED = "STREAM_UNRECOGNISED"


def added(*events: Event) -> Iterator[Addition]:
    """What each event adds to an answer that ends with the last one."""
    stream = RepeatingStream()
    for number, (text, ids, tokens) in enumerate(events, 1):
        is_last = number == len(events)
        yield stream.take(text=text, token_ids=ids, all_tokens=tokens, is_last=is_last)


def whole(*events: Event) -> tuple[str, list[int], list[int]]:
    """The text, the ids and the tokens of each event, of a whole answer."""
    additions = list(added(*events))
    ids = [token for addition in additions for token in addition.token_ids]
    tokens = [addition.tokens for addition in additions]
    return "".join(addition.text for addition in additions), ids, tokens


REPEATING: tuple[Event, ...] = (("a", [1], 1), ("ab c", [1, 2, 3], 3), ("ab cd", [1, 2, 3, 4], 4))
NEW_ALONE: tuple[Event, ...] = (("a", [1], 1), ("b c", [2, 3], 3), ("d", [4], 4))


@pytest.mark.parametrize("events", [REPEATING, NEW_ALONE], ids=["repeating", "new-alone"])
def test_an_answer_is_the_same_whichever_way_its_events_come(events: tuple[Event, ...]) -> None:
    assert whole(*events) == ("ab cd", [1, 2, 3, 4], [1, 2, 1])


@pytest.mark.parametrize(
    ("events", "text"),
    [
        # New text that happens to begin with the text before it, or to be equal to it.
        ([("a", [1], 1), ("ab", [1, 2], 3), ("aba", [1, 2, 1], 6)], "aababa"),
        ([("_", [7], 1), ("_", [7], 2), ("_", [7], 3)], "___"),
        # Half of a character has a token and no text.
        ([("a", [1], 1), ("a", [1, 2], 2), ("aé", [1, 2, 3], 3)], "aé"),
        ([("a", [1], 1), ("", [2], 2), ("é", [3], 3)], "aé"),
        # The last event has no token of its own.
        ([("a", [1], 1), ("ab", [1, 2], 2), ("ab", [1, 2], 2)], "ab"),
        ([("a", [1], 1), ("b", [2], 2), ("", [], 2)], "ab"),
        ([("ab", [1, 2], 2)], "ab"),
        # Ids that aren't counted yet.
        ([("a", [1], 1), ("abc", [1, 2, 3], 2), ("abc", [1, 2, 3], 3)], "abc"),
        ([("ab", [1, 2], 1), ("abc", [1, 2, 3], 3)], "abc"),
        ([("", [], 0), ("", [1], 1), ("ab", [1, 2], 2), ("abc", [1, 2, 3], 3)], "abc"),
    ],
)
def test_token_ids_show_whether_events_repeat_whatever_the_text_is(
    events: list[Event], text: str
) -> None:
    assert whole(*events)[0] == text


@pytest.mark.parametrize(
    ("texts", "text"),
    [
        (["a", "ab", "abc"], "abc"),
        (["a", "b", "c"], "abc"),
        (["a", "ab", "c"], "aabc"),
        (["", "a", "ab", "abc"], "abc"),
        (["", "", "a", "b"], "ab"),
        (["abc"], "abc"),
    ],
)
def test_without_ids_the_texts_show_whether_events_repeat(texts: list[str], text: str) -> None:
    assert (
        whole(*((text_part, None, number) for number, text_part in enumerate(texts, 1)))[0] == text
    )


def test_a_text_without_a_new_token_repeats() -> None:
    assert whole(("ab", None, 2), ("ab", None, 2))[0] == "ab"


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([("a", None, 1), ("ab", None, 2)], "the answer ends before its events show"),
        ([("a", None, 1), ("a", None, 2), ("a", None, 3)], "the answer ends before its events"),
        ([("a", None, 1), ("ab", None, 2), ("abc", None, 3), ("d", None, 4)], "another way"),
        ([("a", [1], 1), ("b", [2], 2), ("abc", [1, 2, 3], 3)], "another way"),
        ([("a", [1], 1), ("bc", [2, 3], 4)], "2 token ids, where 3 tokens are new after 1"),
        ([("a", [1], 1), ("bc", [8, 2, 3], 3)], "3 token ids, where 2 tokens are new after 1"),
        ([("ab", [1, 2], 2), ("c", [3], 1)], "counts 1 tokens after 2"),
        ([("ab", [1, 2], 2), ("xyz", [1, 2, 3], 3)], "repeats the token ids before it, but not"),
        ([("a", None, 1), ("b", [2], 2)], "1 token ids, where 1 tokens are new after 1"),
        ([("ab", [1, 2], 1), ("c", [3], 2)], "1 token ids, where 1 tokens are new after 1"),
    ],
)
def test_events_that_neither_repeat_nor_continue_are_invalid(
    events: list[Event], words: str
) -> None:
    with builders.invalid(UNRECOGNISED, words):
        list(added(*events))
