"""The words of a server's error are found in each envelope that servers use."""

from typing import Any

import msgspec
import pytest

from specreg.core.server_words import (
    MAX_QUOTED_CHARACTERS,
    ServerWords,
    find_error,
    quote,
    quote_answer,
)

FIELD = {"type": "missing", "loc": ["body", "model"], "msg": "Field required"}
ABORTED = {"type": "abort", "message": "too long", "status_code": 400}


@pytest.mark.parametrize(
    ("answer", "words", "status"),
    [
        ({"error": {"message": "dead", "type": "X", "code": 500}}, "dead", 500),
        ({"error": "dead"}, "dead", None),
        ({"error": {"error": {"message": "dead"}}}, "dead", None),
        ({"error": {"message": "", "type": "EngineDeadError"}}, "EngineDeadError", None),
        ({"error": ["one", {"message": "two"}]}, "one; two", None),
        ({"error": True, "message": "dead"}, "true", None),
        ({"object": "error", "message": "dead", "code": 404}, "dead", 404),
        ({"object": "error", "why": "dead"}, '{"object":"error","why":"dead"}', None),
        ({"type": "error", "error": {"message": "dead"}}, "dead", None),
        ({"detail": "dead"}, "dead", None),
        ({"detail": [FIELD]}, "Field required", None),
        ({"detail": {"msg": "dead"}}, "dead", None),
        ({"message": "dead", "status": 503}, "dead", 503),
        ({"errors": [{"message": "dead"}]}, "dead", None),
        ({"status_code": 500, "error_message": "dead"}, "dead", 500),
        ({"error": "dead", "code": False, "status": 429}, "dead", 429),
        ({"error": {"message": "dead", "code": True}}, "dead", None),
        ({"text": "", "meta_info": {"finish_reason": ABORTED}}, "too long", 400),
    ],
)
def test_an_error_is_found(answer: dict[str, Any], words: str, status: int | None) -> None:
    for content in (msgspec.json.encode(answer), b" \n" + msgspec.json.encode(answer)):
        assert find_error(content) == ServerWords(words, status)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"dead",
        b'["error"]',
        b'{"error": ',
        b'{"error": null}',
        b'{"error": ""}',
        b'{"error": false, "choices": []}',
        b'{"choices": [{"text": "a"}], "message": "fine"}',
        b'{"data": [], "detail": "none"}',
        b'{"text": "a", "meta_info": {"finish_reason": {"type": "stop"}}}',
        msgspec.json.encode({str(number): number for number in range(20)} | {"error": "counted"}),
    ],
)
def test_what_is_no_error_has_no_words(content: bytes) -> None:
    assert find_error(content) is None


def test_a_quotation_is_one_printable_line_of_a_bounded_length() -> None:
    assert quote("\x1b[31mred\x1b[0m\n\n\tend\x00") == "red end\ufffd"
    assert quote(b"caf\xc3\xa9 \xff") == "café �"
    assert quote("x" * 10**6) == "x" * (MAX_QUOTED_CHARACTERS - 1) + "…"
    words = {"error": {"message": "\x1b[1m" + "y" * 10**5}}
    quotation = find_error(msgspec.json.encode(words))
    assert quotation is not None
    assert len(quotation.text) == MAX_QUOTED_CHARACTERS
    assert quotation.text.isprintable()


def test_of_a_long_answer_the_words_are_quoted_and_not_its_beginning() -> None:
    answer = msgspec.json.encode({"error": {"param": "x" * 500, "message": "dead"}})
    assert quote_answer(answer) == "dead"
    assert quote_answer(b'{"error": "dead"}') == '{"error": "dead"}'
    assert quote_answer(b"y" * 500) == "y" * (MAX_QUOTED_CHARACTERS - 1) + "…"
