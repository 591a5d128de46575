"""What of a reply enters the history."""

import pytest

from specreg.datasets.chat_history import REPLIES


@pytest.mark.parametrize(
    ("name", "reply", "kept"),
    [
        pytest.param("as_is", " <think>\nHm.</think>\n\nYes. ", None, id="all of it"),
        pytest.param("stripped", "\n Yes.\n\tNo. \n", "Yes.\n\tNo.", id="without its margins"),
        pytest.param("stripped", " \n", "", id="nothing but margins"),
        pytest.param("without_thinking", "<think>\nHm.</think>\n\nYes. ", "Yes. ", id="the answer"),
        pytest.param("without_thinking", "Hm.</think>Yes.", "Yes.", id="a template that began it"),
        pytest.param("without_thinking", "a</think>b</think>c", "c", id="after the last thought"),
        pytest.param("without_thinking", " Yes.\n", None, id="no thought"),
        pytest.param("without_thinking", "Hm.</think>", "", id="a thought alone"),
        pytest.param("without_thinking", "\n<think>\nHm, ", "", id="a thought that was cut off"),
    ],
)
def test_what_enters_the_history(name: str, reply: str, kept: str | None) -> None:
    assert REPLIES[name](reply) == (reply if kept is None else kept)
