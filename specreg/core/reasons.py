"""The reasons of verdicts and of invalid measurements, as data from which sentences are made."""

from dataclasses import dataclass

from specreg.core.catalogue import CATALOGUE
from specreg.core.readable import LINE_CHARACTERS, Label, readable_block


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a verdict has its outcome, or why the figures of a measurement mean nothing.

    Attributes:
        code: identifies the kind of reason, see `CATALOGUE`. Codes in capitals are shown, for
            people to look them up; the others are for programs. Empty if only the words of another
            program, or of an error, say what is the matter.
        text: what is the matter, as a clause without a full stop.
        remedy: what to do about it; empty if there is nothing to do.
    """

    code: Label = ""
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        sentence = f"{self.shown_code}: {self.text}" if self.shown_code else self.text
        return f"{sentence}; {self.remedy}" if self.remedy else sentence

    @property
    def shown_code(self) -> str:
        """The code if people are to look it up; else empty."""
        return self.code if self.code.isupper() else ""

    @property
    def headline(self) -> str:
        """What is the matter, in a few words that fit where there is little room."""
        first_line, _, _ = self.text.partition("\n")
        clause, _, _ = first_line.partition("; ")
        return f"{self.shown_code}: {clause}" if self.shown_code else clause

    @classmethod
    def of(cls, code: str, /, **facts: object) -> "Reason":
        """Return a reason of the catalogue, whose sentence and remedy contain these facts."""
        entry = CATALOGUE[code]
        text = readable_block(entry.sentence.format_map(facts), line_characters=LINE_CHARACTERS)
        return cls(code=code, text=text, remedy=entry.remedy.format_map(facts))
