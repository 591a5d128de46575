"""The reasons of verdicts and of invalid measurements, as data from which sentences are made."""

from dataclasses import dataclass

from specreg.core.readable import Label


@dataclass(frozen=True, slots=True)
class Invalidity:
    """Why the figures of a measurement mean nothing.

    Attributes:
        code: the name of the check that failed, such as "SPEC_DISABLED".
        text: what is wrong and what to do.
    """

    code: Label
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a verdict has its outcome, or why there is nothing to judge.

    Attributes:
        code: identifies the kind of reason for programs, such as "MACHINE_MOVED"; empty if the
            outcome alone identifies it.
        text: what is the matter, as a clause without a full stop.
        remedy: what to do about it; empty if there is nothing to do.
    """

    code: Label = ""
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        sentence = f"{self.code}: {self.text}" if self.code else self.text
        return f"{sentence}; {self.remedy}" if self.remedy else sentence

    @property
    def headline(self) -> str:
        """What is the matter, in a few words that fit where there is little room."""
        first_line, _, _ = self.text.partition("\n")
        clause, _, _ = first_line.partition("; ")
        return f"{self.code}: {clause}" if self.code else clause

    @classmethod
    def of(cls, invalidity: Invalidity) -> "Reason":
        """Return the reason that invalid figures give their verdict."""
        return cls(code=invalidity.code, text=invalidity.text)
