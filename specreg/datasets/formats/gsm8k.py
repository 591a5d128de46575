"""GSM8K: sums in words. Their answers aren't read."""

from specreg.datasets.formats._form import Row, RowForm
from specreg.datasets.prompts import Prompt


class Gsm8kRow(Row, frozen=True, kw_only=True):
    """A sum."""

    question: str

    def prompt(self, number: int) -> Prompt:
        """The text; rows have no ids, so their number is one."""
        return Prompt(id=f"gsm8k-{number}", category="math", turns=(self.question,))


FORM = RowForm(name="gsm8k", row=Gsm8kRow, needs="question (a text)")
