"""The parts of a view. The terminal, the page and Markdown each render all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from specreg.report.document import Tone
from specreg.report.drawing import CurvePicture, IntervalPicture
from specreg.report.summary import MARKS


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictLine:
    """The answer to the question of a report, in one sentence."""

    tone: Tone
    text: str

    def __str__(self) -> str:
        return f"{MARKS[self.tone]} {self.text}"


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture. A terminal and Markdown leave it out, so its numbers stand elsewhere too."""

    picture: IntervalPicture | CurvePicture


@dataclass(frozen=True, slots=True)
class Commands:
    """What to type, each command on a line, and what it is good for."""

    purpose: str
    commands: Sequence[str]


@dataclass(frozen=True, slots=True)
class Fold:
    """Parts for a reader who asks for more than the answer."""

    title: str
    parts: "View"


Part: TypeAlias = VerdictLine | Text | Chart | Commands | Fold
View: TypeAlias = tuple[Part, ...]
