"""Find a server's own message about an error, in any of the forms that servers use.

Some servers report an error with HTTP 200, so the body must be examined. The usual forms are
`{"error": {"message": …}}`, `{"error": "…"}`, `{"object": "error", "message": …}`,
`{"detail": …}` and `{"message": …}`. SGLang ends an answer with the finish reason `abort`, which
has the message.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from specreg.core.files import UNREADABLE
from specreg.core.readable import readable_line

MAX_QUOTED_CHARACTERS = 300
_MAX_SEARCHED = 16 * 2**10
"""How much of a text is searched for secrets before its beginning is quoted."""
_MAX_FIELDS = 12
"""An object with more fields isn't taken for an error because of a field `error` or a message."""
_MESSAGE_FIELDS = ("errors", "detail", "message", "msg", "error_message")
"""The fields that may hold the message of an error without a field `error`."""
_ANSWER_FIELDS = frozenset({"choices", "text", "text_output", "data", "usage", "output_ids"})
"""The fields of an answer. An object with one of them isn't an error because of a message."""
_WORDS = ("message", "msg", "error", *_MESSAGE_FIELDS, "reason", "type", "code")
"""The fields of an error that may hold words, the most informative first."""
_STATUSES = ("code", "status", "status_code")
"""The fields of an error that may hold the status of HTTP."""


@dataclass(frozen=True, slots=True)
class ServerWords:
    """A server's own message about an error.

    Attributes:
        text: the message, in one printable line.
        status: the status of HTTP that the message has; None if it has none.
    """

    text: str
    status: int | None = None


def quote(content: bytes | str) -> str:
    """Return a text as one printable line of at most 300 characters, without secrets."""
    # Secrets are hidden in a longer part than the one that is quoted: a secret that was cut in half
    # wouldn't be recognised.
    content = content[:_MAX_SEARCHED]
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    return readable_line(text, MAX_QUOTED_CHARACTERS)


def quote_answer(content: bytes) -> str:
    """Return a short answer as it is. For a long one, return its error message or its beginning."""
    words = find_error(content) if len(content) > MAX_QUOTED_CHARACTERS else None
    return words.text if words is not None else quote(content)


def find_error(content: bytes) -> ServerWords | None:
    """Return the message of an answer if it is JSON and an error; None for any other answer."""
    answer = _object_in(content)
    if answer is None:
        return None
    return find_error_in_object(answer)


def describe_error(content: bytes) -> ServerWords:
    """Return the message of an answer that is known to be an error, in any form."""
    answer = _object_in(content)
    if answer is None:
        return ServerWords(quote(content))
    words = find_error_in_object(answer)
    if words is None:
        return ServerWords(_message_of(answer), _status_of(answer))
    return words


def describe_error_value(described: object) -> ServerWords:
    """Return the message in a value that describes an error, such as the value of `error`."""
    return ServerWords(_message_of(described), _status_of(described))


def is_json(content: bytes) -> bool:
    """Return whether all of a text is one JSON value."""
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except UNREADABLE:
        return False
    return True


def _object_in(content: bytes) -> dict[str, object] | None:
    """Return the JSON object in a text; None if it is something else."""
    if not content.lstrip().startswith(b"{"):
        return None
    try:
        answer: dict[str, object] = msgspec.json.decode(content, type=dict[str, object])
    except UNREADABLE:
        return None
    return answer


def find_error_in_object(answer: Mapping[str, object]) -> ServerWords | None:
    """Return the message of a decoded answer if it is an error; None for any other answer."""
    described = _description_of(answer)
    if described is None:
        return None

    # Some servers put the status into the answer itself instead of into the description.
    status = _status_of(described)
    if status is None:
        status = _status_of(answer)
    return ServerWords(_message_of(described), status)


def _description_of(answer: Mapping[str, object]) -> object:
    """Return the part of an answer that describes an error; None if the answer isn't an error."""
    # The field `error`, which most servers use.
    if len(answer) <= _MAX_FIELDS and is_error(answer.get("error")):
        return answer["error"]
    meta = answer.get("meta_info")
    if isinstance(meta, dict):
        # SGLang marks an answer that it aborted with the finish reason `abort`.
        finish_reason = meta.get("finish_reason")
        if isinstance(finish_reason, dict) and finish_reason.get("type") == "abort":
            return finish_reason

    if answer.get("object") == "error" or answer.get("type") == "error":
        return answer

    # The message is in the answer itself.
    is_answer = len(answer) > _MAX_FIELDS or not _ANSWER_FIELDS.isdisjoint(answer)
    if not is_answer and any(answer.get(name) for name in _MESSAGE_FIELDS):
        return answer
    return None


def is_error(value: object) -> bool:
    """Return whether the value of a field `error` reports an error. Null, false and "" don't."""
    return value is not None and value is not False and value != ""


def _message_of(described: object) -> str:
    """Return the message in a value that describes an error, in one printable line."""
    if isinstance(described, dict):
        for name in _WORDS:
            if described.get(name):
                return _message_of(described[name])

    if isinstance(described, list):
        return quote("; ".join(_message_of(description) for description in described))
    if isinstance(described, str):
        return quote(described)
    return quote(msgspec.json.encode(described))


def _status_of(described: object) -> int | None:
    """Return the status of HTTP that an error's description has; None if it has none."""
    if not isinstance(described, dict):
        return None
    values = [described.get(name) for name in _STATUSES]
    # In Python a boolean is an integer too, but it isn't a status.
    statuses = (value for value in values if isinstance(value, int) and not isinstance(value, bool))
    return next(statuses, None)
