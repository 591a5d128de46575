"""What an answer holds, and whether two of them are the same."""

from typing import Any

import msgspec
import pytest

from specreg.acceptance.trace import Reply, StreamEvent
from specreg.engines.registry import ENGINES
from specreg.engines.wire_format import Ask, Message
from specreg.load.answer import AnswerText

CHAT = Ask(model="toy", messages=(Message("user", "Hello"),), output_cap_tokens=7)


def gathered(*events: StreamEvent) -> AnswerText:
    """All that some events say, as one answer."""
    answer = AnswerText()
    for event in events:
        answer.take(event)
    return answer


def of_deltas(*deltas: dict[str, Any], engine: str = "sglang") -> AnswerText:
    """A chat's answer without token ids; each delta has one token."""
    parse = ENGINES[engine].wire_format.new_parser(CHAT)
    events = []
    for tokens, delta in enumerate(deltas, 1):
        body = {"choices": [{"delta": delta}], "usage": {"completion_tokens": tokens}}
        events.append(parse(msgspec.json.encode(body)))
    return gathered(*events)


def digest(*deltas: dict[str, Any]) -> str:
    return of_deltas(*deltas).sha256(len(deltas))


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}
CALL = {"index": 0, "function": {"name": "look", "arguments": "{}"}}
DIFFERENT: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([{"reasoning": "a"}], [{"reasoning": "b"}]),
    ([{"reasoning_content": "a"}], [{"reasoning_content": "b"}]),
    ([{"reasoning": "a"}, {"content": "x"}], [{"reasoning": "b"}, {"content": "x"}]),
    ([{"reasoning": "a", "content": "x"}], [{"reasoning": "b", "content": "x"}]),
    ([{"reasoning": "ab"}], [{"content": "ab"}]),
    ([{"reasoning": "a"}, {"content": "b"}], [{"content": "a"}, {"reasoning": "b"}]),
    ([{"content": "a"}, {"reasoning": "b"}, {"content": "c"}], [{"content": "ac"}]),
    ([{"tool_calls": [CALL]}], [{"tool_calls": [CALL | {"index": 1}]}]),
    ([{"refusal": "no"}], [{"refusal": "never"}]),
    ([{"content": [THOUGHT]}], [{"content": [{"type": "text", "text": "a"}]}]),
    ([{"content": [{"type": "image", "id": 1}]}], [{"content": [{"type": "image", "id": 2}]}]),
    ([{"a_channel_of_tomorrow": "a"}], [{"a_channel_of_tomorrow": "b"}]),
]


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_answers_that_differ_in_any_channel_differ(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    assert digest(*first)
    assert digest(*first) != digest(*second)


@pytest.mark.parametrize(
    "deltas",
    [
        [{"reasoning": "ab"}, {"content": "cd"}],
        [{"reasoning": "a"}, {"reasoning": "b"}, {"content": "c"}, {"content": "d"}],
        [{"role": "assistant", "reasoning": "a"}, {"reasoning": "b", "content": "cd"}],
        [{"reasoning_content": "ab", "reasoning": "ab"}, {"content": "cd", "reasoning": None}],
        [{"content": [{"type": "thinking", "thinking": "ab"}, {"type": "text", "text": "cd"}]}],
    ],
)
def test_how_an_answer_is_cut_into_events_makes_no_difference(deltas: list[dict[str, Any]]) -> None:
    assert digest(*deltas) == digest({"reasoning_content": "ab"}, {"content": "cd"})
    answer = of_deltas(*deltas)
    assert (answer.thought, answer.text) == ("ab", "cd")


@pytest.mark.parametrize(
    "deltas",
    [
        [],
        [{}],
        [{"content": ""}, {"reasoning": None, "content": None}],
        [{"role": "assistant"}],
        [{"content": "a"}, {}, {"content": "b"}],
    ],
    ids=["no-event", "no-delta", "no-text", "role-alone", "a-token-unseen"],
)
def test_an_answer_that_does_not_show_all_of_its_text_equals_no_other(
    deltas: list[dict[str, Any]],
) -> None:
    assert digest(*deltas) == ""


def test_the_token_that_ends_an_answer_has_no_text() -> None:
    assert digest({"content": "a"}, {}) == digest({"content": "a"})


def test_token_ids_distinguish_answers_with_equal_text() -> None:
    """A reasoning parser takes marks of the thought out of the text."""
    first = gathered(StreamEvent(tokens=2, text="a", token_ids=[1, 2]))
    second = gathered(StreamEvent(tokens=2, text="a", token_ids=[1, 3]))
    silent = gathered(StreamEvent(tokens=2, token_ids=[1, 2]))
    assert len({first.sha256(2), second.sha256(2), silent.sha256(2), ""}) == 4
    assert silent.sha256(3) == "", "one token is neither an id nor a text"


@pytest.mark.parametrize(
    ("deltas", "reply"),
    [
        ([{"content": "a"}], Reply.TEXT),
        ([{"reasoning": "a"}, {"content": "b"}], Reply.TEXT),
        ([{"tool_calls": [CALL]}], Reply.TEXT),
        ([{"reasoning": "a"}], Reply.UNFINISHED_THOUGHT),
        ([{"content": " <think>a"}], Reply.UNFINISHED_THOUGHT),
        ([{"content": "<think>a</think>b"}], Reply.TEXT),
        ([{"content": "\n"}], Reply.NOTHING),
        ([{"reasoning": "a"}, {"content": "\n\n"}], Reply.NOTHING),
        ([{}], Reply.NOTHING),
    ],
)
def test_a_reply_is_a_text_or_a_thought_that_never_ended_or_nothing(
    deltas: list[dict[str, Any]], reply: Reply
) -> None:
    assert of_deltas(*deltas).reply is reply


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        ("_" * 64, True),
        ("It began well. " * 4 + "and on " * 12, True),
        ("_" * 63, False),
        ("".join(f"{number} is a number. " for number in range(9)), False),
        ("It ends otherwise. " * 8 + "Here.", False),
    ],
)
def test_an_answer_loops_where_its_second_half_repeats_itself(text: str, *, loops: bool) -> None:
    assert gathered(StreamEvent(tokens=1, text=text)).loops == loops
