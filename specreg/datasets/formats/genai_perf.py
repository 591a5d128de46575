"""Lines of genai-perf, and of aiperf's `single_turn`."""

from specreg.datasets.formats._form import Row, RowForm
from specreg.datasets.prompts import Prompt


class GenaiPerfRow(Row, frozen=True, kw_only=True):
    """A request."""

    text: str

    def prompt(self, number: int) -> Prompt:
        """The text; rows have no ids, so their number is one."""
        return Prompt(id=f"genai-perf-{number}", category="own", turns=(self.text,))


FORM = RowForm(name="genai-perf", row=GenaiPerfRow, needs="text (a text)")
