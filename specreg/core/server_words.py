"""Find a server's own words about an error, whatever envelope they come in.

Servers answer an error with HTTP 200 and a body as `{"error": {"message": …}}`, `{"error": "…"}`,
`{"object": "error", "message": …}`, `{"detail": …}` or `{"message": …}`. SGLang ends an answer
with the finish reason "abort", which holds the words.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from specreg.core.files import UNREADABLE
from specreg.core.readable import readable_line

MAX_QUOTED_CHARACTERS = 300
_MAX_SEARCHED = 16 * 2**10
_MAX_FIELDS = 12
"""An object with more fields describes something else, of which an `error` is only a part."""
_FLAT = ("errors", "detail", "message", "msg", "error_message")
"""What an error without a field `error` has for its words."""
_ANSWERS = frozenset({"choices", "text", "text_output", "data", "usage", "output_ids"})
"""An object that holds one of these is an answer, and a message in it no error."""
_WORDS = ("message", "msg", "error", *_FLAT, "reason", "type", "code")
"""Where the words are in what describes an error, the best first."""
_STATUSES = ("code", "status", "status_code")


@dataclass(frozen=True, slots=True)
class ServerWords:
    """What a server says of an error; `status` is HTTP's as the words have it, None without."""

    text: str
    status: int | None = None


def quote(content: bytes | str) -> str:
    """Return what was said as one printable line of 300 characters at most."""
    # More is looked at than is quoted: half a secret would be quoted as any other text.
    content = content[:_MAX_SEARCHED]
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    return readable_line(text, MAX_QUOTED_CHARACTERS)


def quote_answer(content: bytes) -> str:
    """Return a short answer whole, and of a long one the words of its error, else its beginning."""
    words = error_in(content) if len(content) > MAX_QUOTED_CHARACTERS else None
    return words.text if words is not None else quote(content)


def error_in(content: bytes) -> ServerWords | None:
    """Return the words of an answer that is JSON and an error, None for any other."""
    answer = _object_in(content)
    if answer is None:
        return None
    return error_of(answer)


def words_in(content: bytes) -> ServerWords:
    """Return the words of what is known to be an error, whatever its form."""
    answer = _object_in(content)
    if answer is None:
        return ServerWords(quote(content))
    words = error_of(answer)
    if words is None:
        return ServerWords(_words_of(answer), _status_of(answer))
    return words


def words_of(described: object) -> ServerWords:
    """Return the words of what describes an error, the value of a field `error` for instance."""
    return ServerWords(_words_of(described), _status_of(described))


def is_json(content: bytes) -> bool:
    """Return whether all of a text is one JSON value."""
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except UNREADABLE:
        return False
    return True


def _object_in(content: bytes) -> dict[str, object] | None:
    """Decode a text that is a JSON object; return None for any other."""
    if not content.lstrip().startswith(b"{"):
        return None
    try:
        answer: dict[str, object] = msgspec.json.decode(content, type=dict[str, object])
    except UNREADABLE:
        return None
    return answer


def error_of(answer: Mapping[str, object]) -> ServerWords | None:
    """Return the words of a decoded answer that is an error, None for any other."""
    described = _description_of(answer)
    if described is None:
        return None
    # Some servers put the status beside the description instead of into it.
    status = _status_of(described)
    if status is None:
        status = _status_of(answer)
    return ServerWords(_words_of(described), status)


def _description_of(answer: Mapping[str, object]) -> object:
    """Return the part of an answer that describes an error; None if it isn't an error."""
    if len(answer) <= _MAX_FIELDS and is_error(answer.get("error")):
        return answer["error"]
    meta = answer.get("meta_info")
    if isinstance(meta, dict):
        # SGLang reports an answer that it gave up as one that ended by "abort".
        finish_reason = meta.get("finish_reason")
        if isinstance(finish_reason, dict) and finish_reason.get("type") == "abort":
            return finish_reason
    if answer.get("object") == "error" or answer.get("type") == "error":
        return answer
    is_flat = len(answer) <= _MAX_FIELDS and _ANSWERS.isdisjoint(answer)
    if is_flat and any(answer.get(name) for name in _FLAT):
        return answer
    return None


def is_error(value: object) -> bool:
    """Return whether the field `error` of an answer means that there is an error."""
    return value is not None and value is not False and value != ""


def _words_of(described: object) -> str:
    if isinstance(described, dict):
        for name in _WORDS:
            if described.get(name):
                return _words_of(described[name])
    if isinstance(described, list):
        return quote("; ".join(_words_of(description) for description in described))
    if isinstance(described, str):
        return quote(described)
    return quote(msgspec.json.encode(described))


def _status_of(described: object) -> int | None:
    """Return the status that an error names; None without one."""
    if not isinstance(described, dict):
        return None
    values = [described.get(name) for name in _STATUSES]
    return next((value for value in values if isinstance(value, int)), None)
