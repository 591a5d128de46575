"""The parts of a view, which the terminal, the page and Markdown render.

A terminal leaves out pictures. The page and Markdown have tables of verdicts of their own, so only
a terminal renders `Table`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rich.text import Text as StyledText

from specreg.report.document import Tone
from specreg.report.drawing import BarPicture, IntervalPicture
from specreg.report.summary import MARKS
from specreg.report.tables import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictLine:
    """The answer to the question of a report, in one sentence."""

    tone: Tone
    text: str

    def __str__(self) -> str:
        return f"{MARKS[self.tone]} {self.text}"


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph.

    Attributes:
        is_important: whether a page shows it in full size.
    """

    text: str
    is_important: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """Lines that are shown as they are."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below a head; see `render_rows`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | StyledText]]
    layout: Layout = field(default_factory=Layout)


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture. A terminal and Markdown leave it out, so its numbers stand elsewhere too."""

    picture: IntervalPicture | BarPicture


@dataclass(frozen=True, slots=True)
class Commands:
    """What to type, each command on a line, and what it is good for."""

    purpose: str
    commands: Sequence[str]


@dataclass(frozen=True, slots=True)
class Details:
    """Parts for a reader who asks for more than the answer."""

    title: str
    parts: "Parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A case that needs a look.

    Attributes:
        tone: the tone of its worst verdict.
        findings: what its losses point to, as sentences.
        parts: the evidence. A terminal and Markdown leave it out, as they have a table of it.
    """

    case_id: str
    name: str
    tone: Tone
    findings: Sequence[str]
    parts: "Parts"


Part: TypeAlias = VerdictLine | Text | Output | Table | Chart | Commands | Details | Section
Parts: TypeAlias = tuple[Part, ...]
