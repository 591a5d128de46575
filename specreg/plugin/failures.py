"""What pytest shows of a failed test: a message of specreg, or a traceback without secrets."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from specreg.core.readable import readable_block, readable_line

_FIELDS_WITH_VALUES = {"reprfuncargs", "reprlocals"}
"""The fields of pytest's tracebacks that hold values of arguments and variables. They are left
out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What pytest shows for a failed test instead of a traceback.

    Attributes:
        message: the line that pytest's summary shows.
        text: the whole text.
    """

    message: str
    text: str

    @classmethod
    def of(cls, text: str, message: str = "") -> "Failure":
        """Return a failure with readable texts. The message is the text's first line by default."""
        readable_text = readable_block(text)
        first_line, _, _ = readable_text.partition("\n")
        return cls(message=readable_line(message or first_line), text=readable_text)

    @property
    def reprcrash(self) -> "Failure":
        """The object on which pytest looks for the message."""
        return self

    def toterminal(self, writer: Any) -> None:  # noqa: ANN401 - of pytest's terminal
        """Write the text. Because of this method, a worker of pytest-xdist sends the text, too."""
        writer.line(self.text)

    def __str__(self) -> str:
        return self.text


def make_traceback_readable(traceback: Any) -> Any:  # noqa: ANN401 - pytest's, of several types
    """Make pytest's representation of an exception readable, in place, and return it.

    The values of arguments and variables are left out. They may be secrets, and because pytest
    shortens them in the middle, they wouldn't be recognised as such.
    """
    if isinstance(traceback, str):
        return readable_block(traceback)
    if isinstance(traceback, list | tuple):
        return type(traceback)(map(make_traceback_readable, traceback))
    if dataclasses.is_dataclass(traceback) and not isinstance(traceback, type):
        for field in dataclasses.fields(traceback):
            readable_value = None
            if field.name not in _FIELDS_WITH_VALUES:
                readable_value = make_traceback_readable(getattr(traceback, field.name))
            setattr(traceback, field.name, readable_value)

    return traceback
